"""The native backend: creation, facts from the driver, events, waiting, the end of a stream."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import streamkit as sk
from streamkit._queues import registry  # what its adapter has read must be forgotten
from support.gpu.raw import (
    check,
    current_context,
    destroy_stream,
    driver,
    held,
    idle,
    make_stream,
    stream_id,
    sync,
)


def test_a_new_stream_is_what_the_driver_says():
    stream = sk.new_stream(name="mine")
    assert stream.owned
    assert stream.native is None
    assert stream.name == "mine"
    assert not stream.is_nonblocking
    assert not stream.is_default
    assert not stream.is_capturing
    assert stream.id == stream_id(stream.handle)
    assert stream.context == int(check(driver.cuStreamGetCtx(stream.handle)))
    assert stream.device == "cuda:0"
    assert stream.device_id == 0
    assert int(stream) == stream.handle == stream.__cuda_stream__()[1]
    assert isinstance(stream, sk.Stream)
    assert stream.done


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("priority", ["high", "low", 0, -1, -5, None])
def test_flags_and_priority_are_the_drivers(nonblocking, priority):
    stream = sk.new_stream(nonblocking=nonblocking, priority=priority)
    assert check(driver.cuStreamGetFlags(stream.handle)) == int(nonblocking)
    least, greatest = check(driver.cuCtxGetStreamPriorityRange())
    expected = {"high": greatest, "low": least, None: 0}.get(priority, priority)
    assert check(driver.cuStreamGetPriority(stream.handle)) == expected == stream.priority
    assert stream.is_nonblocking is nonblocking


def test_a_priority_out_of_range_gives_the_range():
    with pytest.raises(ValueError, match=r"0 \(low\) to -5 \(high\)"):
        sk.new_stream(priority=-99)


def test_devices_that_are_not_there():
    with pytest.raises(sk.errors.NoDeviceError, match="99"):
        sk.new_stream("cuda:99")
    stream = sk.new_stream()
    with pytest.raises(sk.errors.DeviceMismatchError, match="cuda:5"):
        sk.from_handle(stream.handle, device=5)


def test_a_borrowed_handle_is_never_destroyed():
    raw = make_stream()
    for _ in range(3):
        stream = sk.from_handle(raw)
        stream.to("cuda.core"), stream.record()
        assert not stream.owned
        stream.close()
        assert not stream.closed
        del stream
        gc.collect()
    assert stream_id(raw) > 0
    destroy_stream(raw)


def test_a_recycled_handle_is_another_queue():
    """CUDA gives handles again, ids never: what was cached for the old one must not come back."""
    first = make_stream()
    old = sk.from_handle(first)
    old_id = old.id
    destroy_stream(first)
    streams = [make_stream() for _ in range(64)]
    again = [raw for raw in streams if raw == first]
    for raw in streams:
        assert sk.from_handle(raw).id == stream_id(raw) != old_id
    if again:
        assert sk.from_handle(first) != old
    for raw in streams:
        destroy_stream(raw)


def test_events_measure_the_queues_time(gate):
    stream = sk.new_stream(nonblocking=True)
    start = stream.record(timing=True)
    gate.hold(stream.handle)
    end = stream.record(timing=True)
    with pytest.raises(ValueError, match="not reached"):
        end - start
    time.sleep(0.05)
    gate.open()
    end.sync()
    assert 45 < end - start < 5_000


def test_an_event_without_timing_says_so():
    stream = sk.new_stream()
    with pytest.raises(ValueError, match="timing=True"):
        stream.record() - stream.record()
    event = sk.new_event()
    with pytest.raises(ValueError, match="timing"):
        stream.record(event, timing=True)


def test_an_unrecorded_event_holds_nothing():
    stream, event = sk.new_stream(), sk.new_event()
    assert event.done
    stream.wait(event)
    event.sync()
    stream.sync()


def test_a_recorded_event_can_be_recorded_again(gate):
    first, second, third = (sk.new_stream(nonblocking=True) for _ in range(3))
    event = first.record()
    event.sync()
    gate.hold(second.handle)
    assert second.record(event) is event
    assert idle(third.handle)
    third.wait(event)
    assert not event.done
    assert held(third.handle)
    gate.open()
    third.sync()


@pytest.mark.parametrize("library", ["torch", "cupy", "warp", "cuda.core", "numba"])
def test_the_event_of_any_library_is_recorded(subjects, gate, library):
    subject = subjects(library)
    native = subject.new_event(subject.new_stream())
    source, waiting, control = (sk.new_stream(nonblocking=True) for _ in range(3))
    gate.hold(source.handle)
    source.record(native)
    waiting.wait(native)
    assert held(waiting.handle)
    assert idle(control.handle)
    gate.open()
    waiting.sync()


def test_the_device_of_a_stream_is_asked_where_cupy_does_not_know_it(subjects):
    native = subjects("cupy").cupy.cuda.Stream.from_external(sk.new_stream())
    assert native.device_id == -1
    assert sk.wrap(native).device_id == 0


def test_a_torch_event_is_created_by_its_first_record(subjects):
    torch = subjects("torch").torch
    event = torch.cuda.Event()
    wrapped = sk.wrap_event(event)
    assert event.cuda_event == 0 == wrapped.handle
    assert wrapped.done
    stream = sk.new_stream()
    stream.wait(event)
    stream.record(event)
    assert wrapped.handle == event.cuda_event != 0
    wrapped.sync()
    assert event.query()


def test_a_torch_event_is_not_recorded_as_a_node_of_its_own(subjects):
    event = subjects("torch").torch.cuda.Event()
    stream = sk.new_stream()
    for given in (event, sk.wrap_event(event)):
        with pytest.raises(ValueError, match=r"torch.*external"):
            stream.record(given, external=True)
    assert event.cuda_event == 0, "it was recorded all the same"


@pytest.mark.parametrize("library", ["cupy", "warp", "numba"])
def test_events_convert_where_the_library_can_wrap_one(subjects, gate, library):
    subjects(library)
    source = sk.new_stream(nonblocking=True)
    gate.hold(source.handle)
    event = source.record()
    view = event.to(library)
    waiting = sk.new_stream(nonblocking=True)
    native = waiting.to(library)
    {
        "cupy": lambda: native.wait_event(view),
        "warp": lambda: native.wait_event(view),
        "numba": lambda: view.wait(native),
    }[library]()
    assert held(waiting.handle)
    gate.open()
    waiting.sync()


@pytest.mark.parametrize("library", ["torch", "cuda.core"])
def test_events_that_cannot_convert_say_what_to_do(subjects, library):
    subjects(library)
    with pytest.raises(sk.errors.UnsupportedStreamError, match="wait"):
        sk.new_stream().record().to(library)


def test_waiting_for_the_same_queue_makes_no_driver_call(subjects, monkeypatch):
    stream = sk.wrap(subjects("torch").new_stream())
    view = sk.wrap(stream.to("cupy"))
    from streamkit._cuda import events  # the driver's calls are refused

    def refuse(*_):
        raise AssertionError("a driver call")

    for name in ("record", "wait", "core_stream", "record_and_wait"):
        monkeypatch.setattr(events, name, refuse)
    view.wait(stream)
    stream.wait(stream)


def test_sync_waits_and_its_timeout_does_not_stop_the_work(gate):
    stream = sk.new_stream(name="slow")
    gate.hold(stream.handle)
    with pytest.raises(TimeoutError, match="slow"):
        stream.sync(timeout=0.02)
    assert not stream.done
    threading.Timer(0.05, gate.open).start()
    stream.sync()
    assert stream.done
    stream.sync(timeout=5)


def test_sync_releases_the_gil(gate):
    stream = sk.new_stream()
    gate.hold(stream.handle)
    opened = []

    def opener():
        opened.append(True)
        gate.open()

    threading.Timer(0.05, opener).start()  # could never run if sync held the GIL
    stream.sync()
    assert opened


def test_close_returns_at_once_and_the_object_is_unusable(gate):
    stream = sk.new_stream(name="gone")
    number = stream.id
    gate.hold(stream.handle)
    stream.close()
    assert gate.closed
    assert stream.closed
    for use in (
        lambda: stream.handle,
        lambda: int(stream),
        stream.__cuda_stream__,
        stream.record,
        stream.sync,
        lambda: stream.done,
        lambda: stream.to("cuda.core"),
        lambda: sk.wrap(stream),
        stream.__enter__,
        lambda: sk.new_stream().wait(stream),
    ):
        with pytest.raises(sk.errors.StreamClosedError, match="gone"):
            use()
    assert stream.id == number
    assert stream.name == "gone"
    assert "closed" in repr(stream)
    assert hash(stream) == hash(stream)
    stream.close()


def test_an_owned_stream_lives_as_long_as_its_last_view(subjects, cells):
    subject = subjects("cupy")
    stream = sk.new_stream(nonblocking=True)
    number, view = stream.id, stream.to("cupy")
    stream.close()
    del stream
    gc.collect()
    assert stream_id(view.ptr) == number
    src, dst = cells(1), cells(0)
    subject.add_one(view, src.pointer, dst.pointer)
    view.synchronize()
    assert dst.read() == 2
    assert sk.wrap(view).id == number


def test_a_parked_stream_that_was_given_out_is_parked_again(subjects):
    """The allocator that saw it before still remembers its handle."""
    subjects("torch")
    stream = sk.new_stream(priority=-2)
    number = stream.id
    stream.to("torch")
    for _ in range(3):
        stream.close()
        del stream
        gc.collect()
        stream = sk.new_stream(priority=-2)
        assert stream.id == number


def test_a_busy_parked_stream_is_not_given_out(subjects, gate):
    subjects("torch")
    stream = sk.new_stream(priority=-4)
    number = stream.id
    stream.to("torch")
    gate.hold(stream.handle)
    stream.close()
    gc.collect()
    assert sk.new_stream(priority=-4).id != number
    gate.open()


def test_a_stream_that_nobody_saw_is_destroyed(gate):
    """The driver recycles the handle of a destroyed stream, which it cannot while it lives."""
    parked = []  # of other tests: kept out of the way
    while (stream := sk.new_stream(nonblocking=True, priority=-1))._queue.remembered:
        parked.append(stream)
    ids, handles = set(), []
    for _ in range(200):
        stream = sk.new_stream(nonblocking=True, priority=-1)
        ids.add(stream.id)
        handles.append(stream._queue.handle)  # not .handle: who reads that may remember it
        stream.close()
    assert len(ids) == 200, "each was a new stream, none parked"
    assert len(set(handles)) < 150, "none was destroyed"


class Foreign:
    """Somebody's stream with the protocol alone, which dies with its object."""

    alive = 0

    def __init__(self):
        self.raw = make_stream()
        Foreign.alive += 1

    def __cuda_stream__(self):
        return 0, self.raw

    def __del__(self):
        Foreign.alive -= 1
        destroy_stream(self.raw)


