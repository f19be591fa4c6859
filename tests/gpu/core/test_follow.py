"""``follow``: CuPy and Warp on the stream that is current in torch, found anew at each entry."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import streamkit as sk
from support.gpu.library_subjects import WITH_CURRENT
from support.gpu.places import (
    current_state,
    one_stream_current,
    own_streams_current,
    place,
    working_on,
)
from support.gpu.raw import held, on_device, sync
from support.libraries import cuda_devices


@pytest.fixture
def device(each_device):
    return each_device


def compute(three, line):
    """One kernel of each library, on whatever stream is current in it."""
    for name, (src, dst) in zip(WITH_CURRENT, line, strict=True):
        three[name].add_one_current(src.pointer, dst.pointer)


@pytest.mark.parametrize("leader", WITH_CURRENT)
@pytest.mark.parametrize("follows", [True, False])
def test_a_pipeline_is_in_order_on_the_stream_of_the_library_that_leads(  # noqa: PLR0917 - the cases
    three, gate, cells, peek, device, leader, follows
):
    with on_device(device):
        line = [(cells(1), cells(0)) for _ in WITH_CURRENT]
    decorate = sk.follow(leader) if follows else lambda fn: fn
    with own_streams_current(three, device), working_on(three, device):
        handle = three[leader].handle_of(three[leader].current())
        gate.hold(handle)
        decorate(compute)(three, line)
        if not follows:
            for name in set(WITH_CURRENT) - {leader}:
                sync(three[name].handle_of(three[name].current()))
        assert held(handle)
        found = {name: peek(dst) for name, (_, dst) in zip(WITH_CURRENT, line, strict=True)}
        waited = {name for name in WITH_CURRENT if not found[name]}
        assert waited == (set(WITH_CURRENT) if follows else {leader})
        assert gate.closed
        gate.open()
        sync(handle)
        assert [peek(dst) for _, dst in line] == [2, 2, 2]


def test_each_entry_asks_again_and_each_end_restores(three, device):
    scope = sk.follow("torch")
    with own_streams_current(three, device), working_on(three, device):
        for _ in range(2):
            with one_stream_current(three, "torch", device) as now:
                before = current_state(three)
                with scope as followed:
                    assert followed == sk.wrap(now) == sk.current_stream()
                    assert set(sk.current_streams().values()) == {followed}
                    with contextlib.suppress(ZeroDivisionError), scope:
                        raise ZeroDivisionError
                assert current_state(three) == before


@pytest.mark.parametrize("kind", ["default", "pool", "external", "scope"])
def test_where_both_are_on_the_queue_the_body_may_move_them_and_they_come_back(three, device, kind):
    torch, cupy = three["torch"], three["cupy"]
    scope = sk.follow("torch", libraries=["cupy"])
    with own_streams_current(three, device), working_on(three, device):
        s = {"default": sk.default_stream, "pool": lambda _: sk.wrap(torch.new_stream())}.get(
            kind, sk.new_stream
        )(device)
        if kind != "scope":
            place({"torch": torch, "cupy": cupy}, {n: s.to(n) for n in ("torch", "cupy")}, device)
        with (
            sk.use(s, libraries=["torch", "cupy"]) if kind == "scope" else contextlib.nullcontext()
        ):
            before = current_state(three)
            for _ in range(2):
                with scope as followed:
                    assert followed == s
                    assert current_state(three) == before
                    torch.make_current(torch.new_stream())
                    with scope as again:
                        assert again == sk.current_stream("cupy") != s
                    cupy.make_current(cupy.new_stream())
                assert current_state(three) == before


@pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")
def test_they_follow_torch_to_another_device(three):
    with one_stream_current(three, "torch", 1) as now, working_on(three, 0):
        before = current_state(three)
        with torch_on(three, 1), sk.follow("torch") as followed:
            assert followed == sk.wrap(now)
            assert followed.device_id == 1 == three["cupy"].cupy.cuda.Device().id
            assert str(three["warp"].warp.get_device()) == "cuda:1"
        assert current_state(three) == before


@contextlib.contextmanager
def torch_on(three, device):
    cuda = three["torch"].torch.cuda
    before = cuda.current_device()
    cuda.set_device(device)
    yield
    cuda.set_device(before)


def test_threads_follow_each_its_own_stream_with_one_object(three, device):
    torch = three["torch"]
    meet = threading.Barrier(2, timeout=30)

    @sk.follow("torch", libraries=["cupy"])
    def handles(depth=1):
        meet.wait()
        found = torch.current().cuda_stream, three["cupy"].current().ptr
        meet.wait()
        return [found, *(handles(depth - 1) if depth else [])]

    def run(stream):
        with on_device(device), torch.torch.cuda.stream(stream):
            return handles(), three["cupy"].current().ptr

    streams = [torch.new_stream(), torch.new_stream()]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, streams))
    for stream, (inside, after) in zip(streams, found, strict=True):
        assert inside == [(stream.cuda_stream,) * 2] * 2
        assert after == 0


@pytest.mark.parametrize("follows", [True, False])
def test_cupy_follows_torch_into_a_capture(three, cells, peek, device, follows):
    torch = three["torch"].torch
    with working_on(three, device):
        cells = [cells(float(value)) for value in (1, 0, 0)]
        pairs = [(src.pointer, dst.pointer) for src, dst in itertools.pairwise(cells)]
        graph, side = torch.cuda.CUDAGraph(), sk.new_stream(nonblocking=True)

        def work():
            three["cupy"].add_one_current(*pairs[1])

        arrays = [three["torch"].array(pointer) for pointer in pairs[0]]
        with sk.use(side, libraries=["cupy"]), torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            torch.add(arrays[0], 1, out=arrays[1])
            (sk.follow("torch", libraries=["cupy"])(work) if follows else work)()
        side.sync()
        assert peek(cells[2]) == (0 if follows else 1), "outside the graph it ran at once"
        graph.replay()
        torch.cuda.synchronize()
        assert peek(cells[2]) == (3 if follows else 1)
