"""What a CUDA stream keeps alive: until when, beside threads and captures, and at what cost."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import driver as driver_module  # a capture's own mode
from streamkit._queues import keepalive, ordering  # what is kept must not grow
from support.emulated.processes import run
from support.emulated.state_snapshot import drop_spare_events
from support.emulated.waits import wait_for
from support.garbage import no_collections
from support.gpu.raw import (
    Gate,
    another_context,
    check,
    destroy_stream,
    driver,
    make_stream,
    sync,
)
from support.interrupts import at_call, interrupt_everywhere, interrupted
from support.keepalive import Thing, array, capsule, stays_until, thing
from support.libraries import need
from support.queues import eventually, together, within

pytestmark = pytest.mark.usefixtures("handles", "collected_by_hand")


@pytest.fixture
def collected_by_hand():
    """A collection lets go of what has passed, and asks the driver: none comes by itself here."""
    with no_collections():
        yield


THREAD_LOCAL = driver.CUstreamCaptureMode(1)


def warp_array():
    warp = need("warp")
    warp.init()
    made = warp.array(ptr=4096, dtype=float, shape=4, device="cuda:0")
    return made, weakref.ref(made)


def numba_array():
    made = need("numba").device_array(4)
    return made, weakref.ref(made)


def kinds(gate):
    """Streams of each kind, with a raw handle that holds them."""
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream()
    for kind in (stream, other):
        yield kind, kind.handle
    yield sk.default_stream(), 1
    yield sk.default_stream(per_thread=True), 2


def keep_one(gate, stream, raw=None):
    """Have a stream that the gate holds keep a thing; return what tells whether it has gone."""
    kept, seen = thing()
    gate.hold(stream.handle if raw is None else raw)
    stream.keep(kept)
    return lambda: seen() is None


# -- how long ---------------------------------------------------------------------------------


KEPT = [(make, True) for make in (thing, array, capsule, warp_array, numba_array)]
# without numba's: its free waits for the device
NOT_KEPT = [(make, False) for make in (thing, array, capsule, warp_array)]


@pytest.mark.parametrize(("make", "kept"), KEPT + NOT_KEPT)
def test_it_lives_until_the_work_before_has_run(gate, make, kept):
    stream = sk.new_stream(nonblocking=True)
    kept_object, seen = make()
    gate.hold(stream.handle)
    if kept:
        stream.keep(kept_object)
    del kept_object
    gc.collect()
    assert (seen() is not None) is kept
    gate.open()
    stream.sync()
    assert seen() is None


@pytest.mark.parametrize(
    "wait",
    [lambda stream: stream.sync(), lambda stream: asyncio.run(wait_for(stream))],
    ids=["sync", "await"],
)
def test_a_wait_that_was_needed_lets_go(gate, wait):
    stream = sk.new_stream(nonblocking=True)
    gone = keep_one(gate, stream)
    emulator.reset_calls()

    def open_later():
        assert eventually(lambda: emulator.calls("cuEventRecord") == 1)  # the wait's: it goes on
        gate.open()

    opener = threading.Thread(target=open_later)
    opener.start()
    wait(stream)
    opener.join()
    assert gone()


@pytest.mark.parametrize("number", range(4))
def test_on_every_kind_of_stream(gate, number):
    stream, raw = list(kinds(gate))[number]
    stays_until(gate, stream.sync, keep_one(gate, stream, raw))


def test_in_another_context(gate):
    with another_context():
        raw = make_stream()
        stream = sk.from_handle(raw)
        stays_until(gate, stream.sync, keep_one(gate, stream, raw))
        del stream
        destroy_stream(raw)
        gc.collect()


def test_on_a_default_stream_of_the_other_device(gate):
    stream, holder = sk.default_stream(1), sk.new_stream(0, nonblocking=True)
    stream.keep(1)  # from here on there is an event that serves its context
    stream.sync()
    gate.hold(holder.handle)
    stream.wait(holder)
    kept, seen = thing()
    stream.keep(kept)
    del kept
    stays_until(gate, stream.sync, lambda: seen() is None)


def test_later_work_is_not_waited_for(gate):
    stream, later = sk.new_stream(nonblocking=True), Gate()
    kept, seen = thing()
    gate.hold(stream.handle)
    stream.keep(kept)
    event = stream.record()
    later.hold(stream.handle)
    del kept
    gate.open()
    event.sync()
    stream.keep()
    assert seen() is None
    later.free()


def sync_and_collect():
    check(driver.cuCtxSynchronize())
    gc.collect()


@pytest.mark.parametrize("end", ["close", "forget"])
def test_it_outlives_a_stream_that_is_given_up(gate, end):
    stream = sk.new_stream(nonblocking=True)
    gone = keep_one(gate, stream, stream._queue.handle)  # not .handle: then it would be parked
    if end == "close":
        stream.close()
    del stream
    stays_until(gate, sync_and_collect, gone)


def test_it_outlives_the_owner_of_the_stream(gate):
    class Owner:
        def __init__(self):
            self.handle = make_stream()

        def __cuda_stream__(self):
            return 0, self.handle

        def __del__(self):
            destroy_stream(self.handle)

    stream = sk.wrap(Owner())
    gone = keep_one(gate, stream)
    del stream
    stays_until(gate, sync_and_collect, gone)


# -- who lets it go ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda stream: stream.done,
        lambda stream: stream.keep(),
        lambda stream: sk.new_stream().done,
        lambda stream: sk.new_stream(),
        lambda stream: sk.new_stream().close(),
        lambda stream: gc.collect(),
    ],
)
def test_any_of_these_lets_it_go(gate, look):
    stream = sk.new_stream(nonblocking=True)
    gone = keep_one(gate, stream)
    look(stream)
    assert not gone()
    gate.open()
    sync(stream.handle)
    look(stream)
    assert gone()


def test_a_collection_in_the_middle_takes_nothing_else(gate, monkeypatch):
    """As if another thread had dropped the oldest between the question and the drop."""
    stream = sk.new_stream(nonblocking=True)
    passed, held = thing(), thing()
    stream.keep(passed[0])
    event = stream.record()
    gate.hold(stream.handle)
    stream.keep(held[0])
    event.sync()
    ended, seen = passed[1], held[1]
    del passed, held
    asked = keepalive._UntilEvent.has_passed

    def has_passed(kept):
        answer = asked(kept)
        monkeypatch.undo()
        gc.collect()  # which looks too
        return answer

    monkeypatch.setattr(keepalive._UntilEvent, "has_passed", has_passed)
    sk.new_stream()
    assert ended() is None
    stays_until(gate, stream.sync, lambda: seen() is None)


def test_threads_keep_and_let_go_together():
    shared, seen = sk.new_stream(), []

    def work(_):
        stream = sk.new_stream(nonblocking=True)
        for _ in range(100):
            kept = Thing()
            seen.append(weakref.ref(kept))
            stream.keep(kept)
            shared.keep(kept)
        stream.sync()

    together(4, work)
    shared.sync()
    assert len(seen) == 400
    assert [ref for ref in seen if ref() is not None] == []


def test_another_thread_keeps_without_a_context(gate):
    stream = sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    kept, seen = thing()
    thread = threading.Thread(target=stream.keep, args=[kept])
    thread.start()
    thread.join()
    del kept, thread
    stays_until(gate, stream.sync, lambda: seen() is None)


def test_a_per_thread_stream_keeps_in_its_own_thread_only():
    stream = sk.default_stream(per_thread=True)
    with pytest.raises(sk.errors.ScopeError):
        within(lambda: stream.keep(object()))


def test_what_is_let_go_may_use_the_stream():
    stream, told = sk.new_stream(), []

    class Ends:
        def __del__(self):
            stream.keep(told)
            stream.sync()
            told.append(1)

    stream.keep(Ends())
    stream.sync()
    assert told == [1]


# -- many on a busy queue ---------------------------------------------------------------------


def passed(gate, number):
    """Return a stream that has run, which keeps so many objects, and a list of those that ended."""
    stream, ended = sk.new_stream(nonblocking=True), []

    class Ends:
        def __del__(self):
            ended.append(1)

    gate.hold(stream.handle)
    for _ in range(number):
        stream.keep(Ends())
    gate.open()
    sync(stream.handle)
    return stream, ended


@pytest.mark.parametrize("look", [lambda stream: stream.keep(), lambda stream: stream.done])
def test_no_call_lets_go_of_more_than_it_can_do_quickly(gate, look):
    stream, ended = passed(gate, 25_000)
    calls = 0
    while len(ended) < 25_000:
        before = len(ended)
        look(stream)
        calls += 1
        assert 0 < len(ended) - before <= 11_000
    assert calls > 2


def test_no_call_asks_more_than_some_of_many_queues_and_the_others_come_next(gate):
    streams = [sk.new_stream(nonblocking=True) for _ in range(100)]
    for stream in streams[:-1]:
        gate.hold(stream.handle)
        stream.keep(Thing())
    kept, seen = thing()
    streams[-1].keep(kept)
    sync(streams[-1].handle)
    del kept
    emulator.reset_calls()
    sk.new_stream()
    assert emulator.all_calls()["cuEventQuery"] <= 64
    sk.new_stream()
    assert seen() is None
    gate.open()
    check(driver.cuCtxSynchronize())
    gc.collect()


def test_a_collection_lets_go_of_all(gate):
    _, ended = passed(gate, 12_000)
    gc.collect()
    assert len(ended) == 12_000


def test_what_joins_others_lives_until_its_own_point(gate):
    stream, later = sk.new_stream(nonblocking=True), Gate()
    first, second, third = thing(), thing(), thing()
    gate.hold(stream.handle)
    stream.keep(first[0])
    stream.keep(second[0])
    event = stream.record()
    later.hold(stream.handle)
    stream.keep(third[0])  # with the second
    ended, seen, also = first[1], second[1], third[1]
    del first, second, third
    gate.open()
    event.sync()
    stream.keep()
    assert ended() is None
    assert also() is not None
    later.open()
    sync(stream.handle)
    stream.keep()
    assert seen() is also() is None
    later.free()


def test_a_queue_that_is_never_idle_holds_no_more_than_it_needs():
    stream, gates, seen = sk.new_stream(nonblocking=True), [Gate()], []
    gates[0].hold(stream.handle)
    for _ in range(50):
        event = stream.record()
        gates.append(Gate())
        gates[-1].hold(stream.handle)
        for _ in range(3):
            kept = Thing()
            seen.append(weakref.ref(kept))
            stream.keep(kept)
        gates[-2].open()
        event.sync()
    assert sum(ref() is not None for ref in seen) <= 12
    gates[-1].open()
    stream.sync()
    del kept
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []
    for one in gates:
        one.free()


def test_threads_that_keep_on_one_busy_queue_share_events_too(gate):
    stream, seen = sk.new_stream(nonblocking=True), []
    stream.keep(1)
    stream.sync()
    before = emulator.live("events")
    gate.hold(stream.handle)

    def work(_):
        for _ in range(2_000):
            kept = Thing()
            seen.append(weakref.ref(kept))
            stream.keep(kept)

    together(4, work)
    assert emulator.live("events") - before < 60
    assert all(ref() is not None for ref in seen)
    gate.open()
    sync(stream.handle)
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []


def test_a_call_in_the_middle_of_another_shares_its_event_in_the_end(gate, monkeypatch):
    """As if another thread had kept something between the look at what is there and the record."""
    stream, mark, seen = sk.new_stream(nonblocking=True), ordering.mark, []

    def keep(kept):
        seen.append(weakref.ref(kept))
        stream.keep(kept)

    def after_another(event, queue):
        monkeypatch.setattr(ordering, "mark", mark)
        keep(Thing())
        mark(event, queue)

    keep(Thing())
    stream.sync()
    before = emulator.live("events")
    gate.hold(stream.handle)
    for _ in range(100):
        monkeypatch.setattr(ordering, "mark", after_another)
        keep(Thing())
    assert emulator.live("events") - before < 10
    assert sum(ref() is not None for ref in seen) == 200
    gate.open()
    sync(stream.handle)
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []


# -- captures ---------------------------------------------------------------------------------


@pytest.fixture
def capture():
    raw = make_stream()
    check(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
    yield raw
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    destroy_stream(raw)


def test_a_capture_is_told_what_to_do_and_goes_on(capture):
    kept, seen = thing()
    emulator.reset_calls()
    with pytest.raises(sk.errors.CaptureError, match="as long as the graph"):
        sk.from_handle(capture).keep(kept)
    assert "cuEventRecord" not in emulator.all_calls()
    del kept
    assert seen() is None


@pytest.fixture
def captures_meanwhile(monkeypatch):
    """Have a capture of the queue begin when its next event is about to be recorded."""
    mark = ordering.mark

    def begun_first(event, queue):
        monkeypatch.undo()
        check(driver.cuStreamBeginCapture(queue.handle, driver.CUstreamCaptureMode(2)))
        mark(event, queue)

    return lambda: monkeypatch.setattr(ordering, "mark", begun_first)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_capture_that_begins_meanwhile_loses_nothing_that_was_kept_before(
    gate, captures_meanwhile, count
):
    stream, seen = sk.new_stream(nonblocking=True), []
    gate.hold(stream.handle)
    for _ in range(count):
        kept = Thing()
        seen.append(weakref.ref(kept))
        stream.keep(kept)
    del kept
    captures_meanwhile()
    with pytest.raises(sk.errors.CaptureError):
        stream.keep(Thing())
    gc.collect()
    assert int(check(driver.cuStreamIsCapturing(stream.handle))) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    assert all(ref() is not None for ref in seen)
    gate.open()
    sync(stream.handle)
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []


def test_a_capture_that_another_thread_begins_meanwhile_is_not_asked_about_its_event(
    captures_meanwhile,
):
    """To ask would break it, and what is kept after would stay for ever."""
    stream = sk.new_stream(nonblocking=True)
    stream.keep(1)
    stream.sync()
    captures_meanwhile()
    with pytest.raises(sk.errors.CaptureError):
        stream.keep(Thing())
    gc.collect()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    kept, seen = thing()
    stream.keep(kept)
    del kept
    stream.sync()
    assert seen() is None


def test_beside_a_capture_of_this_thread_all_goes_on(gate, capture):
    stream = sk.new_stream(nonblocking=True)
    stays_until(gate, stream.sync, keep_one(gate, stream))
    assert int(check(driver.cuStreamIsCapturing(capture))) == 1


def test_what_is_let_go_may_free_memory_beside_a_capture(gate, capture):
    class Ends:
        def __init__(self):
            self.memory = driver.cuMemAlloc(64)

        def __del__(self):
            ended.append([driver.cuMemFree(check(self.memory))])

    ended = []
    stream = sk.new_stream(nonblocking=True)
    with driver_module.beside_captures():
        memory = Ends()
    gate.hold(stream.handle)
    stream.keep(memory)
    del memory
    gate.open()
    stream.sync()
    assert [code for [(code,)] in ended] == [0]
    assert int(check(driver.cuStreamIsCapturing(capture))) == 1


# -- the cost ---------------------------------------------------------------------------------


def test_events_are_used_again():
    stream = sk.new_stream(nonblocking=True)
    stream.keep(1)
    stream.sync()
    before = emulator.live("events")
    emulator.reset_calls()
    for _ in range(10):
        stream.keep(object())
        check(driver.cuCtxSynchronize())  # a sync that waits has an event of its own
        stream.sync()
    assert emulator.live("events") == before
    calls = emulator.all_calls()
    assert calls["cuEventRecord"] == 10
    assert "cuEventCreate" not in calls
    assert "cuEventSynchronize" not in calls


@pytest.fixture
def asked_once(monkeypatch):
    """A stream that has kept something before, and asks no more by itself."""
    monkeypatch.setattr(keepalive, "_ASKED_EVERY", 3600)
    stream = sk.new_stream(nonblocking=True)
    for _ in range(3):
        stream.keep(1)
    stream.sync()  # from here on there are events to use again
    stream.keep(1)
    emulator.reset_calls()
    yield stream
    stream.sync()


def test_a_steady_keep_is_a_record_and_two_questions_about_a_capture(asked_once):
    asked_once.keep(object())
    assert emulator.all_calls() == {"cuStreamIsCapturing": 2, "cuEventRecord": 1}


def test_a_keep_without_objects_always_asks(asked_once):
    kept, seen = thing()
    asked_once.keep(kept)
    del kept
    sync(asked_once.handle)
    asked_once.keep(object())
    sync(asked_once.handle)  # what was kept shares the last event
    assert seen() is not None
    asked_once.keep()
    assert seen() is None


def test_a_loop_of_keeps_lets_go_after_a_while(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(keepalive, "monotonic", lambda: now)
    stream = sk.new_stream(nonblocking=True)
    kept, seen = thing()
    for one in (1, 2, kept, 3):  # the second asks
        stream.keep(one)
        sync(stream.handle)
    del one, kept
    assert seen() is not None
    now += 0.001
    stream.keep(4)
    assert seen() is None


def test_what_nothing_is_kept_for_costs_nothing():
    stream = sk.new_stream(nonblocking=True)
    stream.sync()
    emulator.reset_calls()
    stream.sync()
    gc.collect()
    assert "cuEventQuery" not in emulator.all_calls()


@pytest.mark.timeout(300)
def test_cycles_leave_nothing():
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream()

    def cycle(count):
        for index in range(count):
            (stream if index % 2 else other).keep(bytearray(64))
        check(driver.cuCtxSynchronize())  # a sync that waits has an event of its own
        stream.sync()
        other.sync()

    def alive():
        gc.collect()
        drop_spare_events()
        return {kind: emulator.live(kind) for kind in ("streams", "events")}

    cycle(1_000)
    before, objects = alive(), len(gc.get_objects())
    cycle(int(os.environ.get("STREAMKIT_LEAK_CYCLES", "100000")))
    assert alive() == before
    assert len(gc.get_objects()) - objects < 50
    assert not keepalive._busy


# -- what fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["cuEventQuery", "cuThreadExchangeStreamCaptureMode"])
def test_what_cannot_be_asked_is_kept(function):
    stream = sk.new_stream(nonblocking=True)
    raw = stream.handle
    stream.keep()
    sync(raw)
    kept, seen = thing()
    emulator.fail(function, 700)
    stream.keep(kept)
    del kept
    assert seen() is not None
    stream.keep()
    sync(raw)
    gc.collect()
    assert seen() is None


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_lets_nothing_go_too_early_and_nothing_stay():
    stream = sk.new_stream(nonblocking=True)
    stream.keep(1)
    stream.sync()
    nth, came = 0, True
    while came:
        nth += 1
        gate = Gate()
        try:
            passed, held = Thing(), Thing()
            ended, seen = weakref.ref(passed), weakref.ref(held)
            stream.keep(passed)
            sync(stream.handle)
            gate.hold(stream.handle)
            stream.keep(held)
            del passed, held
            came = interrupted(lambda: (stream.keep(Thing()), sk.new_stream()), nth)
            assert seen() is not None, f"after an interrupt at the call {nth}"
            gate.open()
            stream.sync()
            assert seen() is None, f"after an interrupt at the call {nth}"
            assert ended() is None
        finally:
            gate.free()
    assert nth > 10


def test_what_is_kept_while_others_are_let_go_goes_in_its_turn():
    """As if another thread had kept it, at each call of the sweep."""
    stream, seen, nth, came = sk.new_stream(nonblocking=True), [], 0, True

    def keep(*_):
        kept, ref = thing()
        seen.append(ref)
        stream.keep(kept)

    while came:
        nth += 1
        keep()
        sync(stream.handle)
        came = at_call(nth, keep, keepalive.drain)
        sync(stream.handle)
        gc.collect()
        assert [ref for ref in seen if ref() is not None] == [], f"at the call {nth}"
    assert nth > 10
    assert len(seen) == 2 * nth - 1


def test_a_forked_child_drops_nothing():
    lines = run(f"""
        import gc, os, sys
        sys.path[:0] = {sys.path!r}
        from support.gpu.raw import Gate, check, driver
        import streamkit as sk

        class Ends:
            def __del__(self):
                print(os.getpid() == parent, flush=True)

        parent = os.getpid()
        check(driver.cuInit(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
        stream = sk.new_stream()
        gate = Gate()
        gate.hold(stream.handle)
        stream.keep(Ends())
        gate.open()
        check(driver.cuStreamSynchronize(stream.handle))
        child = os.fork()
        if child == 0:
            from streamkit._cuda import events  # its calls are listed

            events.is_done_core = lambda mark: print("asked", flush=True)
            gc.collect()
            sk.new_stream("cpu")
            try:
                stream.keep(Ends)
            except sk.errors.ForkedProcessError:
                raise SystemExit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stream.sync()
    """)
    assert lines == ["7", "True"]


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_forgets_none_of_many_queues(gate):
    streams = [sk.new_stream(nonblocking=True) for _ in range(100)]
    for stream in streams:
        gate.hold(stream.handle)
        stream.keep(Thing())
    nth = 0
    for nth in interrupt_everywhere(keepalive.drain):
        assert len(keepalive._busy) == len(streams), f"after an interrupt at the call {nth}"
    assert nth > 64
    gate.open()
    check(driver.cuCtxSynchronize())
    gc.collect()
    assert not keepalive._busy
