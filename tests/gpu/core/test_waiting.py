"""Waiting on hardware: await, then and sync, beside work that runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

import streamkit as sk
from support.contention import contended, logged
from support.documents import ROOT, blocks
from support.gpu.raw import busy, check, destroy_stream, driver, make_stream
from support.programs import run_program, run_python
from support.queues import LONG, eventually, opened_once_all_sleep, together

ACTIVE = 1


@pytest.fixture
def held(gate):
    def make(count=None):
        # all before one is held: beside many busy streams the driver blocks who makes another
        streams = [sk.new_stream(nonblocking=True) for _ in range(count or 1)]
        for stream in streams:
            gate.hold(stream.handle)
        return streams[0] if count is None else streams

    return make


async def wait_for(something):
    return await something


WAITED = pytest.mark.parametrize("of", [lambda s: s, lambda s: s.record()], ids=["stream", "event"])


@WAITED
def test_await_ends_when_the_queue_has_run_and_not_before(held, gate, of):
    async def main():
        stream = held()
        task = asyncio.create_task(wait_for(of(stream)))
        await asyncio.sleep(0.05)
        assert not task.done()
        gate.open()
        await asyncio.wait_for(task, LONG)
        assert not busy(stream.handle)

    asyncio.run(main())


def test_await_of_a_torch_event_and_stream(subjects, gate):
    torch = subjects("torch").torch
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    gate.hold(stream.cuda_stream)
    event.record(stream)

    async def main():
        tasks = [asyncio.create_task(wait_for(what))
                 for what in (sk.wrap_event(event), sk.wrap(stream))]  # fmt: skip
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in tasks)
        gate.open()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    asyncio.run(main())
    assert event.query()


def test_a_thousand_awaits_over_64_streams_that_are_held(held, gate):
    streams = held(64)
    before = threading.active_count()

    async def main():
        tasks = [asyncio.create_task(wait_for(streams[n % 64])) for n in range(1000)]
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert gate.closed, "the loop stood still"
        assert not any(task.done() for task in tasks)
        assert threading.active_count() <= before + 1
        gate.open()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    asyncio.run(main())


@pytest.mark.alone
def test_awaited_queues_that_stand_still_hold_up_no_other():
    """In one process alone: where many streams share the GPU's hardware queues, any wait can."""
    done = run_program(
        TORCH
        + f"""
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from support.gpu.raw import Gate, busy, make_stream

raw = [make_stream() for _ in range(64)]
others = [torch.cuda.ExternalStream(handle) for handle in raw]
stuck = [sk.new_stream(nonblocking=True) for _ in range(16)]
quick = [sk.wrap(other) for other in others[:2]]
x = torch.zeros(64, device="cuda")
x.add_(1)
torch.cuda._sleep(1)  # a kernel's first use waits for the device, where the gate holds a queue
gate, root = Gate(), sk.new_stream(nonblocking=True)
gate.hold(root.handle)
for one in stuck:
    one.wait(root)

def held_up():
    for other in others:
        with torch.cuda.stream(other):
            x.add_(1)
    end = time.monotonic() + 5
    while any(map(busy, raw)) and time.monotonic() < end:
        time.sleep(0.001)
    return sum(map(busy, raw))

async def main():
    print("before", held_up())
    tasks = [asyncio.create_task(wait_for(one)) for one in stuck]
    futures = [one.then(int) for one in stuck]
    await asyncio.sleep(0.05)
    print("with all of them awaited", held_up())
    for other in others[:2]:
        with torch.cuda.stream(other):
            torch.cuda._sleep(20_000_000)
    future = quick[0].then(int, 1)
    await asyncio.wait_for(wait_for(quick[1]), 10)
    print(future.result(10), gate.closed, any(one.done() for one in tasks + futures))
    gate.open()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    print({{future.result(10) for future in futures}})

asyncio.run(main())
"""
    )
    assert done.stdout == "before 0\nwith all of them awaited 0\n1 True False\n{0}\n", done.stderr


