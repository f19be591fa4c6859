"""Edges between queues, and what the driver refuses: told with its code, and nothing moved."""

from __future__ import annotations

import textwrap
import warnings
from concurrent.futures import Future

import pytest

import emulator
import streamkit as sk
from streamkit._cuda.driver import call_beside_captures  # each wait is made by it
from support.emulated.processes import run
from support.gpu.raw import (
    Foreign,
    Gate,
    another_context,
    busy,
    check,
    current_context,
    destroy_stream,
    driver,
    held,
    idle,
    make_stream,
    on_device,
)
from support.interrupts import at_call
from support.libraries import need
from support.queues import within

pytestmark = pytest.mark.usefixtures("handles")

LAUNCH_FAILED = 719


# -- edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits_before", [0, 1])
@pytest.mark.parametrize("per_thread", [False, True])
def test_a_capture_of_the_source_between_record_and_wait_takes_no_other_thread_along(
    waits_before, per_thread
):
    """The other thread captures the source, and forks from it: a record of the same queue."""
    nth, came, between, context = 0, True, 0, current_context()
    while came:
        nth += 1
        source, target, side = (sk.new_stream(nonblocking=True) for _ in range(3))
        for _ in range(waits_before):
            target.wait(source)
        raw, records, taken = source.handle, [], []

        def capture(raw=raw, side=side, source=source, records=records):
            records.append(emulator.all_calls().get("cuEventRecord", 0))
            check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(2)))
            side.wait(source)

        def wait(target=target, source=source, taken=taken):
            check(driver.cuCtxSetCurrent(context))
            waiting = sk.default_stream(per_thread=True) if per_thread else target
            waiting.wait(source)
            taken.append(int(check(driver.cuStreamIsCapturing(waiting.handle))))

        emulator.reset_calls()
        came = at_call(nth, lambda *_: within(capture), wait)
        if came and records[0]:  # by then the point was marked, outside the capture
            between += 1
            assert taken == [0], f"at the call {nth}"
        emulator.end_captures()
    assert between > 0


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_every_wait_holds_and_not_only_the_first(gate, devices, before, told):
    source, last = (sk.new_stream(device, nonblocking=True) for device in devices)
    for _ in range(before):
        last.wait(source)
    gate.hold(source.handle)
    if told:
        last.wait(source)
    assert held(last.handle) if told else idle(last.handle)
    gate.open()
    source.sync()
    last.sync()


def test_streams_of_two_contexts_of_one_device_wait_for_each_other(gate):
    here = sk.new_stream(0, nonblocking=True)
    with another_context() as context:
        raw, untold = make_stream(), make_stream()
        there = sk.from_handle(raw)
        assert there.context == context != here.context
        here.wait(there)
        check(driver.cuCtxPushCurrent(here.context))
        gate.hold(here.handle)
        check(driver.cuCtxPopCurrent())
        there.wait(here)
        assert held(raw)
        assert idle(untold)
        gate.open()
        there.sync()
        destroy_stream(raw)
        destroy_stream(untold)


@pytest.mark.parametrize("told", [True, False])
def test_the_default_streams_of_two_devices_wait_for_each_other(gate, told):
    zero, one = sk.default_stream(0), sk.default_stream(1)
    holder = sk.new_stream(0, nonblocking=True)
    gate.hold(holder.handle)
    zero.wait(holder)
    if told:
        one.wait(zero)
    with on_device(0):
        assert held(zero.handle)
    with on_device(1):
        assert held(one.handle) if told else idle(one.handle)
    gate.open()
    one.sync()
    zero.sync()


def test_later_waits_for_the_default_stream_of_another_device(gate):
    """They go by objects that know no context."""
    one, stream = sk.default_stream(1), sk.new_stream(1, nonblocking=True)
    with on_device(0):
        for _ in range(3):
            stream.wait(one)
            one.wait(stream)
        gate.hold(stream.handle)
        one.wait(stream)
    with on_device(1):
        assert held(one.handle)
        gate.open()
        one.sync()
        other = Gate()
        other.hold(one.handle)
    with on_device(0):
        stream.wait(one)
    assert held(stream.handle)
    with on_device(1):
        other.open()
        stream.sync()
        other.free()


