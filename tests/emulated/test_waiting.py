"""Waiting for queues of an emulated driver: await, then, sync, and the dispatcher behind them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import _emulator
import pytest
from _raw import Gate, busy, check, destroy_stream, driver, make_stream

import streamkit as sk
from _queues import LONG, eventually, together, within
from streamkit import _dispatch, _driver, _lanes

pytestmark = pytest.mark.usefixtures("handles")

CODES = driver.CUresult
ACTIVE = 1


@pytest.fixture(autouse=True)
def one_test_at_a_time():
    """What one test left to the dispatcher is over before the next begins."""
    yield
    _emulator.break_down(0)
    found = _dispatch._dispatcher
    assert found is None or eventually(lambda: not found._tracks and not found._new)


@pytest.fixture
def held(gate):
    """Make streams whose work waits for the gate."""

    def make(device=None):
        stream = sk.new_stream(device, nonblocking=True)
        gate.hold(stream.handle)
        return stream

    return make


async def wait_for(something):
    return await something


def a_stream(stream):
    return stream


def an_event(stream):
    return stream.record()


WAITED = pytest.mark.parametrize("of", [a_stream, an_event], ids=["stream", "event"])


def is_armed():
    """Whether the dispatcher has a lane for each queue that it watches."""
    found = _dispatch._dispatcher
    tracks = list(found._tracks.values()) if found else []
    return bool(tracks) and all(track.lane for track in tracks)


# -- await ------------------------------------------------------------------------------------


@WAITED
def test_await_ends_when_the_queue_has_run_and_not_before(held, gate, of):
    seen = []

    async def main():
        stream = held()
        task = asyncio.create_task(wait_for(of(stream)))
        await asyncio.sleep(0.02)
        seen.append(task.done())
        gate.open()
        await asyncio.wait_for(task, LONG)
        seen.append(busy(stream.handle))

    asyncio.run(main())
    assert seen == [False, False]


@WAITED
def test_await_of_what_has_run_does_not_suspend(of):
    waited = of(sk.new_stream())
    waited.sync()
    assert list(waited.__await__()) == []


def test_await_is_for_what_was_submitted_before_it(held):
    async def main():
        stream = sk.new_stream(nonblocking=True)
        with contextlib.closing(Later()) as first, contextlib.closing(Later()) as second:
            first.hold(stream)
            task = asyncio.create_task(wait_for(stream))
            await asyncio.sleep(0)
            second.hold(stream)
            first.open()
            await asyncio.wait_for(task, LONG)
            assert busy(stream.handle)

    asyncio.run(main())


class Later:
    """A gate of its own, so that one opens after another."""

    def __init__(self):
        self._gate = Gate()

    def hold(self, stream):
        self._gate.hold(stream.handle)

    def open(self):
        self._gate.open()

    close = property(lambda self: self._gate.free)


def test_awaits_in_loops_of_several_threads(held, gate):
    streams = [held() for _ in range(6)]
    opener = threading.Timer(0.05, gate.open)
    opener.start()

    def work(number):
        async def main():
            await asyncio.gather(*(wait_for(streams[number]) for _ in range(20)))

        asyncio.run(main())

    together(6, work)
    opener.join()


def test_a_thousand_awaits_over_64_streams_that_are_held(held, gate):
    """The loop goes on meanwhile, and the driver is given few host functions."""
    streams = [held() for _ in range(64)]
    warm_up()
    before, ticks = threading.active_count(), []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.001)

    async def main():
        ticking = asyncio.create_task(tick())
        tasks = [asyncio.create_task(wait_for(streams[n % 64])) for n in range(1000)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in tasks)
        assert len(ticks) > 10, "the loop stood still"
        assert _emulator.calls("cuLaunchHostFunc") <= _lanes.PER_DEVICE
        assert threading.active_count() <= before + 1
        gate.open()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)
        ticking.cancel()

    _emulator.reset_calls()
    asyncio.run(main())


def warm_up():
    within(lambda: sk.new_stream().then(int).result(LONG))


def test_a_queue_that_is_held_delays_no_others_await(held, gate):
    async def main():
        slow = [asyncio.create_task(wait_for(held())) for _ in range(3)]
        await asyncio.sleep(0.02)
        with contextlib.closing(Later()) as later:
            quick = sk.new_stream(nonblocking=True)
            later.hold(quick)
            task = asyncio.create_task(wait_for(quick))
            await asyncio.sleep(0.02)
            later.open()
            await asyncio.wait_for(task, LONG)
        assert not any(one.done() for one in slow)
        gate.open()
        await asyncio.gather(*slow)

    asyncio.run(main())


@WAITED
def test_a_cancelled_await_ends_at_once_and_others_go_on(held, gate, of):
    async def main():
        stream = held()
        waited = of(stream)
        first, second = (asyncio.create_task(wait_for(waited)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_for(waited), 0.01)
        assert busy(stream.handle)
        gate.open()
        await asyncio.wait_for(second, LONG)
        await waited

    asyncio.run(main())


def test_awaits_that_time_out_over_and_over_leave_nothing(held, gate):
    stream = held()
    events = []

    async def main():
        for _ in range(6):
            for _ in range(60):
                task = asyncio.create_task(wait_for(stream))
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.sleep(0.1)
            events.append(_emulator.live("events"))

    asyncio.run(main())
    assert max(events[1:]) <= events[0] + _dispatch._MANY
    assert max(events) < 300


def test_a_loop_that_has_closed_meanwhile_is_left_alone(held, gate):
    stream = held()

    async def main():
        task = asyncio.create_task(wait_for(stream))
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_soon(task.cancel)

    asyncio.run(main())
    other = stream.then(int)
    gate.open()
    assert other.result(LONG) == 0


def test_await_of_an_event_that_never_was_recorded_and_of_a_borrowed_one(held, gate):
    raw = check(driver.cuEventCreate(2))
    stream = held()
    check(driver.cuEventRecord(raw, stream.handle))

    async def main():
        await sk.new_event()
        task = asyncio.create_task(wait_for(sk.wrap_event(raw)))
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.open()
        await asyncio.wait_for(task, LONG)

    asyncio.run(main())
    check(driver.cuEventDestroy(raw))


def test_a_closed_event_is_awaited_all_the_same(held, gate):
    async def main():
        event = held().record()
        task = asyncio.create_task(wait_for(event))
        await asyncio.sleep(0.01)
        event.close()
        gc.collect()
        gate.open()
        await asyncio.wait_for(task, LONG)

    asyncio.run(main())


def test_await_needs_a_running_loop(held):
    with pytest.raises(RuntimeError, match="loop"):
        held().__await__().send(None)


# -- then -------------------------------------------------------------------------------------


def test_then_calls_when_the_work_has_run(held, gate):
    stream = held()
    future = stream.then(lambda a, *, b: (a, b, busy(stream.handle)), 1, b=2)
    with pytest.raises(TimeoutError):
        future.result(0.02)
    gate.open()
    assert future.result(LONG) == (1, 2, False)


def test_the_functions_of_one_stream_run_in_order_and_one_at_a_time(held, gate):
    stream, seen = held(), []

    def note(number):
        seen.append(number)
        time.sleep(0.0005)
        seen.append(number)

    futures = [stream.then(note, number) for number in range(50)]
    gate.open()
    for future in futures:
        future.result(LONG)
    assert seen == [number for number in range(50) for _ in range(2)]


def test_the_functions_of_one_queue_keep_their_order_whoever_holds_it(held, gate):
    raw, seen = make_stream(), []
    gate.hold(raw)
    futures = []
    for number in range(20):
        futures.append(sk.from_handle(raw, owner=object()).then(seen.append, number))
        gc.collect()
    gate.open()
    for future in futures:
        future.result(LONG)
    assert seen == list(range(20))
    destroy_stream(raw)


def test_a_slow_function_delays_neither_the_queue_nor_other_streams_functions():
    stream, other = sk.new_stream(), sk.new_stream()
    release = threading.Event()
    slow = stream.then(release.wait, LONG)
    after = stream.then(int)
    assert other.then(int).result(LONG) == 0
    stream.sync(timeout=LONG)
    assert not after.done()
    release.set()
    assert slow.result(LONG)
    assert after.result(LONG) == 0


def test_at_most_four_threads_run_functions():
    names, barrier = set(), threading.Semaphore(0)

    def work():
        names.add(threading.current_thread().name)
        barrier.acquire(timeout=0.05)

    futures = [sk.new_stream().then(work) for _ in range(12)]
    for future in futures:
        future.result(LONG)
    assert 1 < len(names) <= 4
    assert all(name.startswith("streamkit-then") for name in names)


def test_what_a_function_raises_is_in_its_future():
    stream = sk.new_stream()
    with pytest.raises(ZeroDivisionError):
        stream.then(divmod, 1, 0).result(LONG)
    with pytest.raises(SystemExit):
        stream.then(sys.exit).result(LONG)
    assert stream.then(int).result(LONG) == 0


def test_a_cancelled_future_is_not_run(held, gate):
    stream, seen = held(), []
    first, second = stream.then(seen.append, 1), stream.then(seen.append, 2)
    assert first.cancel()
    gate.open()
    second.result(LONG)
    assert seen == [2]


@pytest.mark.parametrize("device", [0, 1])
def test_a_function_may_call_cuda_with_the_streams_device_current(device):
    stream = sk.new_stream(device)

    def work():
        inner = sk.new_stream()
        with stream:
            stream.record().sync()
        return inner.device_id, int(check(driver.cuCtxGetCurrent()))

    assert stream.then(work).result(LONG) == (device, stream.context)
    assert sk.new_stream(1 - device).then(work).result(LONG)[0] == 1 - device


def test_then_of_a_stream_in_another_context():
    arguments = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    context = check(driver.cuCtxCreate(*arguments))
    raw = make_stream()
    check(driver.cuCtxPopCurrent())
    stream = sk.from_handle(raw)
    assert stream.then(lambda: int(check(driver.cuCtxGetCurrent()))).result(LONG) == int(context)
    asyncio.run(wait_for(stream))
    destroy_stream(raw)
    del stream
    gc.collect()
    check(driver.cuCtxDestroy(context))


def test_the_default_streams():
    legacy, own = sk.default_stream(), sk.per_thread_stream()

    async def main():
        await legacy
        await own

    asyncio.run(main())
    assert legacy.then(int).result(LONG) == own.then(int).result(LONG) == 0
    told = []

    def elsewhere():
        for call in (own.__await__, lambda: own.then(int)):
            try:
                call()
            except sk.ScopeError as error:
                told.append(error)

    within(elsewhere)
    assert len(told) == 2


def test_a_stream_may_be_dropped_before_its_function_is_called(held, gate):
    stream = held()
    queue = weakref.ref(stream._queue)
    future = stream.then(int)
    del stream
    gc.collect()
    assert queue() is not None
    gate.open()
    assert future.result(LONG) == 0
    assert eventually(lambda: queue() is None)


# -- sync -------------------------------------------------------------------------------------


@WAITED
def test_sync_waits_without_asking_over_and_over(held, gate, of):
    stream = held()
    waited = of(stream)
    threading.Timer(0.3, gate.open).start()
    _emulator.reset_calls()
    waited.sync()
    asked = _emulator.calls("cuStreamQuery") + _emulator.calls("cuEventQuery")
    assert not busy(stream.handle)
    assert asked < 400, "it asked all the time"


@WAITED
@pytest.mark.parametrize("timeout", [0, -1, 0.0001, 0.05])
def test_a_timeout_names_the_object_and_stops_no_work(held, gate, of, timeout):
    stream = held()
    waited = of(stream)
    with pytest.raises(TimeoutError) as caught:
        waited.sync(timeout=timeout)
    assert repr(waited) in str(caught.value)
    assert busy(stream.handle)
    gate.open()
    waited.sync(timeout=LONG)
    waited.sync(timeout=1e30)


def test_a_sync_longer_than_a_lock_can_wait(held, gate):
    stream = held()
    threading.Timer(0.02, gate.open).start()
    stream.sync(timeout=1e30)


@WAITED
def test_sync_in_many_threads(held, gate, of):
    streams = [held() for _ in range(8)]
    threading.Timer(0.05, gate.open).start()
    together(16, lambda number: of(streams[number % 8]).sync(timeout=LONG))


@pytest.mark.parametrize("code", ["from _raw import Gate", "import time"])
def test_ctrl_c_ends_a_wait_of_any_length(code):
    """The second arm is the control: a sleep that it ends."""
    waits = "stream.sync()" if "Gate" in code else "time.sleep(60)"
    done = run(f"""
        import os, signal, threading, time
        {code}
        stream = hold()
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        begun = time.monotonic()
        try:
            {waits}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begun < 10)
        gate.open()
        stream.sync()
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted True\n", "", 0)


