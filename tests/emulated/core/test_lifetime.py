"""Who destroys a stream, when, and which stream a new one may be."""

from __future__ import annotations

import gc

import pytest

import emulator
import streamkit as sk
from support.gpu.raw import another_context, check, driver, make_stream, sync
from support.libraries import need
from support.queues import within

pytestmark = pytest.mark.usefixtures("handles")

# Each test parks streams of a priority of its own, where no other test's are found.


def test_a_stream_whose_handle_was_shown_is_parked_and_used_again():
    stream = sk.new_stream(priority=-2)
    number = stream.id
    int(stream)  # once: what learned the handle remembers it for ever
    for _ in range(3):
        stream.close()
        del stream
        gc.collect()
        stream = sk.new_stream(priority=-2)
        assert stream.id == number


def test_control_a_stream_that_nobody_saw_is_not_parked():
    stream = sk.new_stream(nonblocking=True, priority=-2)
    number = stream.id
    stream.close()
    del stream
    gc.collect()
    assert sk.new_stream(nonblocking=True, priority=-2).id != number


def test_a_stream_that_warp_saw_is_parked():
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    stream = sk.new_stream(priority=-3)
    number = stream.id
    stream.to("warp")
    stream.close()
    del stream
    gc.collect()
    assert sk.new_stream(priority=-3).id == number


def test_a_stream_that_warp_saw_through_another_record_is_parked():
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    stream = sk.new_stream(nonblocking=True, priority=-3)
    number, raw = stream.id, stream._queue.handle  # not .handle: who reads that may remember it
    view = sk.from_handle(raw, owner=object()).to("warp")
    stream.close()
    del stream, view
    gc.collect()
    check(driver.cuCtxSynchronize())  # Warp's frees wait for the stream, which is busy until then
    assert sk.new_stream(nonblocking=True, priority=-3).id == number


def test_a_busy_parked_stream_is_not_given_out(gate):
    stream = sk.new_stream(priority=-4)
    number, raw = stream.id, stream.handle
    gate.hold(raw)
    stream.close()
    del stream
    gc.collect()
    other = sk.new_stream(priority=-4)
    assert other.id != number
    gate.open()
    sync(raw)
    assert number in {sk.new_stream(priority=-4).id, sk.new_stream(priority=-4).id}


def test_a_parked_stream_that_captures_is_let_be():
    stream = sk.new_stream(nonblocking=True, priority=-4)
    number, raw = stream.id, stream.handle
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(2)))
    stream.close()
    del stream
    gc.collect()
    assert sk.new_stream(nonblocking=True, priority=-4).id != number
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))


def begin_capture(stream, mode=1):
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(mode)))


def break_capture(stream):
    assert driver.cuStreamQuery(stream)[0] == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED


@pytest.mark.parametrize("is_parked_before", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_parked_stream_leaves_no_broken_capture(elsewhere, is_parked_before):
    """What is left by an error in a library's own capture: nobody could wait for the device."""
    stream = sk.new_stream(nonblocking=True, priority=-4)
    number, raw = stream.id, stream.handle
    begin_capture(raw)
    if not is_parked_before:
        break_capture(raw)

    def drop():
        nonlocal stream
        stream = None
        gc.collect()

    within(drop) if elsewhere else drop()
    if is_parked_before:
        break_capture(raw)
        sk.new_stream(nonblocking=True, priority=-4)
    check(driver.cuCtxSynchronize())
    found = [sk.new_stream(nonblocking=True, priority=-4) for _ in range(3)]
    assert number in [one.id for one in found]


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_parked_fork_leaves_the_capture_to_its_origin(is_broken):
    origin = sk.new_stream(nonblocking=True)
    fork = sk.new_stream(nonblocking=True, priority=-4)
    raw = fork.handle
    begin_capture(origin.handle)
    fork.wait(origin)
    origin.wait(fork)
    if is_broken:
        break_capture(origin.handle)
    del fork
    gc.collect()
    code, graph = driver.cuStreamEndCapture(origin.handle)
    assert (code == 0) != is_broken
    if not is_broken:
        check(driver.cuGraphDestroy(graph))
    sync(raw)


@pytest.mark.parametrize("nonblocking", [True, False])
def test_a_parked_stream_is_used_for_its_own_kind_only(nonblocking):
    stream = sk.new_stream(nonblocking=nonblocking, priority=-5)
    int(stream)
    stream.close()
    del stream
    gc.collect()
    other = sk.new_stream(nonblocking=not nonblocking, priority=-5)
    assert check(driver.cuStreamGetFlags(other.handle)) == int(not nonblocking)
    assert check(driver.cuStreamGetPriority(other.handle)) == -5


def test_who_took_the_protocol_keeps_the_stream_beyond_close():
    stream = sk.new_stream(nonblocking=True, priority=-1)
    number = stream.id
    stream.__cuda_stream__()
    stream.close()
    gc.collect()
    assert sk.new_stream(nonblocking=True, priority=-1).id != number


def test_a_closed_stream_has_no_views():
    stream = sk.new_stream()
    stream.to("cuda.bindings")
    stream.close()
    with pytest.raises(sk.errors.StreamClosedError):
        stream.to("cuda.bindings")
    with pytest.raises(sk.errors.StreamClosedError):
        stream.__enter__()


def test_an_event_of_another_context_is_destroyed_unless_the_context_is():
    """The emulated driver ends the process where it gets a dead event."""
    with another_context():
        stream = sk.from_handle(make_stream())
        stream.record()
        before = emulator.live("events")
        event = stream.record(timing=True)
        assert emulator.live("events") == before + 1
        event.close()
        del event
        gc.collect()
        assert emulator.live("events") == before
        event = stream.record(timing=True)
        del stream
    del event
    gc.collect()
    assert emulator.live("events") < before + 1
