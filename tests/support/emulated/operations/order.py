"""More operations: events and waits."""

from __future__ import annotations

import streamkit as sk
from support.emulated.operations import (
    capturing,
    foreign,
    foreign_event,
    fresh,
    fresh_and_held,
    in_another_context,
    in_vain,
    join,
    operation,
    without_a_context,
)
from support.gpu.raw import check, driver
from support.libraries import need

# -- events -----------------------------------------------------------------------------------


@operation
def new_event(undo):
    return lambda: (sk.new_event(), sk.new_event(device=1, timing=True))


@operation
def record(undo):
    stream = fresh()
    return stream.record


@operation
def record_on_a_foreign_stream(undo):
    stream = sk.wrap(foreign(undo))
    return lambda: stream.record(timing=True)


@operation
def record_again(undo):
    stream = fresh()
    event = stream.record()
    return lambda: stream.record(event)


@operation
def record_in_a_foreign_event(undo):
    stream, event = fresh(), foreign_event(undo)
    return lambda: stream.record(event)


@operation
def record_on_the_default_streams(undo):
    legacy, per_thread = sk.default_stream(), sk.default_stream(1, per_thread=True)
    return lambda: (legacy.record(), per_thread.record())


@operation
def record_in_another_context(undo):
    in_another_context(undo)
    stream = sk.wrap(foreign(undo))
    return stream.record


@operation
def record_and_wait_as_nodes_of_a_graph(undo):
    stream = sk.wrap(capturing(undo))
    event = sk.new_event()
    return lambda: (stream.record(event, external=True), stream.wait(event, external=True))


@operation
def wrap_a_foreign_event(undo):
    event = foreign_event(undo)
    return lambda: sk.wrap_event(event)


@operation
def wrap_an_event_of_cuda_core(undo):
    device = need("cuda").Device(0)
    device.set_current()
    event = device.create_stream().record()
    return lambda: sk.wrap_event(event)


@operation
def event_done(undo):
    event = fresh().record()
    return lambda: event.done


@operation
def event_sync(undo):
    event = fresh().record()
    check(driver.cuCtxSynchronize())  # a wait asks as often as it takes
    return event.sync


@operation
def event_sync_with_a_timeout(undo):
    event = sk.wrap_event(foreign_event(undo))
    return lambda: event.sync(timeout=5)


@operation
def event_sync_in_vain(undo):
    stream, _ = fresh_and_held(undo)
    event = stream.record()
    return lambda: in_vain(event.sync)


@operation
def event_elapsed(undo):
    stream = fresh()
    start, end = stream.record(timing=True), stream.record(timing=True)
    stream.sync()
    return lambda: end - start


@operation(ends=True)
def event_close(undo):
    return fresh().record().close


@operation(ends=True)
def event_close_in_another_context(undo):
    in_another_context(undo)
    return sk.wrap(foreign(undo)).record().close


# -- waits ------------------------------------------------------------------------------------


@operation
def wait_for_a_stream(undo):
    first, second = fresh(), fresh()
    return lambda: second.wait(first)


@operation
def wait_for_a_stream_again(undo):
    first, second = fresh(), fresh()
    second.wait(first)
    first.wait(second)
    return lambda: second.wait(first)


@operation
def wait_for_a_stream_of_the_other_device(undo):
    first, second = fresh(), fresh(1)
    return lambda: (second.wait(first), first.wait(second))


@operation
def wait_for_a_foreign_stream(undo):
    first, second = foreign(undo), fresh()
    return lambda: second.wait(first)


@operation
def wait_between_foreign_streams(undo):
    first, second = sk.wrap(foreign(undo)), sk.wrap(foreign(undo, nonblocking=False))
    return lambda: second.wait(first)


@operation
def wait_for_the_default_streams(undo):
    stream, legacy, per_thread = fresh(), sk.default_stream(), sk.default_stream(per_thread=True)
    return lambda: (stream.wait(legacy), stream.wait(per_thread))


@operation
def the_default_streams_wait(undo):
    stream, *both = fresh(), sk.default_stream(1), sk.default_stream(1, per_thread=True)
    return lambda: [one.wait(stream) for one in both]


@operation
def wait_without_a_context(undo):
    stream, other = fresh(), fresh(1)
    without_a_context(undo)
    return lambda: stream.wait(other)


@operation
def wait_for_an_event(undo):
    stream, event = fresh(), fresh(1).record()
    return lambda: stream.wait(event)


@operation
def wait_for_a_foreign_event(undo):
    stream, event = fresh(), foreign_event(undo)
    check(driver.cuEventRecord(event, foreign(undo).handle))
    return lambda: stream.wait(event)


@operation
def wait_between_contexts(undo):
    stream = fresh()
    in_another_context(undo)
    other = sk.wrap(foreign(undo))
    return lambda: (stream.wait(other), other.wait(stream))


@operation
def fork_in_a_capture(undo):
    stream, side = sk.wrap(capturing(undo)), sk.wrap(foreign(undo))
    undo.callback(join, stream.native, side.native)
    return lambda: side.wait(stream)


@operation
def join_in_a_capture(undo):
    stream, side = sk.wrap(capturing(undo)), sk.wrap(foreign(undo))
    undo.callback(join, stream.native, side.native)
    side.wait(stream)
    return lambda: stream.wait(side)
