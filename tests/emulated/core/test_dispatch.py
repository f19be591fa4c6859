"""The dispatcher: errors, captures beside it, forks, the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections import Counter

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import driver as driver_module  # its calls are made to fail
from streamkit._cuda import events  # its calls are made to fail
from streamkit._queues import (  # their lists and limits
    dispatcher,
    lifetime,  # its events wait to be used again
    ordering,
    points,
    waits,
)
from streamkit._streams import host_queue  # who is busy now
from support.emulated.state_snapshot import drop_spare_events
from support.emulated.waits import Told, is_idle, wait_for, warm_up
from support.gpu.raw import check, destroy_stream, driver, make_stream
from support.queues import LONG, eventually, within

pytestmark = pytest.mark.usefixtures("handles")

CODES = driver.CUresult
ACTIVE = 1


# -- errors -----------------------------------------------------------------------------------


def test_an_error_of_an_event_reaches_all_that_wait_for_its_queue(held, gate, monkeypatch):
    """Also where nothing else fails: the first is not the only one to be told."""
    warm_up()
    stream = held()

    def fails(event):
        raise sk.errors.DriverError("cuEventQuery", "CUDA_ERROR_ILLEGAL_ADDRESS", 700)

    async def main():
        tasks = [asyncio.create_task(wait_for(stream)) for _ in range(4)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        with monkeypatch.context() as patched:  # not for the ends of what the fixtures hold
            patched.setattr(events, "query", fails)
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)

    found = asyncio.run(main())
    assert [error.name for error in found] == ["CUDA_ERROR_ILLEGAL_ADDRESS"] * 4
    assert gate.closed


def test_an_error_on_the_device_reaches_every_waiter(held, gate):
    """And each has one of its own."""
    streams = [held() for _ in range(8)]
    marks = [stream.record() for stream in streams]
    outcomes, threads = [], []

    def sync(what):
        try:
            what.sync(timeout=LONG)
        except sk.errors.DriverError as error:
            outcomes.append(error)

    async def main():
        tasks = [asyncio.create_task(wait_for(what)) for what in (*streams, *marks)]
        futures = [stream.then(int) for stream in streams]
        threads.extend(threading.Thread(target=sync, args=(what,)) for what in streams[:4])
        for thread in threads:
            thread.start()
        await asyncio.sleep(0.05)
        emulator.break_down(CODES.CUDA_ERROR_ILLEGAL_ADDRESS)
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)
        return found + [future.exception(LONG) for future in futures]

    outcomes += asyncio.run(main())
    for thread in threads:
        thread.join(LONG)
    assert len(outcomes) == 16 + 8 + 4
    for error in outcomes:
        assert isinstance(error, sk.errors.DriverError)
        assert error.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert len({id(error) for error in outcomes}) == len(outcomes)
    with pytest.raises(sk.errors.DriverError, match="ILLEGAL_ADDRESS"):
        asyncio.run(wait_for(streams[0]))
    with pytest.raises(sk.errors.DriverError, match="ILLEGAL_ADDRESS"):
        streams[0].then(int)
    emulator.break_down(0)
    gate.open()
    assert streams[0].then(int).result(LONG) == 0


WAYS = {
    "await": lambda stream: asyncio.run(wait_for(stream)),
    "then": lambda stream: stream.then(int),
    "sync": lambda stream: stream.sync(),
    "sync of an event": lambda stream: stream.record().sync(),
}
CALLERS = {  # what the caller itself calls
    "await": (
        "cuStreamIsCapturing", "cuStreamQuery", "cuThreadExchangeStreamCaptureMode",
        "cuEventRecord", "cuEventQuery",
    ),
    "then": ("cuStreamIsCapturing", "cuEventRecord"),
    "sync": ("cuStreamIsCapturing", "cuStreamQuery", "cuEventRecord", "cuEventQuery"),
    "sync of an event": ("cuEventQuery",),
}  # fmt: skip


def events_alive():
    """But for those that wait to be used again."""
    gc.collect()
    drop_spare_events()
    return emulator.live("events")


@pytest.mark.parametrize(("way", "call"), [(way, call) for way in WAYS for call in CALLERS[way]])
def test_a_call_of_the_caller_that_fails(held, gate, way, call):
    """It raises, nothing is left behind, and the next try is whole."""
    warm_up()
    stream = held()
    stream.record()
    before = events_alive()
    emulator.fail(call, CODES.CUDA_ERROR_UNKNOWN)
    with pytest.raises(sk.errors.DriverError, match="UNKNOWN") as caught:
        WAYS[way](stream)
    del caught
    assert eventually(lambda: not host_queue._working)  # those before it have just run
    assert events_alive() == before
    gate.open()
    WAYS[way](stream)
    assert stream.then(int).result(LONG) == 0


@pytest.mark.parametrize("call", ["cuEventQuery", "cuThreadExchangeStreamCaptureMode"])
def test_a_call_of_the_dispatcher_that_fails(held, gate, monkeypatch, call):
    """It is told to who waits; and the next wait is whole."""
    warm_up()
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # the mode is exchanged by a new one
    stream, told = held(), Told()
    event, code = stream.record(), CODES.CUDA_ERROR_LAUNCH_FAILED
    emulator.fail(call, code)
    point = points.Point(event.handle, event, None)
    assert within(lambda: dispatcher.watch(point, told, None))
    assert eventually(lambda: told.errors)
    assert [error.name for error in told.errors] == [code.name]
    gate.open()
    assert stream.then(int).result(LONG) == 0


def test_an_error_of_streamkits_own_in_the_dispatcher_hangs_nobody(held, monkeypatch):
    def fail(self):
        raise MemoryError

    stream = held()
    warm_up()
    monkeypatch.setattr(dispatcher._Dispatcher, "_look", fail)
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
@pytest.mark.parametrize("known", [True, False])
def test_await_and_then_of_a_capturing_stream_are_refused(mode, known):
    with capturing(mode) as raw:
        stream = sk.from_handle(raw)
        for use in (lambda: asyncio.run(wait_for(stream)), lambda: stream.then(int), stream.sync):
            with pytest.raises(sk.errors.CaptureError):
                use()
        assert sk.new_stream().then(int).result(LONG) == 0


@pytest.mark.parametrize("way", ["await", "then", "sync"])
def test_a_capture_that_begins_just_before_the_record_is_seen(held, gate, monkeypatch, way):
    """The event is the capture's then, and nobody would ever be told."""
    mark, stream = ordering.mark, held()

    def begin_and_mark(event, queue):
        check(driver.cuStreamBeginCapture(queue.handle, driver.CUstreamCaptureMode(2)))
        mark(event, queue)

    with monkeypatch.context() as patch:
        patch.setattr(ordering, "mark", begin_and_mark)
        with pytest.raises(sk.errors.CaptureError):
            WAYS[way](stream)
    assert eventually(lambda: not host_queue._working)  # those before it have just run
    assert int(check(driver.cuStreamIsCapturing(stream.handle))) == ACTIVE
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    gate.open()
    WAYS[way](stream)