@pytest.mark.parametrize("library", ["torch", "cupy", "warp", "cuda.core", "numba"])
def test_a_dropped_owner_does_not_invalidate_a_view(subjects, cells, library):
    subject = subjects(library)
    owner = Foreign()
    number = stream_id(owner.raw)
    view = sk.wrap(owner).to(library)
    del owner
    gc.collect()
    assert Foreign.alive == 1
    assert stream_id(subject.handle_of(view)) == number
    if library != "numba":  # numba keeps the last streams it launched on
        src, dst = cells(1), cells(0)
        subject.add_one(view, src.pointer, dst.pointer)
        sync(subject.handle_of(view))
        assert dst.read() == 2
    del view
    gc.collect()
    assert Foreign.alive == 0, "the view was dropped and its owner is still held"


def test_the_second_owner_of_a_queue_is_kept_by_its_views(subjects):
    """Nobody knows which of two owners destroys the handle, so each is kept by what it made."""
    subjects("torch")
    owner = Foreign()
    stranger = sk.wrap(subjects("cupy").cupy.cuda.Stream.from_external(owner))
    view = sk.wrap(owner).to("torch")
    number = stream_id(owner.raw)
    del owner
    gc.collect()
    assert stream_id(view.cuda_stream) == number
    assert Foreign.alive == 1
    del view, stranger
    gc.collect()
    assert Foreign.alive == 0