# -- errors -----------------------------------------------------------------------------------


def test_an_error_on_the_device_reaches_every_waiter(held, gate):
    """And each has one of its own. Nothing is posted after an error: only asking tells."""
    streams = [held() for _ in range(8)]
    events = [stream.record() for stream in streams]
    outcomes, threads = [], []

    def sync(what):
        try:
            what.sync(timeout=LONG)
        except sk.DriverError as error:
            outcomes.append(error)

    async def main():
        tasks = [asyncio.create_task(wait_for(what)) for what in (*streams, *events)]
        futures = [stream.then(int) for stream in streams]
        threads.extend(threading.Thread(target=sync, args=(what,)) for what in streams[:4])
        for thread in threads:
            thread.start()
        await asyncio.sleep(0.05)
        _emulator.break_down(CODES.CUDA_ERROR_ILLEGAL_ADDRESS)
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)
        return found + [future.exception(LONG) for future in futures]

    outcomes += asyncio.run(main())
    for thread in threads:
        thread.join(LONG)
    assert len(outcomes) == 16 + 8 + 4
    for error in outcomes:
        assert isinstance(error, sk.DriverError)
        assert error.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert len({id(error) for error in outcomes}) == len(outcomes)
    with pytest.raises(sk.DriverError, match="ILLEGAL_ADDRESS"):
        asyncio.run(wait_for(streams[0]))
    with pytest.raises(sk.DriverError, match="ILLEGAL_ADDRESS"):
        streams[0].then(int)
    _emulator.break_down(0)
    gate.open()
    assert streams[0].then(int).result(LONG) == 0


