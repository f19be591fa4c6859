"""The dispatcher: errors, captures beside it, forks, the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import threading
import time

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import driver as driver_module  # its calls are made to fail
from streamkit._cuda import events  # its calls are made to fail
from streamkit._waiting import callbacks, dispatcher, side_streams, waits  # its lists, limits
from streamkit._waiting.side_streams import Semaphore, SideStreams  # tried without a dispatcher
from support.emulated.waits import (
    Later,
    a_stream,
    an_event,
    is_armed,
    is_idle,
    sleeps,
    wait_for,
    warm_up,
)
from support.gpu.raw import busy, check, destroy_stream, driver, make_stream
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
        raise sk.DriverError("cuEventQuery", "CUDA_ERROR_ILLEGAL_ADDRESS", 700)

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
    """And each has one of its own. Nothing is posted after an error: only asking tells."""
    streams = [held() for _ in range(8)]
    marks = [stream.record() for stream in streams]
    outcomes, threads = [], []

    def sync(what):
        try:
            what.sync(timeout=LONG)
        except sk.DriverError as error:
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
        assert isinstance(error, sk.DriverError)
        assert error.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert len({id(error) for error in outcomes}) == len(outcomes)
    with pytest.raises(sk.DriverError, match="ILLEGAL_ADDRESS"):
        asyncio.run(wait_for(streams[0]))
    with pytest.raises(sk.DriverError, match="ILLEGAL_ADDRESS"):
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
        "cuStreamIsCapturing", "cuStreamQuery", "cuThreadExchangeStreamCaptureMode", "cuEventRecord"
    ),
    "then": ("cuStreamIsCapturing", "cuEventRecord"),
    "sync": ("cuStreamIsCapturing", "cuStreamQuery", "cuEventRecord"),
    "sync of an event": ("cuEventQuery",),
}  # fmt: skip


@pytest.mark.parametrize(("way", "call"), [(way, call) for way in WAYS for call in CALLERS[way]])
def test_a_call_of_the_caller_that_fails(held, gate, way, call):
    """It raises, nothing is left behind, and the next try is whole."""
    warm_up()
    stream = held()
    stream.record()
    gc.collect()
    before = emulator.live("events")
    emulator.fail(call, CODES.CUDA_ERROR_UNKNOWN)
    with pytest.raises(sk.DriverError, match="UNKNOWN") as caught:
        WAYS[way](stream)
    del caught
    gc.collect()
    assert eventually(lambda: not callbacks._pending)  # those before it have just run
    assert emulator.live("events") == before
    gate.open()
    WAYS[way](stream)
    assert stream.then(int).result(LONG) == 0


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
    before = emulator.calls(call)
    emulator.fail(call, code)
    within(lambda: _watch(event, told))
    assert eventually(lambda: emulator.calls(call) > before)
    if not DISPATCHERS[call]:
        assert not told
        gate.open()
    assert eventually(lambda: told)
    assert [error and error.name for error in told] == [code.name if DISPATCHERS[call] else None]
    gate.open()
    assert stream.then(int).result(LONG) == 0


def _watch(event, told):
    point = dispatcher.Point(event.handle, event, event, 0, told.append)
    assert dispatcher.watch(point)


@pytest.mark.parametrize(
    "call", ["cuEventQuery", "cuStreamWaitEvent", "cuLaunchHostFunc", "cuStreamCreateWithPriority"]
)
def test_where_every_call_of_a_kind_fails_nobody_hangs(held, gate, monkeypatch, call):
    real = getattr(driver_module.loader.cu, call)

    answers = (None,) if "Create" in call else ()

    def fail(*arguments):
        if threading.current_thread().name == "streamkit-dispatcher":
            return (CODES.CUDA_ERROR_OUT_OF_MEMORY, *answers)
        return real(*arguments)

    stream = held()
    monkeypatch.setattr(driver_module.loader.cu, call, fail)
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # one without side streams
    if call == "cuLaunchHostFunc":
        monkeypatch.setattr(events, "_launch_host", lambda: lambda *arguments: 2)
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
            with pytest.raises(sk.CaptureError):
                use()
        assert sk.new_stream().then(int).result(LONG) == 0


@pytest.mark.parametrize("way", ["await", "then", "sync"])
def test_a_capture_that_begins_just_before_the_record_is_seen(held, gate, monkeypatch, way):
    """The event is the capture's then, and nobody would ever be told."""
    record, stream = events.record, held()

    def begin_and_record(event, handle, **options):
        check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(2)))
        record(event, handle, **options)

    with monkeypatch.context() as patch:
        patch.setattr(events, "record", begin_and_record)
        with pytest.raises(sk.CaptureError):
            WAYS[way](stream)
    assert eventually(lambda: not callbacks._pending)  # those before it have just run
    assert int(check(driver.cuStreamIsCapturing(stream.handle))) == ACTIVE
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    gate.open()
    WAYS[way](stream)