def refuse(self):
    raise RuntimeError("can't start new thread")


# -- without a dispatcher ---------------------------------------------------------------------


def test_without_a_thread_sync_still_waits_and_the_others_say_so(held, gate, monkeypatch):
    stream = held()
    monkeypatch.setattr(dispatcher, "_dispatcher", None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TimeoutError):
            stream.sync(timeout=0.01)
        for use in (lambda: asyncio.run(wait_for(stream)), lambda: stream.then(int)):
            with pytest.raises(RuntimeError, match="cannot start the thread"):
                use()
    opener = threading.Timer(0.02, gate.open)
    opener.start()
    stream.sync()


def test_a_function_without_a_thread_is_not_called_and_holds_up_no_other(held, gate, monkeypatch):
    """Without one of its own it is refused at once; without the dispatcher the future says it."""
    stream, seen = held(), []
    with monkeypatch.context() as patch:
        patch.setattr(host_queue.Worker, "start", refuse)
        with pytest.raises(RuntimeError, match="cannot start the thread"):
            stream.then(seen.append, 1)
        patch.undo()
        patch.setattr(dispatcher, "watch", lambda *arguments: False)
        assert "cannot start the thread" in str(stream.then(seen.append, 2).exception(LONG))
    gate.open()
    assert stream.then(int).result(LONG) == 0
    assert seen == []
    assert eventually(is_idle)  # else the end of the program would wait for the first ones