DISPATCHERS = {  # what the dispatcher calls -> whether the waiter is told that it failed
    "cuEventQuery": True,
    "cuThreadExchangeStreamCaptureMode": True,
    "cuStreamWaitEvent": False,
    "cuLaunchHostFunc": False,
}


@pytest.mark.parametrize("call", DISPATCHERS)
def test_a_call_of_the_dispatcher_that_fails(held, gate, call):
    """It is told to who waits, or the queue is asked by the clock; and the next wait is whole."""
    warm_up()
    stream, told = held(), []
    event, code = stream.record(), CODES.CUDA_ERROR_LAUNCH_FAILED
    before = _emulator.calls(call)
    _emulator.fail(call, code)
    within(lambda: _watch(event, told))
    assert eventually(lambda: _emulator.calls(call) > before)
    if not DISPATCHERS[call]:
        assert not told
        gate.open()
    assert eventually(lambda: told)
    assert [error and error.name for error in told] == [code.name if DISPATCHERS[call] else None]
    gate.open()
    assert stream.then(int).result(LONG) == 0


def _watch(event, told):
    point = _dispatch.Point(event.handle, event, event, 0, told.append)
    assert _dispatch.watch(point)


@pytest.mark.parametrize(
    "call", ["cuEventQuery", "cuStreamWaitEvent", "cuLaunchHostFunc", "cuStreamCreateWithPriority"]
)
def test_where_every_call_of_a_kind_fails_nobody_hangs(held, gate, monkeypatch, call):
    real = getattr(_driver._library.cu, call)

    answers = (None,) if "Create" in call else ()

    def fail(*arguments):
        if threading.current_thread().name == "streamkit-dispatcher":
            return (CODES.CUDA_ERROR_OUT_OF_MEMORY, *answers)
        return real(*arguments)

    stream = held()
    monkeypatch.setattr(_driver._library.cu, call, fail)
    monkeypatch.setattr(_dispatch, "_dispatcher", None)  # one without lanes
    if call == "cuLaunchHostFunc":
        monkeypatch.setattr(_driver, "_launch_host", lambda: lambda *arguments: 2)
    future = stream.then(int)
    if call == "cuEventQuery":
        assert isinstance(future.exception(LONG), sk.DriverError)
    else:
        assert not future.done()
        gate.open()
        assert future.result(LONG) == 0