def test_a_user_queue_is_given_an_event_and_nothing_else(held, gate):
    stream = held()
    warm_up()
    emulator.reset_calls()
    future = stream.then(int)
    assert eventually(is_armed)
    calls = emulator.all_calls()
    assert calls["cuEventRecord"] == calls["cuStreamWaitEvent"] == calls["cuLaunchHostFunc"] == 1
    gate.open()
    future.result(LONG)


# -- without a dispatcher ---------------------------------------------------------------------


def test_without_a_thread_sync_still_waits_and_the_others_say_so(held, gate, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    stream = held()
    monkeypatch.setattr(dispatcher, "_dispatcher", None)
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


def test_a_destructor_in_the_dispatchers_thread_may_sync(held, gate, monkeypatch):
    """It must not wait for its own thread."""
    monkeypatch.setattr(waits, "LOOK", 0)
    warm_up()
    stream, other, seen = held(), held(), []

    class Dies:
        def __del__(self):
            seen.append(threading.current_thread().name)
            threading.Timer(0.05, gate.open).start()
            other.sync(timeout=LONG)
            seen.append("in time")

    event = stream.record()
    point = dispatcher.Point(event.handle, Dies(), event, 0, lambda error: None)
    dispatcher.watch(point)
    del point
    assert eventually(is_armed)
    emulator.fail("cuEventQuery", CODES.CUDA_ERROR_UNKNOWN)
    assert eventually(lambda: len(seen) == 2, seconds=LONG / 2), seen
    assert seen == ["streamkit-dispatcher", "in time"]


# -- its parts --------------------------------------------------------------------------------


def test_failures_lose_no_side_stream(held, gate, monkeypatch):
    """One that failed may wait for the event already, and serves no other before that."""
    stream = held()
    event, reached = stream.record(), sk.new_stream().record()
    pool = SideStreams(Semaphore())
    assert pool.arm(event.handle, 0) == 0
    pool.make()
    with monkeypatch.context() as patch:
        patch.setattr(events, "_launch_host", lambda: lambda *arguments: 2)
        assert not any(pool.arm(event.handle, 0) for _ in range(3 * side_streams.PER_DEVICE))
    pool.recover()
    assert pool.arm(reached.handle, 0) == 0
    gate.open()
    stream.sync(timeout=LONG)
    assert eventually(lambda: pool.recover() or not pool._aside)
    found = [pool.arm(reached.handle, 0) for _ in range(side_streams.PER_DEVICE + 1)]
    assert found[-1] == 0
    assert len({one for one in found if one}) == side_streams.PER_DEVICE
    for one in found[:-1]:
        check(driver.cuStreamSynchronize(one))
        check(driver.cuStreamDestroy(one))


@pytest.mark.parametrize(
    "call", ["cuEventQuery", "cuThreadExchangeStreamCaptureMode", "cuLaunchHostFunc"]
)
def test_after_a_failure_no_side_stream_serves_that_still_waits(held, gate, call):
    """It would wake another queue's waiter when the first one moves, and not before."""
    warm_up()
    stream, told = held(), []
    event, pool = stream.record(), dispatcher._dispatcher._side_streams
    before = emulator.calls(call)
    if call == "cuLaunchHostFunc":
        emulator.fail(call, CODES.CUDA_ERROR_UNKNOWN)
        _watch(event, told)
    else:
        _watch(event, told)
        assert eventually(is_armed)
        emulator.fail(call, CODES.CUDA_ERROR_UNKNOWN)
    assert eventually(lambda: emulator.calls(call) > before and pool._aside)
    assert pool._free[0]
    assert eventually(lambda: not any(busy(one) for one in list(pool._free[0])))  # posts are over
    gate.open()
    assert eventually(lambda: told)
    assert eventually(lambda: stream.then(int).result(LONG) == 0 and is_idle() and not pool._aside)
    assert len(set(pool._free[0])) == side_streams.PER_DEVICE


def test_the_events_of_one_stuck_queue_leave_side_streams_to_others(held, gate):
    async def main():
        stuck, quick = held(), sk.new_stream(nonblocking=True)
        tasks = [
            asyncio.create_task(wait_for(stuck.record())) for _ in range(side_streams.PER_DEVICE)
        ]
        await asyncio.sleep(0)
        found = dispatcher._dispatcher
        assert eventually(lambda: len(found._tracks) == len(tasks) and sleeps(found))
        with contextlib.closing(Later()) as later:
            later.hold(quick)
            task = asyncio.create_task(wait_for(quick))
            await asyncio.sleep(0)
            assert eventually(lambda: quick._queue in found._tracks and sleeps(found))
            assert found._tracks[quick._queue].stream
            later.open()
            await asyncio.wait_for(task, LONG)
            assert not any(one.done() for one in tasks)
            gate.open()
            await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    warm_up()
    asyncio.run(main())


def test_no_stream_is_made_while_an_awaited_queue_is_held(held, gate, monkeypatch):
    """Beside many busy streams the driver would block that, and every other thread's calls."""
    stream, other = held(), sk.new_stream()
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # one without side streams
    emulator.reset_calls()
    future = stream.then(int)
    assert eventually(lambda: time.monotonic() - _oldest() > dispatcher._LATELY)
    for _ in range(2 * dispatcher._MANY):
        assert other.then(int).result(LONG) == 0
    with pytest.raises(TimeoutError):
        stream.sync(timeout=0.05)
    assert emulator.calls("cuStreamCreateWithPriority") == 0
    gate.open()
    assert future.result(LONG) == 0
    assert eventually(is_idle)
    with contextlib.closing(Later()) as later:
        later.hold(other)
        futures = [other.then(int) for _ in range(3)]
        assert eventually(is_armed)
    assert [future.result(LONG) for future in futures] == [0] * 3
    assert emulator.calls("cuStreamCreateWithPriority") == side_streams.PER_DEVICE


@pytest.mark.parametrize("of", [a_stream, an_event], ids=["stream", "event"])
def test_nor_while_a_queue_is_held_whose_wait_was_given_up(held, gate, monkeypatch, of):
    stuck, other = of(held()), sk.new_stream()
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # one without side streams
    emulator.reset_calls()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            stuck.sync(timeout=0.01)
        assert eventually(lambda: not dispatcher._dispatcher._tracks)
    found = dispatcher._dispatcher
    with contextlib.closing(Later()) as first, contextlib.closing(Later()) as second:
        first.hold(other)
        future = other.then(int)
        assert eventually(lambda: found._side_streams.wanted)
        first.open()
        assert future.result(LONG) == 0
        assert eventually(lambda: sleeps(found) and not found._tracks)
        assert gate.closed
        assert emulator.calls("cuStreamCreateWithPriority") == 0
        gate.open()
        stuck.sync()
        for _ in range(2 * dispatcher._MANY):
            assert other.then(int).result(LONG) == 0
        second.hold(other)
        future = other.then(int)
        assert eventually(lambda: found._tracks)
        second.open()
        assert future.result(LONG) == 0
    assert eventually(is_idle)
    assert emulator.calls("cuStreamCreateWithPriority") == side_streams.PER_DEVICE
    assert not found._given_up


def test_waits_for_many_queues_that_are_given_up_leave_little(held, gate, monkeypatch):
    stream, queues = held(), [object() for _ in range(3 * dispatcher._MANY)]
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # one without side streams
    before = emulator.live("events")
    for queue in queues:
        point = dispatcher.Point((event := stream.record()).handle, event, queue, 0, print)
        point.drop()
        assert dispatcher.watch(point)
    del point, event
    found = dispatcher._dispatcher
    assert eventually(lambda: sleeps(found) and not found._tracks)
    assert emulator.live("events") - before <= dispatcher._MANY
    gate.open()


def _oldest():
    """Since when the first point of all is waited for."""
    tracks = list(dispatcher._dispatcher._tracks.values())
    return min((track.points[0].since for track in tracks), default=time.monotonic())


def test_side_streams_are_made_although_something_is_always_waited_for(monkeypatch):
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # one without side streams
    streams = itertools.cycle([sk.new_stream(nonblocking=True) for _ in range(2)])
    with contextlib.ExitStack() as closing:

        def wait_for_another():
            gate, stream = closing.enter_context(contextlib.closing(Later())), next(streams)
            gate.hold(stream)
            future, tracks = stream.then(int), dispatcher._dispatcher._tracks
            # not an older point's track, which may just be on its way out
            assert eventually(lambda: (track := tracks.get(stream._queue)) and track.points)
            return gate, future

        gate, future = wait_for_another()
        found, end = dispatcher._dispatcher, time.monotonic() + LONG
        while not found._side_streams._free and time.monotonic() < end:
            earlier, (gate, future) = (gate, future), wait_for_another()
            earlier[0].open()
            assert earlier[1].result(LONG) == 0
        assert found._side_streams._free
        assert not future.done()
        gate.open()
        assert future.result(LONG) == 0


def test_side_streams_are_made_beside_captures(monkeypatch):
    """Whether CUDA counts that among what breaks a capture of another thread is not documented."""
    create, modes = driver_module.create_private_stream, []

    def note_and_create(*arguments, **options):
        mode = check(driver.cuThreadExchangeStreamCaptureMode(relaxed))
        check(driver.cuThreadExchangeStreamCaptureMode(mode))
        modes.append(mode)
        return create(*arguments, **options)

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    monkeypatch.setattr(driver_module, "create_private_stream", note_and_create)
    monkeypatch.setattr(dispatcher, "_dispatcher", None)  # one without side streams
    before = len(driver_module.private_streams)  # which no audit shows
    warm_up()
    assert modes == [relaxed] * side_streams.PER_DEVICE
    assert len(driver_module.private_streams) == before + side_streams.PER_DEVICE


def test_posts_that_came_together_are_one():
    semaphore = Semaphore()
    for _ in range(3):
        semaphore.post()
    semaphore.wait()
    left = ctypes.c_int(-1)
    ctypes.CDLL(None).sem_getvalue(ctypes.c_void_p(semaphore.address), ctypes.byref(left))
    assert left.value == 0, "the next wait would end at once"


def test_a_wait_ends_with_its_time():
    within(lambda: Semaphore().wait(0.01))