def test_later_records_on_the_default_stream_of_another_device(gate):
    one, stream = sk.default_stream(1), sk.new_stream(1, nonblocking=True)
    event = one.record()
    one.wait(stream)
    with on_device(1):
        gate.hold(one.handle)
    with on_device(0):
        for _ in range(3):
            one.record(event)
            assert not event.done
    gate.open()
    one.sync()


def test_a_wait_between_two_records_of_a_queue_asks_nothing():
    raw = make_stream()
    one, two = sk.wrap(Foreign(raw)), sk.wrap(Foreign(raw))
    assert one._queue is not two._queue
    emulator.reset_calls()
    one.wait(two)
    two.wait(one)
    assert emulator.all_calls() == {}
    destroy_stream(raw)


def of_cuda_core(raw):
    device = need("cuda").Device(0)
    device.set_current()
    return device.create_stream(Foreign(raw))


def of_numba(raw):
    need("numba")
    from numba.cuda.cudadrv.driver import Stream, binding

    return Stream(binding.CUstream(raw), external=True)


def of_cupy(raw):
    return need("cupy").cuda.Stream.from_external(Foreign(raw))


def of_older_cupy(raw):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # and still what many people hold
        return need("cupy").cuda.ExternalStream(raw, 0)


NATIVES = {
    "cupy": (of_cupy, {}),
    "warp": (lambda raw: need("warp").Stream("cuda:0"), {}),
    "numba": (lambda raw: need("numba").stream(), {}),
    "external": (of_numba, {"cuStreamIsCapturing": 1, "cuStreamGetId": 1}),
    "cupy.ExternalStream": (of_older_cupy, {"cuStreamIsCapturing": 1, "cuStreamGetId": 1}),
    "cuda.core": (of_cuda_core, {"cuStreamIsCapturing": 1, "cuStreamGetId": 1}),
    "cuda.bindings": (driver.CUstream, {"cuStreamIsCapturing": 1, "cuStreamGetId": 1}),
    "protocol": (Foreign, {"cuStreamIsCapturing": 1, "cuStreamGetId": 1}),
}


@pytest.mark.parametrize("library", NATIVES)
def test_a_steady_wait_for_a_stream_that_nobody_wraps_is_a_record_and_a_wait(warp, gate, library):
    """Where others can destroy it, the driver is asked whether the handle is that stream still."""
    make, questions = NATIVES[library]
    raw = make_stream()
    native, target = make(raw), sk.new_stream(nonblocking=True)
    for _ in range(2):
        target.wait(native)
    emulator.reset_calls()
    target.wait(native)
    assert emulator.all_calls() == {"cuEventRecord": 1, "cuStreamWaitEvent": 1, **questions}
    emulator.reset_calls()
    sk.wrap(native)
    assert emulator.all_calls() == {"cuStreamIsCapturing": 1, "cuStreamGetId": 1}
    gate.hold(sk.wrap(native).handle)
    target.wait(native)
    assert held(target.handle)
    gate.open()
    target.sync()
    destroy_stream(raw)


def test_a_steady_ordered_scope_is_a_wait_in_and_one_out(warp):
    """Beside it, each of the two queues is asked twice whether a capture goes on."""
    scope = sk.use(sk.new_stream(nonblocking=True), libraries=["warp"], ordered=True)
    for _ in range(2):
        with scope:
            pass
    emulator.reset_calls()
    with scope:
        pass
    calls = emulator.all_calls()
    assert (calls["cuEventRecord"], calls["cuStreamWaitEvent"]) == (2, 2)
    assert calls["cuStreamIsCapturing"] == 4
    assert not {*calls} & {"cuStreamGetId", "cuStreamGetCtx", "cuStreamGetFlags", "cuEventCreate"}


