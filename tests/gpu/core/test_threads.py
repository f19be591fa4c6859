"""Scopes in several threads: torch and CuPy are each thread's own, Warp is the process's."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import streamkit as sk
from support.gpu.places import current_state
from support.gpu.raw import check, current_context, driver, on_device
from support.libraries import cuda_devices
from support.queues import within

SECONDS = float(os.environ.get("STREAMKIT_STRESS_SECONDS", "30"))


@pytest.fixture(autouse=True)
def all_three(three):
    """All of them are loaded; after each test their current streams are as before."""
    before = current_state(three)
    yield
    assert current_state(three) == before


@pytest.fixture
def device(each_device):
    return each_device


class Elsewhere:
    """A thread that enters a scope and holds it until told to leave."""

    def __init__(self, stream, **options):
        self.entered, self.may_leave = threading.Event(), threading.Event()
        self.error = None
        self.thread = threading.Thread(
            target=self.run, args=(stream, options), name="holder", daemon=True
        )
        self.thread.start()
        assert self.entered.wait(10)

    def run(self, stream, options):
        try:
            with sk.use(stream, **options):
                self.entered.set()
                self.may_leave.wait(10)
        except sk.errors.ScopeError as error:
            self.error = error
            self.entered.set()

    def leave(self):
        self.may_leave.set()
        self.thread.join()


def test_cupy_and_torch_work_in_a_new_thread_after_a_scope(three, primary_context):
    """CuPy launches on the current context, and makes one current only once in a thread."""
    torch, cupy = three["torch"].torch, three["cupy"].cupy
    x, y, z = cupy.ones(100), torch.ones(100, device="cuda:0"), cupy.zeros(100)

    def work():
        assert current_context() == 0  # nobody has used CUDA in this thread
        with sk.new_stream(0):
            cupy.add(x, 1, out=z)
        assert current_context() == primary_context
        cupy.add(x, 2, out=z)
        assert (float(z.sum()), float((y + 1).sum())) == (300, 200)
        check(driver.cuCtxSetCurrent(0))
        with pytest.raises(cupy.cuda.driver.CUDADriverError, match="INVALID_CONTEXT"):
            cupy.add(x, 2, out=z)  # control; it allocates nothing, which would make one current

    within(work)


def test_another_queue_in_another_thread_is_refused_for_warp(three, device):
    before = current_state(three)
    holder = Elsewhere(sk.new_stream(device, name="theirs"))
    held = current_state(three)
    mine = sk.new_stream(device, name="mine")
    with pytest.raises(sk.errors.ScopeError) as caught, mine:
        pass
    text = str(caught.value)
    assert "holder" in text
    assert "MainThread" in text
    assert "libraries=" in text
    assert "wp.launch" in text
    assert "share one stream" in text
    assert current_state(three) == held
    assert {name: held[name] for name in ("torch", "cupy", "context")} == {
        name: before[name] for name in ("torch", "cupy", "context")
    }
    with sk.use(mine, libraries=["torch", "cupy"]):
        assert sk.current_stream("torch") == mine == sk.current_stream("cupy")
    assert current_state(three) == held
    holder.leave()
    assert current_state(three) == before
    with mine:
        assert sk.current_stream("warp") == mine
    assert current_state(three) == before


@pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")
def test_a_scope_on_another_device_is_refused_too_for_warps_default_device_is_one(three):
    holder = Elsewhere(sk.new_stream(0, name="theirs"))
    held = current_state(three)
    mine = sk.new_stream(1, name="mine")
    with pytest.raises(sk.errors.ScopeError, match="libraries=") as caught, mine:
        pass
    assert "wp.launch" in str(caught.value)
    assert "share one stream" not in str(caught.value)
    assert current_state(three) == held
    with sk.use(mine, libraries=["torch", "cupy"]):
        assert sk.current_stream("torch") == mine == sk.current_stream("cupy")
    assert current_state(three) == held
    holder.leave()


def test_the_same_queue_is_joined_and_the_last_one_out_restores(three, device):
    before = current_state(three)
    shared = sk.new_stream(device)
    holder = Elsewhere(shared)
    with shared:
        assert sk.current_stream("warp") == shared
        sk.assert_one_queue()
        holder.leave()
        assert holder.error is None
        assert sk.current_stream("warp") == shared, "the first one out restored"
        sk.assert_one_queue()
    assert current_state(three) == before


def test_a_nested_scope_may_not_pull_warp_away_from_another_thread(device):
    shared = sk.new_stream(device)
    holder = Elsewhere(shared)
    with shared:
        with pytest.raises(sk.errors.ScopeError, match="holder"), sk.new_stream(device):
            pass
        assert sk.current_stream("warp") == shared
        sk.assert_one_queue()
    holder.leave()


def test_joining_above_a_scope_of_another_queue_is_refused(device):
    """When the one below ended, it would come back under the thread that joined."""
    outer, inner = sk.new_stream(device), sk.new_stream(device)
    with outer, inner:
        guest = Elsewhere(inner)
        assert isinstance(guest.error, sk.errors.ScopeError)
        guest.leave()


def test_leaving_in_another_thread_raises_and_leaves_both_whole(three, device):
    before = current_state(three)
    scope = sk.use(sk.new_stream(device))
    scope.__enter__()
    inside = current_state(three)

    def leave():
        theirs = current_state(three)
        with pytest.raises(sk.errors.ScopeError, match="not open in this thread"):
            scope.__exit__(None, None, None)
        assert current_state(three) == theirs

    within(leave)
    assert current_state(three) == inside
    scope.__exit__(None, None, None)
    assert current_state(three) == before


@pytest.mark.parametrize("first_out", ["outer", "inner"])
def test_two_tasks_that_hold_scopes_across_an_await_are_told(three, device, first_out):
    """Whichever ends first: in order nothing is wrong in the end, out of order both are told."""
    before = current_state(three)

    async def hold(stream, entered, may_leave, left):
        try:
            with sk.use(stream):
                entered.set()
                await may_leave.wait()
        finally:
            left.set()

    async def both():
        outer_in, inner_in, outer_out, inner_out = (asyncio.Event() for _ in range(4))

        async def enter_second():
            await outer_in.wait()
            may_leave = outer_out if first_out == "outer" else inner_in
            await hold(sk.new_stream(device), inner_in, may_leave, inner_out)

        may_leave = inner_in if first_out == "outer" else inner_out
        return await asyncio.gather(
            hold(sk.new_stream(device), outer_in, may_leave, outer_out),
            enter_second(),
            return_exceptions=True,
        )

    results = asyncio.run(both())
    told = [isinstance(result, sk.errors.ScopeError) for result in results]
    assert told == [first_out == "outer"] * 2
    assert current_state(three) == before


@pytest.mark.parametrize("depth", [2, 3])
def test_leaving_out_of_order_ends_all_inside_and_leaves_everything_whole(three, device, depth):
    before = current_state(three)
    scopes = [sk.use(sk.new_stream(device)) for _ in range(depth + 1)]
    scopes[0].__enter__()
    between = current_state(three)
    for scope in scopes[1:]:
        scope.__enter__()
    with pytest.raises(sk.errors.ScopeError, match="inside it were open"):
        scopes[1].__exit__(None, None, None)
    assert current_state(three) == between
    with pytest.raises(sk.errors.ScopeError, match="not open in this thread"):
        scopes[-1].__exit__(None, None, None)
    assert current_state(three) == between
    scopes[0].__exit__(None, None, None)
    assert current_state(three) == before


def run_on(stream, fn, *args):
    """Run one function of a thread pool on a stream: the recipe."""
    with sk.use(stream, libraries=["torch", "cupy"]):
        return fn(*args)


@pytest.mark.parametrize("scoped", [True, False])
def test_the_recipe_for_thread_pools(three, device, scoped):
    """Each function finds torch and CuPy on its stream; without the scope it does not."""
    torch, cupy = three["torch"], three["cupy"]

    def work(value):
        x = torch.torch.full((1000,), value, device="cuda", dtype=torch.torch.float64)
        total = float(cupy.cupy.from_dlpack(x).sum())
        return total, torch.handle_of(torch.current()), cupy.handle_of(cupy.current())

    streams = [sk.new_stream(device) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = [
            pool.submit(run_on, streams[i % 4], work, i) if scoped else pool.submit(work, i)
            for i in range(64)
        ]
        there = [streams[i % 4].handle if scoped else 0 for i in range(64)]
        assert [future.result() for future in found] == [
            (1000.0 * i, handle, handle) for i, handle in enumerate(there)
        ]


def assert_on(subjects, stream):
    """Make the stream current in each of them, in this thread, by its own API."""
    for subject in subjects:
        assert subject.handle_of(subject.current()) == stream.handle, subject.name


def error_of_a_sum(subjects, streams, chance):
    """Compute a sum over two nested scopes of random streams; return by how much it is wrong."""
    torch, cupy, *warps = subjects
    names, value = [subject.name for subject in subjects], chance.randrange(100)
    first, second = chance.choice(streams), chance.choice(streams)
    with sk.use(first, libraries=names, ordered=chance.random() < 0.3):
        assert_on(subjects, first)
        x = torch.torch.full((257,), value, device="cuda", dtype=torch.torch.float32)
        with sk.use(second, libraries=names):
            assert_on(subjects, second)
            second.wait(first)
            y = cupy.cupy.from_dlpack(x) * 2
            for subject in warps:
                z = subject.warp.from_dlpack(y)
                subject.warp.launch(subject.kernel, dim=1, inputs=[z, z])  # y[0] += 1
            total = int(y.sum())
        assert_on(subjects, first)
        first.wait(second)  # x and y go back to their pools behind what used them
    return total - (257 * 2 * value + len(warps))


@pytest.mark.timeout(SECONDS + 90)
@pytest.mark.parametrize("seconds", [SECONDS])
def test_eight_threads_of_random_scopes_and_sums(three, device, seconds):
    """Every sum is exact; Warp takes part in one thread, torch and CuPy in all.

    Sums would be exact on one default stream too: so each thread reads its current streams.
    """
    torch, cupy, warp = (three[name] for name in ("torch", "cupy", "warp"))
    end = time.monotonic() + seconds
    rounds, failures = [0] * 8, []

    def run(index):
        chance = random.Random(index)  # noqa: S311 - a test's dice
        subjects = (torch, cupy, warp) if index == 0 else (torch, cupy)
        try:
            with on_device(device):
                streams = [sk.new_stream(), sk.new_stream(), sk.wrap(cupy.new_stream())]
                before = [subject.current() for subject in subjects]
            while time.monotonic() < end:
                wrong = error_of_a_sum(subjects, streams, chance)
                with on_device(device):
                    after = [subject.current() for subject in subjects]
                if wrong or after != before:
                    failures.append((index, rounds[index], wrong, after, before))
                rounds[index] += 1
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append((index, rounds[index], repr(error)))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]
    assert min(rounds) > 50