def test_functions_count_as_held_only_while_the_gpu_is_waited_for(held, gate, monkeypatch):
    """Or the program's end, which gives the GPU a second, drops them where the GPU is done."""
    stream, seen, query = held(), [], events.query
    future = stream.then(int)
    calls = stream._live().calls
    assert eventually(calls.held)
    gate.open()
    future.result(LONG)

    def look(event):
        if calls.thread == threading.get_ident():
            seen.append(within(calls.held))  # as another thread asks
        return query(event)

    monkeypatch.setattr(events, "query", look)
    stream.then(int).result(LONG)
    assert seen
    assert not any(seen)


def test_a_destructor_in_the_dispatchers_thread_may_sync_and_use_then(held, gate, monkeypatch):
    """But not await, nor ask for the result: it would wait for its own thread."""
    monkeypatch.setattr(waits, "LOOK", 0)
    warm_up()
    stream, other, seen = held(), held(), []

    class Dies:
        def __del__(self):
            seen.append(threading.current_thread().name)
            try:
                asyncio.run(wait_for(other))
            except RuntimeError as error:
                seen.append("sync()" in str(error))
            future = other.then(seen.append, "then")
            for ask in (future.result, future.exception, lambda: future.result(timeout=LONG)):
                try:
                    ask()
                except RuntimeError as error:
                    seen.append("Sync the stream" in str(error))
            threading.Timer(0.05, gate.open).start()
            other.sync(timeout=LONG)
            seen.append("in time")

    event = stream.record()
    point = points.Point(event.handle, (event, Dies()), None)
    dispatcher.watch(point, Told(), None)
    del point
    assert eventually(lambda: dispatcher._dispatcher.tracks)
    emulator.fail("cuEventQuery", CODES.CUDA_ERROR_UNKNOWN)
    assert eventually(lambda: len(seen) == 7, seconds=LONG / 2), seen
    assert seen == ["streamkit-dispatcher", True, True, True, True, "in time", "then"]


# -- what it costs ----------------------------------------------------------------------------


def test_a_user_queue_is_given_an_event_and_nothing_else(held, gate, monkeypatch):
    """In the steady state ``then`` asks whether the queue captures, before and after the record."""
    warm_up()
    stream, asked = held(), Counter()
    assert lifetime._spare_events[stream.context]  # of the function that was called before
    caller, cu = threading.get_ident(), driver_module.loader.cu

    class Counted:
        def __getattr__(self, name):
            if threading.get_ident() == caller:
                asked[name] += 1
            return getattr(cu, name)

    monkeypatch.setattr(driver_module.loader, "cu", Counted())
    emulator.reset_calls()
    future = stream.then(int)
    monkeypatch.undo()
    assert asked.keys() <= {"cuEventRecord"}  # which cuda.core makes itself for an event of its own
    assert (emulator.calls("cuEventRecord"), emulator.calls("cuStreamIsCapturing")) == (1, 2)
    assert eventually(lambda: emulator.calls("cuEventQuery") > 3)
    for call in ("cuStreamCreateWithPriority", "cuLaunchHostFunc", "cuStreamWaitEvent"):
        assert emulator.calls(call) == 0
    gate.open()
    assert future.result(LONG) == 0


class Clock:
    """A time that passes only as the test has it."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self.query_takes = 0.0
        self.queries = 0
        self.reached = set()
        for name in ("monotonic", "thread_time"):
            monkeypatch.setattr(dispatcher, name, lambda: self.now)
        monkeypatch.setattr(events, "query", self.query)

    def query(self, event):
        self.now += self.query_takes
        self.queries += 1
        return event in self.reached


class Watcher:
    """A dispatcher whose thread is the test's."""

    def __init__(self):
        self._dispatcher = dispatcher._Dispatcher()

    def watch(self, event, queue=None, told=None):
        point, told = points.Point(event, None, queue), told or Told()
        point.listener = told
        self._dispatcher.add(point)
        self._dispatcher._list()
        return told

    def look(self):
        self._dispatcher._look()

    @property
    def next(self):
        return self._dispatcher._next