def test_a_known_event_of_another_device_is_refused():
    zero, one = sk.new_stream(0), sk.new_stream(1)
    event = zero.record()
    one.record()
    with pytest.raises(sk.errors.DeviceMismatchError):
        one.record(event)
    assert zero.record(event) is event


def test_a_cuda_stream_does_not_wait_for_the_host():
    stream, host = sk.new_stream(), sk.new_stream("cpu")
    for other in (host, host.record()):
        with pytest.raises(sk.errors.DeviceMismatchError, match="Sync the host stream"):
            stream.wait(other)


EVENTS = {
    "cuda": lambda _: sk.new_stream().to("cuda.core").record(),
    "warp": lambda warp: warp.Event("cuda:0"),
    "numba": lambda numba: numba.event(timing=False),
}


@pytest.mark.parametrize("library", EVENTS)
def test_the_event_of_any_library_is_recorded(gate, library):
    native = EVENTS[library](need(library))
    source, waiting, control = (sk.new_stream(nonblocking=True) for _ in range(3))
    gate.hold(source.handle)
    source.record(native)
    waiting.wait(native)
    assert busy(waiting.handle)
    assert not busy(control.handle)
    gate.open()
    waiting.sync()


def test_an_event_without_timing_is_named():
    stream = sk.new_stream()
    timed, plain = stream.record(timing=True), stream.record()
    shared = stream.record(sk.new_event(interprocess=True))
    stream.sync()
    for end, start in ((plain, timed), (timed, plain), (shared, timed), (timed, shared)):
        with pytest.raises(ValueError, match="measures no time"):
            end - start
    assert [" timing>" in repr(event) for event in (timed, plain, shared)] == [True, False, False]


# -- refusals of the driver -------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"timing": True}, {"interprocess": True}])
def test_an_event_of_another_device_is_made_and_destroyed_without_moving_the_thread(options):
    before = current_context()
    event = sk.new_event(device=1, **options)
    assert current_context() == before
    event.close()
    assert current_context() == before


def test_a_closed_event_is_not_recorded_again_and_is_destroyed():
    stream, event = sk.new_stream(), sk.new_event()
    for _ in range(3):
        stream.record(event)
    before = emulator.live("events")
    event.close()
    assert emulator.live("events") == before - 1
    for _ in range(2):
        with pytest.raises(sk.errors.StreamClosedError):
            stream.record(event)


class Closable(Foreign):
    """A stream of somebody who says when it is closed."""

    def close(self):
        destroy_stream(self.handle)
        del self.handle


@pytest.mark.parametrize("records", [1, 3])
def test_an_event_is_asked_when_its_stream_is_closed(records):
    """The fixture "handles" sees who uses a handle that is gone."""
    owner = Closable(make_stream())
    stream, event = sk.wrap(owner), sk.new_event()
    for _ in range(records):
        stream.record(event)
    stream.sync()
    owner.close()
    assert event.done
    event.sync()


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("cuStreamCreateWithPriority", lambda _: sk.new_stream(1, priority=-1)),
        ("cuStreamGetId", lambda _: sk.new_stream(1, priority=-1)),
        ("cuStreamGetId", sk.from_handle),
    ],
    ids=["create", "id of a new one", "id"],
)
def test_a_call_that_fails_raises_with_its_code(function, call):
    before, raw = current_context(), make_stream()
    emulator.fail(function, LAUNCH_FAILED)
    with pytest.raises(sk.errors.DriverError, match=function) as raised:
        call(raw)
    assert raised.value.code == LAUNCH_FAILED
    assert current_context() == before
    destroy_stream(raw)


def test_done_raises_the_error_of_the_work():
    stream = sk.new_stream()
    event = stream.record()
    stream.sync()
    for function, thing in (("cuStreamQuery", stream), ("cuEventQuery", event)):
        emulator.fail(function, LAUNCH_FAILED)
        with pytest.raises(sk.errors.DriverError, match=function):
            _ = thing.done
        assert thing.done


