"""The native backend: what it asks of the driver, exactly, and what it leaves behind."""

from __future__ import annotations

import gc

import pytest

import emulator
import streamkit as sk
from streamkit._queues import lifetime  # the spare events
from support.emulated.state_snapshot import drop_spare_events
from support.gpu.raw import Foreign, busy, check, destroy_stream, driver, make_stream, stream_id
from support.queues import eventually, within

pytestmark = [pytest.mark.usefixtures("handles"), pytest.mark.versions]

WAIT = {"cuEventRecord": 1, "cuStreamWaitEvent": 1}
KINDS = ("streams", "events", "contexts", "graphs", "executables")


def asked(call):
    """The driver calls that ``call()`` makes, with how often."""
    emulator.reset_calls()
    call()
    return emulator.all_calls()


def alive():
    gc.collect()
    drop_spare_events()  # how many there are depends on what ran before
    return {kind: emulator.live(kind) for kind in KINDS}


# -- how many calls ---------------------------------------------------------------------------


def test_a_wait_is_one_record_and_one_wait():
    first, second = sk.new_stream(), sk.new_stream()
    second.wait(first)
    assert asked(lambda: second.wait(first)) == WAIT
    assert asked(lambda: first.wait(second)).keys() >= WAIT.keys()
    assert asked(lambda: first.wait(second)) == WAIT


def test_the_events_of_functions_do_not_slow_the_waits_after_them(gate):
    """They have no object of cuda.core's, whose import would be part of the first function."""
    drop_spare_events()
    first, second = sk.new_stream(), sk.new_stream()
    gate.hold(first.handle)
    futures = [first.then(int) for _ in range(3)]
    gate.open()
    assert [future.result(30) for future in futures] == [0] * 3
    del futures
    assert eventually(lambda: len(lifetime.spare_events(first._queue)) == 3)
    second.wait(first)
    assert asked(lambda: second.wait(first)) == WAIT


def test_a_wait_across_devices_is_one_record_and_one_wait():
    zero, one = sk.new_stream(0), sk.new_stream(1)
    one.wait(zero)
    zero.wait(one)
    assert asked(lambda: (one.wait(zero), zero.wait(one))) == dict.fromkeys(WAIT, 2)


def test_a_wait_for_ones_own_queue_asks_nothing():
    stream = sk.new_stream()
    again = sk.from_handle(stream.handle)
    assert asked(lambda: (stream.wait(stream), again.wait(stream), stream.wait(again))) == {}


def test_a_record_in_a_known_event_is_one_call():
    stream = sk.new_stream()
    event = stream.record()
    assert asked(lambda: stream.record(event)) == {"cuEventRecord": 1}
    other = sk.new_stream()
    other.wait(event)
    assert asked(lambda: other.wait(event)) == {"cuStreamWaitEvent": 1}


def test_what_a_stream_is_was_asked_once():
    stream = sk.wrap(Foreign(make_stream()))
    facts = asked(
        lambda: (stream.id, stream.device, stream.device_id, stream.handle, stream.is_default,
                 stream.name, stream.owned, stream.closed, hash(stream))
    )  # fmt: skip
    assert facts == {}
    destroy_stream(stream.handle)


def test_a_new_stream_is_created_once_and_a_closed_one_destroyed_once():
    parked = []  # of other tests: kept out of the way
    while (stream := sk.new_stream(nonblocking=True))._queue.remembered:
        parked.append(stream)
    stream.close()
    del stream
    made = asked(lambda: sk.new_stream(nonblocking=True).close())
    assert made["cuStreamCreateWithPriority"] == 1
    assert made["cuStreamDestroy"] == 1
    assert not {name for name in made if "Event" in name or "Synchronize" in name}


# -- what stays -------------------------------------------------------------------------------


def test_streams_and_events_that_are_dropped_are_destroyed():
    first, second = sk.new_stream(), sk.new_stream()
    second.wait(first)
    before = alive()
    for _ in range(50):
        stream = sk.new_stream(nonblocking=True, priority=-2)  # of which none is parked
        stream.wait(first)
        second.wait(stream)
        event = stream.record(timing=True)
        second.wait(event)
        sk.new_event(device=1)
        stream.close()
    del stream, event
    second.sync()
    assert alive() == before


def test_wrapping_leaves_nothing():
    raw, stream = make_stream(), sk.new_stream()
    stream.wait(Foreign(raw))
    sk.wrap(Foreign(raw)).wait(stream)
    before = alive()
    for _ in range(50):
        wrapped = sk.wrap(Foreign(raw))
        stream.wait(wrapped)
        wrapped.wait(stream)
        wrapped.to("cuda.core"), wrapped.to("cuda.bindings")
        wrapped.close()
    del wrapped
    assert alive() == before
    destroy_stream(raw)


def test_threads_leave_nothing():
    sk.new_stream(), sk.default_stream()
    before, context = alive(), check(driver.cuCtxGetCurrent())

    def work():
        check(driver.cuCtxSetCurrent(context))
        stream = sk.new_stream()
        stream.wait(sk.default_stream(per_thread=True))
        sk.default_stream(per_thread=True).record().sync()

    for _ in range(5):
        within(work)
    assert alive() == before


def test_a_busy_stream_that_is_closed_is_destroyed_and_its_work_runs(gate, cells):
    cell = cells(0)
    before = alive()
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    raw = stream._queue.handle  # not .handle: who reads that may remember it
    gate.hold(raw)
    check(driver.cuMemsetD32Async(cell.pointer, 0x3F800000, 1, raw))  # 1.0
    other.wait(stream)
    stream.close()
    del stream
    gc.collect()
    assert not other.done
    gate.open()
    other.sync()
    assert cell.read() == 1
    other.close()
    del other
    assert alive() == before


# -- recycled handles -------------------------------------------------------------------------


def test_an_event_kept_for_a_dead_queue_does_not_order_the_next_one(gate):
    """What is remembered by handle takes the second stream for the first."""
    waiting = sk.new_stream(nonblocking=True)
    first = make_stream()
    waiting.wait(Foreign(first))
    number = sk.from_handle(first).id
    destroy_stream(first)
    second = make_stream()
    gate.hold(second)
    assert sk.from_handle(second).id == stream_id(second) != number
    waiting.wait(Foreign(second))
    assert busy(waiting.handle)
    gate.open()
    waiting.sync()
    destroy_stream(second)


def test_a_flag_kept_by_handle_is_not_the_next_ones():
    for nonblocking in (True, False, True):
        raw = make_stream(nonblocking=nonblocking)
        assert sk.from_handle(raw).is_nonblocking is nonblocking
        assert sk.from_handle(raw).to("cuda.core").is_nonblocking is nonblocking
        destroy_stream(raw)


# -- the proposed protocol ----------------------------------------------------------------------


@pytest.mark.parametrize("borrowed", [False, True])
def test_an_event_gives_its_handle_by_the_protocol_that_is_proposed(borrowed):
    event = sk.new_stream().record()
    shown = sk.wrap_event(event.to("cuda.bindings")) if borrowed else event
    version, handle = shown.__cuda_event__()
    assert (type(version), type(handle)) == (int, int)
    assert (version, handle) == (0, event.handle)
    assert not hasattr(sk.new_stream("cpu").record(), "__cuda_event__")
    event.close()
    if not borrowed:
        with pytest.raises(sk.errors.StreamClosedError):
            event.__cuda_event__()
