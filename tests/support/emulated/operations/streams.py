"""Operations on streams: what wraps them, what makes them, what they say of themselves."""

from __future__ import annotations

import streamkit as sk
from support.emulated.operations import (
    THREAD_LOCAL,
    Foreign,
    capturing,
    end_capture,
    foreign,
    fresh,
    fresh_and_held,
    in_another_context,
    in_vain,
    operation,
    without_a_context,
)
from support.gpu.raw import check, driver
from support.libraries import need

# -- somebody's stream ------------------------------------------------------------------------


@operation
def wrap_an_object_of_the_protocol(undo):
    stream = foreign(undo)
    return lambda: sk.wrap(stream)


@operation
def wrap_a_blocking_stream_of_a_named_device(undo):
    stream = foreign(undo, nonblocking=False)
    return lambda: sk.wrap(stream, device="cuda:0")


@operation
def wrap_a_bare_handle(undo):
    raw = driver.CUstream(foreign(undo).handle)
    return lambda: sk.wrap(raw)


@operation
def wrap_a_stream_of_cuda_core(undo):
    device = need("cuda").Device(0)
    device.set_current()
    native = device.create_stream()
    return lambda: sk.wrap(native)


@operation
def wrap_a_graph_builder_that_captures(undo):
    device = need("cuda").Device(0)
    device.set_current()
    builder = device.create_stream().create_graph_builder()
    builder.begin_building()
    undo.callback(builder.end_building)
    return lambda: sk.wrap(builder)


@operation
def wrap_a_capturing_stream(undo):
    stream = capturing(undo)
    return lambda: sk.wrap(stream)


@operation
def wrap_a_stream_of_another_context(undo):
    in_another_context(undo)
    stream = foreign(undo)
    return lambda: sk.wrap(stream)


@operation
def wrap_a_default_stream_by_the_protocol(undo):
    return lambda: (sk.wrap(Foreign(0)), sk.wrap(Foreign(1)), sk.wrap(Foreign(2)))


@operation
def wrap_the_default_stream_of_another_context(undo):
    in_another_context(undo)
    return lambda: sk.wrap(Foreign(1))


@operation
def wrap_without_a_context(undo):
    stream = foreign(undo)
    without_a_context(undo)
    return lambda: (sk.wrap(stream), sk.wrap(Foreign(2), device=1))


@operation
def from_handle(undo):
    raw = foreign(undo).handle
    return lambda: sk.from_handle(raw, device=0, owner=object())


# -- StreamKit's own --------------------------------------------------------------------------


@operation
def new_stream(undo):
    return fresh


@operation
def new_stream_without_a_context(undo):
    without_a_context(undo)
    return fresh


@operation
def new_stream_of_the_other_device(undo):
    return lambda: sk.new_stream(1, nonblocking=True, priority="high")


@operation
def new_stream_that_was_parked(undo):
    sk.new_stream(priority=-1).handle  # noqa: B018 - whoever reads it may remember it
    return lambda: sk.new_stream(priority=-1)


@operation
def default_stream(undo):
    return lambda: (sk.default_stream(), sk.default_stream(1))


@operation
def default_stream_of_another_context(undo):
    in_another_context(undo)
    return sk.default_stream


@operation
def per_thread_stream(undo):
    return lambda: sk.default_stream(per_thread=True)


@operation
def per_thread_stream_of_the_other_device(undo):
    return lambda: sk.default_stream(1, per_thread=True)


@operation(ends=True)
def close(undo):
    return fresh().close


@operation(ends=True)
def close_a_stream_that_is_parked(undo):
    stream = sk.new_stream(priority=-1)
    stream.handle  # noqa: B018 - whoever reads it may remember it
    return stream.close


@operation(ends=True)
def drop_a_stream(undo):
    return [fresh()].clear


@operation(ends=True)
def drop_all_that_a_stream_has_made(undo):
    stream, other = fresh(), fresh(1)
    stream.wait(other)
    other.wait(stream)
    made = [stream, other, stream.record(timing=True), stream.to("cuda.core")]
    del stream, other
    return made.clear


# -- what a stream says of itself -------------------------------------------------------------


@operation
def priority(undo):
    stream = sk.wrap(foreign(undo))
    return lambda: (stream.priority, stream.context)


@operation
def priority_of_the_per_thread_stream(undo):
    stream = sk.default_stream(per_thread=True)
    return lambda: stream.priority


@operation
def is_capturing(undo):
    stream, other = sk.wrap(foreign(undo)), sk.wrap(capturing(undo))
    return lambda: (stream.is_capturing, other.is_capturing)


@operation
def is_capturing_of_the_per_thread_stream(undo):
    stream = sk.default_stream(per_thread=True)
    return lambda: stream.is_capturing


def captured_once(undo):
    """A stream that StreamKit met while it captured, and whose id it still has to learn."""
    stream = foreign(undo)
    check(driver.cuStreamBeginCapture(stream.handle, THREAD_LOCAL))
    wrapped = sk.wrap(stream)
    check(driver.cuGraphDestroy(end_capture(stream)))
    return wrapped


@operation
def id_after_a_capture(undo):
    stream = captured_once(undo)
    return lambda: stream.id


@operation
def is_nonblocking_after_a_capture(undo):
    stream = captured_once(undo)
    return lambda: stream.is_nonblocking


@operation
def compare_after_a_capture(undo):
    stream = captured_once(undo)
    other = sk.from_handle(stream.handle)
    return lambda: stream == other


@operation
def done(undo):
    stream = fresh()
    return lambda: stream.done


@operation
def done_of_the_default_streams(undo):
    legacy, per_thread = sk.default_stream(), sk.default_stream(per_thread=True)
    return lambda: (legacy.done, per_thread.done)


@operation
def sync(undo):
    stream = fresh()
    return stream.sync


@operation
def sync_with_a_timeout(undo):
    stream = fresh()
    return lambda: stream.sync(timeout=5)


@operation
def sync_in_vain(undo):
    stream, _ = fresh_and_held(undo)
    return lambda: in_vain(stream.sync)


@operation
def sync_the_per_thread_stream(undo):
    return sk.default_stream(per_thread=True).sync


@operation
def await_what_has_run(undo):
    stream = fresh()
    return lambda: list(stream.__await__())