# -- captures and forks -----------------------------------------------------------------------


def test_waiting_leaves_the_threads_capture_mode():
    stream = sk.new_stream()
    event = stream.record()
    mine = driver.CUstreamCaptureMode(1)
    before = check(driver.cuThreadExchangeStreamCaptureMode(mine))
    for wait in (stream.sync, event.sync, lambda: stream.done, lambda: event.done):
        wait()
        assert check(driver.cuThreadExchangeStreamCaptureMode(mine)) == mine
    with pytest.raises(ZeroDivisionError):
        call_beside_captures(lambda: 1 / 0)  # as a wait that fails does
    assert check(driver.cuThreadExchangeStreamCaptureMode(mine)) == mine
    check(driver.cuThreadExchangeStreamCaptureMode(before))


def test_looking_at_the_legacy_stream_leaves_a_blocking_capture_valid():
    raw, legacy = make_stream(nonblocking=False), sk.default_stream()
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(2)))
    assert (legacy.priority, legacy.is_capturing, legacy.is_nonblocking) == (0, False, False)
    assert legacy.is_default
    repr(legacy), legacy.id, legacy.device
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    destroy_stream(raw)


def test_a_first_default_stream_during_a_blocking_capture_is_refused():
    program = """
        from cuda.bindings import driver
        import streamkit as sk

        raw = sk.new_stream().handle
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1))
        try:
            sk.default_stream()
        except sk.errors.CaptureError:
            print("refused")
        print(int(driver.cuStreamEndCapture(raw)[0]))
        print(sk.default_stream().handle)
    """
    assert run(program) == ["refused", "0", "1"]


def forked(work):
    """What a forked child exits with: how often it was told."""
    return run(f"""
import gc, os, sys, weakref
import streamkit as sk

first, second = sk.new_stream(), sk.new_stream()
second.wait(first)
event = first.record()
{textwrap.dedent(work)}
child = os.fork()
if child == 0:
    told = []
    sys.unraisablehook = told.append
    work(told)
    os._exit(len(told))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")


def test_in_a_forked_child_a_steady_wait_and_record_call_nothing():
    """What they call there is the object of cuda.core, whose driver is the parent's."""
    assert forked("""
        class Called:
            def record(self, event):
                os._exit(99)
            wait = record

        def work(told):
            first._queue.core = second._queue.core = Called()
            for call in (lambda: second.wait(first), lambda: first.record(event)):
                try:
                    call()
                except sk.errors.ForkedProcessError:
                    told.append(True)
    """) == ["2"]


def test_in_a_forked_child_what_is_dropped_destroys_nothing_and_says_nothing():
    assert forked("""
        def work(told):
            global first, second, event
            core = weakref.ref(event._owned.core)
            del first, second, event
            gc.collect()
            assert core() is not None, "its end would call the driver"
    """) == ["0"]


@pytest.mark.parametrize("fails", [{}, {"EMULATED_FAIL": "cuInit:1:999"}], ids=["new", "failed"])
def test_a_child_forked_before_the_driver_started_can_start_it(fails):
    program = """
        import os
        import streamkit as sk

        if "EMULATED_FAIL" in os.environ:
            try:
                sk.new_stream()
            except sk.errors.DriverError:
                print("failed")
        child = os.fork()
        if child == 0:
            os._exit(42 if sk.new_stream().device == "cuda:0" else 0)  # 1 is an error's
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(program, **fails) == [*("failed" for _ in fails), "42"]


def test_a_stream_of_cuda_refuses_a_future_and_tells_what_to_do():
    stream = sk.new_stream()
    with pytest.raises(
        sk.errors.UnsupportedStreamError, match=r"never waits for the host\. Give the stream"
    ):
        stream.wait(Future())