def test_naps_grow_with_the_youngest_wait_and_stay_below_ten_milliseconds(monkeypatch):
    clock, watcher = Clock(monkeypatch), Watcher()
    watcher.watch(1)
    assert watcher.next - clock.now == pytest.approx(50e-6)
    for age, nap in ((0.005, 50e-6), (0.032, 100e-6), (0.64, 0.002), (4, 0.01), (3600, 0.01)):
        clock.now = 1000 + age
        watcher.look()
        assert watcher.next - clock.now == pytest.approx(nap), age
    watcher.watch(2)
    assert watcher.next - clock.now == pytest.approx(50e-6)  # a new one is asked for soon
    watcher.look()
    assert watcher.next - clock.now == pytest.approx(50e-6)


def test_a_queue_that_has_moved_is_asked_soon_again(monkeypatch):
    clock, watcher, queue = Clock(monkeypatch), Watcher(), object()
    first, second = watcher.watch(1, queue), watcher.watch(2, queue)
    clock.now += 10
    watcher.look()
    assert watcher.next - clock.now == pytest.approx(0.01)
    clock.reached.add(1)
    watcher.look()
    assert (first.errors, second.errors) == ([None], [])
    assert watcher.next - clock.now == pytest.approx(50e-6)
    clock.reached.add(2)
    watcher.look()
    assert second.errors == [None]
    assert watcher.next == float("inf")


def test_a_clock_that_stands_still_since_the_import_stops_nothing(gate, monkeypatch):
    """As a test suite freezes it."""
    stream = sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    future = stream.then(lambda: 7)
    gate.open()
    assert within(lambda: future.result(10)) == 7


def test_a_nap_of_next_to_nothing_ends():
    """With ``SimpleQueue.get(timeout=...)`` it went on for ever, if a ring had come just late."""
    sleeper = dispatcher._Dispatcher()

    def nap():
        for rings in [False, True, False] * 2000:
            if rings:
                sleeper.bell.ring()
            sleeper._next = dispatcher.monotonic() + 2e-6
            sleeper._nap()

    within(nap)


def test_two_threads_may_ring_at_once():
    """Each has seen that the bell does not ring, and rings it; so does the end of the process."""
    sleeper = dispatcher._Dispatcher()
    for _ in range(2):
        sleeper.bell.ring()
    within(sleeper._nap)  # it has no end of its own


def test_who_waits_is_woken_now_and_then_until_it_is_told(monkeypatch):
    clock, watcher, queue = Clock(monkeypatch), Watcher(), object()
    told, behind = watcher.watch(1, queue), watcher.watch(2, queue)
    for _ in range(10):
        clock.now += 0.1e-3
        watcher.look()
    assert (told.stirs, behind.stirs) == (4, 0)
    clock.reached.add(1)
    clock.now += 0.1e-3
    watcher.look()
    clock.now += 1e-3
    watcher.look()
    assert (told.stirs, told.errors) == (4, [None])
    assert behind.stirs > 0


def test_looks_take_a_tenth_of_a_core_however_many_queues_there_are(monkeypatch):
    clock, watcher = Clock(monkeypatch), Watcher()
    clock.query_takes = 0.001
    for number in range(100):
        watcher.watch(number)
    for _ in range(2):
        watcher.look()
    assert watcher.next - clock.now == pytest.approx(0.8)
    watcher.watch(1000)
    assert watcher.next - clock.now == pytest.approx(0.8)


def test_one_look_that_is_slow_makes_nobody_wait(monkeypatch):
    """A collection of garbage can run in it, and take a second."""
    clock, watcher = Clock(monkeypatch), Watcher()
    watcher.watch(1)
    for takes in (1e-6, 1, 1e-6, 1):
        clock.query_takes = takes
        watcher.look()
        assert watcher.next - clock.now <= dispatcher._LONGEST


def test_waits_for_many_queues_that_are_given_up_leave_little(held, gate):
    warm_up()
    stream, before = held(), emulator.live("events")
    for _ in range(3 * dispatcher._MANY):
        point = points.Point((event := stream.record()).handle, event, object())
        assert dispatcher.watch(point, Told(), None)
        point.drop()
    del point, event
    assert eventually(is_idle)
    assert emulator.live("events") == before
    gate.open()