def test_ten_thousand_functions_that_allocate_log_and_take_locks(subjects):
    """While other threads hold the GIL in turn. None deadlocks, and all are in order.

    Every hundredth gives all memory back first, so that it frees and allocates in the driver.
    """
    torch = subjects("torch").torch
    streams = [sk.wrap(torch.cuda.Stream()) for _ in range(8)]
    seen = [[] for _ in streams]

    def call(index, number):
        if number % 100 == 0:
            torch.cuda.empty_cache()
            held = torch.empty((20 << 20) + number, dtype=torch.uint8, device="cuda")
        else:
            held = torch.empty(64, device="cuda")
        with lock:
            seen[index].append(number)
        logger.debug("%d allocated %d", number, held.nbytes)

    before = torch.cuda.memory_stats()["num_device_alloc"]
    with contended() as lock, logged() as (logger, text):
        x = torch.zeros(1000, device="cuda")
        futures = []
        for number in range(10_000):
            stream = streams[number % 8]
            if number % 50 < 8:
                with torch.cuda.stream(stream.native):
                    x.add_(1)
            futures.append(stream.then(call, number % 8, number))
        for future in futures:
            assert future.result(30) is None
    assert seen == [list(range(index, 10_000, 8)) for index in range(8)]
    assert {int(line.split()[0]) for line in text.getvalue().splitlines()} == set(range(10_000))
    assert torch.cuda.memory_stats()["num_device_alloc"] > before + 10  # some share a block


@WAITED
def test_a_long_sync_leaves_the_processor_to_others(held, gate, of):
    """Every thread sleeps: the driver's do not ask over and over either."""
    waited = of(held())
    slept = opened_once_all_sleep(gate)
    waited.sync()
    assert slept.result(LONG)


def test_sync_in_many_threads(held, gate):
    streams = held(8)
    threading.Timer(0.1, gate.open).start()
    together(16, lambda number: streams[number % 8].sync(timeout=LONG))


def test_a_function_may_call_cuda_with_the_streams_device_current(subjects):
    torch, stream = subjects("torch").torch, sk.new_stream()

    def work():
        with sk.use(stream, libraries=["torch"]):
            return float(torch.ones(10, device="cuda").sum())

    assert stream.then(work).result(LONG) == 10


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread_local", "relaxed"])
def test_waiting_disturbs_nobodys_capture(held, gate, mode):
    stream, raw = held(), make_stream()
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(mode)))
    try:
        future, event = stream.then(lambda: driver.cuStreamQuery(stream.handle)), stream.record()
        threading.Timer(0.1, gate.open).start()
        event.sync(timeout=LONG)
        stream.sync(timeout=LONG)
        asyncio.run(wait_for(stream))
        # what was queued after it, as the record above, may not have run yet when it asks
        assert future.result(LONG)[0] in (0, driver.CUresult.CUDA_ERROR_NOT_READY)
        capturing = sk.from_handle(raw)
        for use in (lambda: asyncio.run(wait_for(capturing)), lambda: capturing.then(int)):
            with pytest.raises(sk.errors.CaptureError):
                use()
        assert int(check(driver.cuStreamIsCapturing(raw))) == ACTIVE
    finally:
        code, graph = driver.cuStreamEndCapture(raw)
        destroy_stream(raw)
    assert not code
    check(driver.cuGraphDestroy(graph))


def test_awaits_that_time_out_over_and_over_leave_little(held, gate):
    from streamkit._queues import dispatcher  # no public name tells what it watches

    stream = held()

    async def main():
        for _ in range(300):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stream, 0.005)  # longer than a look

    asyncio.run(main())
    tracks = dispatcher._dispatcher.tracks
    assert eventually(lambda: sum(len(t.points) for t in [*tracks.values()]) < 2 * dispatcher._MANY)
    assert gate.closed
    gate.open()


# -- in a process of its own ------------------------------------------------------------------

RAW = f"""
import asyncio, os, signal, sys, threading, time
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
import streamkit as sk
from support.gpu.raw import Gate, check, driver
check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
gate, stream = Gate(), sk.new_stream(nonblocking=True)
stream.sync()
gate.hold(stream.handle)

async def wait_for(what):
    await what
"""
TORCH = """
import asyncio, os, sys, threading, time
import torch
import streamkit as sk

stream = sk.wrap(torch.cuda.Stream())
x, wrong = torch.zeros(4, device="cuda"), torch.tensor([10**9], device="cuda")
x[wrong * 0]  # a kernel's first use waits for the device
torch.cuda.synchronize()

async def wait_for(what):
    await what

def work(seconds):
    with torch.cuda.stream(stream.native):
        for _ in range(int(seconds * 10)):
            torch.cuda._sleep(180_000_000)  # a tenth of a second
"""