def test_from_handle_keeps_its_owner():
    owner = Foreign()
    stream = sk.from_handle(owner.raw, owner=owner)
    del owner
    gc.collect()
    assert Foreign.alive == 1
    assert stream.done
    del stream
    gc.collect()
    assert Foreign.alive == 0


def test_one_warp_view_for_a_queue_however_often_converted(subjects):
    warp = subjects("warp").warp
    native = subjects("torch").new_stream()
    view = sk.wrap(native).to("warp")
    other = sk.wrap(sk.wrap(native).to("cupy")).to("warp")
    assert view is other is sk.from_handle(native.cuda_stream).to("warp")
    users = warp.Stream("cuda:0", cuda_stream=make_stream())
    assert sk.from_handle(users.cuda_stream).to("warp") is users
    own = warp.Stream("cuda:0")
    assert sk.from_handle(own.cuda_stream).to("warp") is own, "a Warp stream was wrapped again"
    own_default = warp.get_stream("cuda:0")
    assert sk.from_handle(own_default.cuda_stream).to("warp") is own_default


def test_no_call_outside_use_changes_the_current_context(subjects, primary_context):
    for context in (current_context(), 0):
        check(driver.cuCtxSetCurrent(context))
        stream = sk.new_stream()
        sk.default_stream(0).record()
        sk.wrap(subjects("torch").new_stream()).wait(stream)
        for library in ("torch", "cupy", "warp", "cuda.core", "numba"):
            subjects(library)
            check(driver.cuCtxSetCurrent(context))
            stream.to(library)
            assert current_context() == context, library
        sk.current_streams(), stream.done, stream.priority, sk.new_event(timing=True)
        stream.sync()
        stream.close()
        assert current_context() == context
        with sk.use(sk.new_stream()):
            pass
        assert current_context() == (context or primary_context)