def test_an_error_of_streamkits_own_in_the_dispatcher_hangs_nobody(held, monkeypatch):
    def fail(self):
        raise MemoryError

    stream = held()
    warm_up()
    monkeypatch.setattr(_dispatch._Dispatcher, "_look", fail)
    with pytest.raises(MemoryError):
        stream.then(int).result(LONG)
    monkeypatch.undo()
    warm_up()


# -- beside others ----------------------------------------------------------------------------


MODES = pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread_local", "relaxed"])


@contextlib.contextmanager
def capturing(mode):
    raw = make_stream()
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(mode)))
    try:
        yield raw
        assert int(check(driver.cuStreamIsCapturing(raw))) == ACTIVE
    finally:
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
        destroy_stream(raw)


@MODES
def test_waiting_disturbs_nobodys_capture(held, gate, mode):
    stream = held()
    with capturing(mode):
        future = stream.then(lambda: driver.cuStreamQuery(stream.handle))
        event = stream.record()
        threading.Timer(0.05, gate.open).start()
        event.sync(timeout=LONG)
        stream.sync(timeout=LONG)
        asyncio.run(wait_for(stream))
        assert future.result(LONG) == (0,)


@MODES
@pytest.mark.parametrize("known", [True, False])
def test_await_and_then_of_a_capturing_stream_are_refused(mode, known):
    with capturing(mode) as raw:
        stream = sk.from_handle(raw)
        for use in (lambda: asyncio.run(wait_for(stream)), lambda: stream.then(int), stream.sync):
            with pytest.raises(sk.CaptureError):
                use()
        assert sk.new_stream().then(int).result(LONG) == 0