def test_an_error_on_the_queue_reaches_every_waiter():
    """The context dies of it."""
    done = run_program(TORCH + """
work(0.5)
with torch.cuda.stream(stream.native):
    x[wrong]
outcomes = []

def sync():
    try:
        stream.sync(timeout=10)
    except sk.errors.DriverError as error:
        outcomes.append(error)

async def main():
    event = stream.record()
    tasks = [asyncio.create_task(wait_for(what)) for what in [stream] * 50 + [event] * 50]
    futures = [stream.then(print, "called") for _ in range(50)]
    threads = [threading.Thread(target=sync) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(0.1)
    print(sum(task.done() for task in tasks))
    found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    found += [future.exception(10) for future in futures]
    for thread in threads:
        thread.join()
    found += outcomes
    print(len(found), {(type(error).__name__, error.name) for error in found})

asyncio.run(main())
sys.stdout.flush()
os._exit(0)
""")  # fmt: skip
    assert done.stdout == "0\n154 {('DriverError', 'CUDA_ERROR_ASSERT')}\n", done.stderr


@pytest.mark.parametrize(
    "waits", ["stream.sync()", "stream.sync(60)", "stream.sync(spin=True)", "event.sync()"]
)
def test_ctrl_c_ends_a_wait_of_any_length(waits):
    done = run_program(RAW + f"""
event = stream.record()
try:
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    {waits}
except KeyboardInterrupt:
    print("interrupted", stream.done)
gate.open()
stream.sync()
""")  # fmt: skip
    assert (done.stdout, done.returncode) == ("interrupted False\n", 0), done.stderr


def test_the_process_ends_with_work_pending_when_the_function_that_runs_has_ended():
    """It waits for no work of the GPU, and reports the function that is behind it."""
    done = run_program(TORCH + """
running = sk.new_stream().then(lambda: (time.sleep(1.2), print("called")))
while not running.running():
    time.sleep(0.01)
work(6)
pending = stream.then(print, "never")
threading.Thread(target=stream.sync, daemon=True).start()
time.sleep(0.1)
print("end", stream.done, flush=True)
""")  # fmt: skip
    assert (done.stdout, done.returncode) == ("end False\ncalled\n", 0), done.stderr
    assert "the program ended before this had run: print, submitted in" in done.stderr


def program(path, text):
    """Run a file, which spawned workers import again."""
    path.write_text(text)
    return run_python(path)


def test_a_spawned_worker_makes_and_uses_a_stream_of_its_own(tmp_path):
    """Beside a parent that has CUDA initialised, and a stream which it cannot send."""
    done = program(tmp_path / "service.py", f"""
import asyncio, multiprocessing, sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
import streamkit as sk
from support.gpu.raw import Cell, busy, check, driver

def begin():
    global stream
    stream = sk.new_stream(nonblocking=True)

async def wait():
    await stream

def work(number):
    with stream:
        cell = Cell(0)
        check(driver.cuCtxSynchronize())  # its 0 came by the legacy stream
        check(driver.cuMemsetD32Async(cell.pointer, 0x3f800000 * number, 1, stream.handle))
    if number:
        asyncio.run(wait())
    else:
        stream.sync()
    assert not busy(stream.handle)
    return stream.then(cell.read).result(10)

if __name__ == "__main__":
    begin()
    print(work(1))
    with multiprocessing.get_context("spawn").Pool(1, initializer=begin) as pool:
        print(pool.map(work, [0, 1]))
        try:
            pool.apply(work, [stream])
        except TypeError as error:
            print("Make one in each process" in str(error))
    print(work(1))
""")  # fmt: skip
    assert done.stdout == "1.0\n[0.0, 1.0]\nTrue\n1.0\n", done.stderr


def test_the_guides_program_with_worker_processes_on_a_gpu(tmp_path):
    pytest.importorskip("numpy")
    page = ROOT / "docs" / "guides" / "asyncio.md"
    (block,) = (one for one in blocks(page.read_text()) if "multiprocessing" in one.code)
    here, there = 'sk.new_stream("cpu")  # on a GPU: sk.new_stream()', "sk.new_stream()"
    assert here in block.code
    code = block.code.replace(here, there + "\n    assert stream.device_id == 0")
    done = program(tmp_path / "service.py", code)
    assert done.stdout == block.prints, done.stderr


def test_a_forked_child_is_told_and_the_parents_waits_go_on():
    done = run_program(RAW + """
event, future = stream.record(), stream.then(print, "called", flush=True)
child = os.fork()
if child == 0:
    told = 0
    for call in (lambda: stream.then(int), lambda: asyncio.run(wait_for(stream)),
                 stream.sync, lambda: asyncio.run(wait_for(event)), event.sync, future.result):
        try:
            call()
        except sk.errors.ForkedProcessError:
            told += 1
    print(told, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
gate.open()
future.result(10)
""")  # fmt: skip
    assert done.stdout == "6\n0\ncalled\n", done.stderr
