"""Faults that a review found, each with the test that failed before it was mended."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading

import pytest

import streamkit as sk
from streamkit._queues import lifetime  # its spare events are counted
from support.gpu.raw import Foreign, check, current_context, driver, make_stream, stream_id
from support.libraries import cuda_devices, need
from support.queues import within


@pytest.fixture
def warp():
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    return warp


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_and_an_event_are_not_copied(act):
    """A copy of an owned stream destroyed its handle a second time."""
    stream = sk.new_stream()
    for thing in (stream, stream.record(), sk.wrap_event(stream.record().to("cuda.bindings"))):
        with pytest.raises(TypeError, match="copied or pickled"):
            act(thing)
    stream.sync()


def test_an_owner_found_after_its_view_is_kept(warp):
    """The view was known already, so its owner was not noted and died under a live view."""
    native = warp.Stream("cuda:0")
    unowned = sk.from_handle(native.cuda_stream)
    assert unowned.to("warp") is native
    number = stream_id(native.cuda_stream)
    view = sk.wrap(native).to("cuda.core")
    del native, unowned
    gc.collect()
    assert stream_id(view.__cuda_stream__()[1]) == number


def test_a_closed_event_lives_on_in_another_librarys(warp):
    stream = sk.new_stream()
    event = stream.record(timing=True)
    view = event.to("warp")
    event.close()
    del event
    gc.collect()
    check(driver.cuEventRecord(view.cuda_event, stream.handle))
    stream.sync()


def test_warps_default_device_does_not_leak_out_of_a_scope(warp):
    """Restoring it made its context current, unless the scope had changed that itself."""
    if cuda_devices() < 2:
        pytest.skip("one CUDA device")
    before = current_context()
    warp.set_device("cuda:1")
    check(driver.cuCtxSetCurrent(before))
    try:
        with sk.new_stream(0):
            pass
        assert current_context() == before
        assert str(warp.get_device()) == "cuda:1"
    finally:
        warp.set_device("cuda:0")


def test_closing_the_stream_inside_nested_scopes_of_it(warp):
    stream = sk.new_stream()
    before = warp.get_stream("cuda:0")
    with stream, stream:
        stream.close()
    assert warp.get_stream("cuda:0") is before


def test_elapsed_time_of_events_that_were_never_recorded():
    start, end = sk.new_event(timing=True), sk.new_event(timing=True)
    with pytest.raises(ValueError, match="recorded"):
        end - start


def test_a_per_thread_stream_is_settled_in_its_own_thread_only():
    """Another thread's question stored that thread's own id in the record."""
    made, asked = threading.Event(), threading.Event()
    found = {}

    def home():
        check(driver.cuCtxSetCurrent(context))
        check(driver.cuStreamBeginCapture(2, driver.CUstreamCaptureMode(1)))
        found["stream"] = sk.default_stream(per_thread=True)
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(2))))
        made.set()
        asked.wait(10)
        found["id"] = found["stream"].id, stream_id(2)

    context = current_context()
    thread = threading.Thread(target=home)
    thread.start()
    made.wait(10)
    assert found["stream"].id != stream_id(2)
    asked.set()
    thread.join()
    assert found["id"][0] == found["id"][1]
    sk.default_stream(per_thread=True).sync()


def test_an_event_of_unknown_device_is_recorded_on_any():
    """CuPy's, numba's and bare events do not say their device; the current one was assumed."""
    if cuda_devices() < 2:
        pytest.skip("one CUDA device")
    stream = sk.new_stream(1)
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
    event = check_event(1)
    assert stream.record(event) is not None
    stream.sync()


def check_event(device):
    check(driver.cuCtxPushCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    event = check(driver.cuEventCreate(2))
    check(driver.cuCtxPopCurrent())
    return event


def test_waiting_for_fresh_objects_of_a_queue_makes_one_event():
    raw, stream = make_stream(), sk.new_stream()
    held = [sk.wrap(Foreign(raw)) for _ in range(3)]
    lifetime.spare_events(held[0]._queue).clear()  # those of what ran before
    for source in (*held, sk.wrap(Foreign(raw)), Foreign(raw)):
        stream.wait(source)
        (event,) = held[0]._queue.first_record().wait_events
        assert all(source._queue.wait_events in (None, [event]) for source in held)
    stream.sync()


def test_a_scope_left_open_by_a_thread_that_ended_does_not_hold_warp(warp):
    before = warp.get_stream("cuda:0")
    abandoned = []

    def open_and_end():
        abandoned.append(sk.use(sk.new_stream()))
        abandoned[0].__enter__()

    within(open_and_end)
    with sk.new_stream() as stream:
        assert sk.current_stream("warp") == stream
    assert warp.get_stream("cuda:0") is before


def test_an_owner_that_holds_its_wrap_is_collected():
    """cuda.core's view hides what it holds from the garbage collector."""

    class Owner:
        alive = 0

        def __init__(self):
            self.raw = make_stream()
            Owner.alive += 1

        def __cuda_stream__(self):
            return 0, self.raw

        def __del__(self):
            Owner.alive -= 1

    owner = Owner()
    owner.stream = sk.wrap(owner)
    owner.stream.to("cuda.core")
    del owner
    gc.collect()
    assert Owner.alive == 0


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, after its tests
def test_a_dead_event_calls_no_driver_in_a_forked_child():
    stream = sk.new_stream()
    event = stream.record()
    event.sync()
    handle = event.handle
    child = os.fork()
    if child == 0:
        del event
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    (code,) = driver.cuEventQuery(handle)
    assert not code