def test_no_python_runs_in_the_drivers_thread(held, gate):
    """The host function is called while this thread keeps the GIL to itself."""
    from streamkit._semaphore import Semaphore

    semaphore, stream = Semaphore(), held()
    library = ctypes.PyDLL(None)  # whose calls keep the GIL

    class Timespec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    _driver.call_host(stream.handle, semaphore.function, semaphore.address)
    until = Timespec(int(time.time() + LONG), 0)
    address = ctypes.c_void_p(semaphore.address)
    gate.open()
    assert library.sem_timedwait(address, ctypes.byref(until)) == 0


def test_a_user_queue_is_given_an_event_and_nothing_else(held, gate):
    stream = held()
    warm_up()
    assert eventually(lambda: not _dispatch._dispatcher._tracks)
    _emulator.reset_calls()
    future = stream.then(int)
    assert eventually(is_armed)
    calls = _emulator.all_calls()
    assert calls["cuEventRecord"] == calls["cuStreamWaitEvent"] == calls["cuLaunchHostFunc"] == 1
    gate.open()
    future.result(LONG)


# -- the process ------------------------------------------------------------------------------


def run(program, *options):
    here = os.path.dirname(__file__)  # noqa: PTH120 - a search path is text
    prelude = f"""
import sys
sys.path[:0] = [{here!r}, {os.path.join(here, "..", "gpu")!r}]
import streamkit as sk
from _raw import Gate, check, driver
check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
gate = Gate()

def hold():
    stream = sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    return stream
"""
    return subprocess.run(
        [sys.executable, *options, "-c", prelude + textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_waits_that_are_short_start_no_thread():
    done = run("""
        import asyncio, threading
        stream = sk.new_stream()
        stream.sync()
        async def main():
            await stream
        asyncio.run(main())
        event = sk.new_event()
        event.sync()
        names = [thread.name for thread in threading.enumerate() if "streamkit" in thread.name]
        print(names, "streamkit._dispatch" in sys.modules)
    """)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


@pytest.mark.parametrize("waits", ["then", "await in a thread", "sync in a thread", "callback"])
def test_the_process_ends_with_work_pending(waits):
    done = run(f"""
        import asyncio, threading, time, atexit
        waits = {waits!r}
        stream = hold()
        if waits == "then":
            future = stream.then(print, "called")
            atexit._run_exitfuncs if False else None
        elif waits == "callback":
            future = sk.new_stream().then(time.sleep, 60)
            while not future.running():
                time.sleep(0.01)
        else:
            async def main():
                await stream
            work = stream.sync if waits.startswith("sync") else lambda: asyncio.run(main())
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.1)
        gate._watchdog.cancel()
        print("end", flush=True)
        begun = time.monotonic()
        atexit.register(lambda: None)
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)


def test_at_the_end_what_is_pending_is_cancelled_and_sync_still_works():
    done = run("""
        import atexit

        def last():
            print(future.cancelled())
            try:
                stream.sync(timeout=0.01)
            except TimeoutError as error:
                print("TimeoutError")
            try:
                stream.then(int)
            except RuntimeError as error:
                print("sync()" in str(error))
            gate.open()
            stream.sync()

        atexit.register(last)  # before StreamKit's own, so it runs after that
        stream = hold()
        future = stream.then(print, "called")
    """)
    assert (done.stdout, done.stderr) == ("True\nTimeoutError\nTrue\n", "")


def test_a_forked_child_is_told_and_the_parents_waits_go_on():
    done = run("""
        import asyncio, os
        stream = hold()
        event = stream.record()
        future = stream.then(print, "called", flush=True)

        async def wait(what):
            await what

        child = os.fork()
        if child == 0:
            told = 0
            for call in (lambda: stream.then(int), lambda: asyncio.run(wait(stream)), stream.sync,
                         lambda: asyncio.run(wait(event)), event.sync):
                try:
                    call()
                except sk.ForkedProcessError:
                    told += 1
            host = sk.new_stream("cpu")
            print(told, host.then(int).result(10), flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        gate.open()
        future.result(10)
    """, "-W", "ignore")  # fmt: skip
    assert (done.stdout, done.stderr) == ("5 0\n0\ncalled\n", "")


def test_without_a_thread_sync_still_waits_and_the_others_say_so(held, gate, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    stream = held()
    monkeypatch.setattr(_dispatch, "_dispatcher", None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TimeoutError):
            stream.sync(timeout=0.01)
        for use in (lambda: asyncio.run(wait_for(stream)), lambda: stream.then(int)):
            with pytest.raises(RuntimeError, match="no thread"):
                use()
    opener = threading.Timer(0.02, gate.open)
    opener.start()
    stream.sync()


def test_a_destructor_in_the_dispatchers_thread_may_sync(held, gate):
    """It must not wait for its own thread."""
    stream, other, seen = held(), held(), []

    class Dies:
        def __del__(self):
            seen.append(threading.current_thread().name)
            try:
                other.sync(timeout=0.05)
            except TimeoutError:
                seen.append("in time")

    event = stream.record()
    point = _dispatch.Point(event.handle, Dies(), event, 0, lambda error: None)
    _dispatch.watch(point)
    del point
    assert eventually(is_armed)
    _emulator.fail("cuEventQuery", CODES.CUDA_ERROR_UNKNOWN)
    assert eventually(lambda: len(seen) == 2), seen
    assert seen == ["streamkit-dispatcher", "in time"]
    gate.open()