def test_streams_of_another_context_order_but_do_not_convert(subjects):
    device = check(driver.cuDeviceGet(0))
    arguments = (None, 0, device) if driver.CUDA_VERSION >= 13000 else (0, device)
    context = check(driver.cuCtxCreate(*arguments))
    raw = make_stream()
    check(driver.cuCtxPopCurrent())
    stream, mine = sk.from_handle(raw), sk.new_stream()
    assert stream.context == int(context) != mine.context
    mine.wait(stream)
    stream.wait(mine)
    stream.record(timing=True).sync()
    stream.sync()
    for library in ("torch", "cupy", "warp", "numba"):
        subjects(library)
        with pytest.raises(sk.errors.UnsupportedStreamError, match="context"):
            stream.to(library)
    with pytest.raises(sk.errors.UnsupportedStreamError, match="context"), sk.use(stream):
        pass
    assert stream.to("cuda.core").handle
    del stream
    destroy_stream(raw)
    check(driver.cuCtxDestroy(context))


def test_wrap_refuses_a_closed_cuda_core_stream(subjects):
    native = subjects("cuda.core").new_stream()
    native.close()
    with pytest.raises(sk.errors.StreamClosedError):
        sk.wrap(native)


def test_generic_torch_streams_without_a_native_handle(subjects):
    """As a later torch may have them."""
    torch = subjects("torch").torch

    class Old(torch.Stream):
        native_handle = property()

    stream = torch.cuda.Stream()
    value = {"stream_id": stream.stream_id, "device_index": 0, "device_type": 1}
    adapter = registry.adapter("torch")
    adapter._own.clear()  # what it has read before
    assert sk.wrap(Old(**value)).handle == stream.cuda_stream
    assert sk.wrap(Old(stream_id=0, device_index=0, device_type=1)) == sk.default_stream()


def test_a_generic_torch_stream_is_given_back_to_its_own_stream_alone(subjects):
    torch = subjects("torch").torch
    stream = sk.new_stream()
    own = torch.cuda.ExternalStream(stream.handle)
    generic = torch.Stream(
        stream_id=own.stream_id, device_index=own.device_index, device_type=own.device_type
    )
    wrapped = sk.wrap(generic)
    assert wrapped == stream
    assert wrapped.to("torch") is generic
    assert isinstance(stream.to("torch"), torch.cuda.Stream)


def test_generic_torch_streams_and_tensors(subjects):
    torch = subjects("torch").torch
    generic = torch.accelerator.current_stream()
    assert sk.wrap(generic) == sk.default_stream()
    own = torch.Stream("cuda")
    same = torch.cuda.Stream(
        stream_id=own.stream_id, device_index=own.device_index, device_type=own.device_type
    )
    assert sk.wrap(own) == sk.wrap(same)
    assert sk.wrap(own).handle == same.cuda_stream != 0
    assert sk.wrap(own).handle == own.native_handle
    for wrong in (torch.ones(1, device="cuda"), torch.device("cuda"), torch.cuda.Stream):
        with pytest.raises(sk.errors.UnsupportedStreamError):
            sk.wrap(wrong)
