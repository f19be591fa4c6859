"""More operations: what is kept, and what is handed over."""

from __future__ import annotations

import streamkit as sk
from streamkit._queues import keepalive  # what others kept goes first
from support.emulated.operations import (
    capturing,
    foreign,
    fresh,
    fresh_and_held,
    held,
    in_another_context,
    operation,
)
from support.emulated.operations.libraries import warp
from support.gpu.raw import check, driver


def array():
    """Somebody's memory as an array of Warp."""
    return warp().array(ptr=4096, dtype=float, shape=4, device="cuda:0")


@operation
def keep(undo):
    stream, _ = fresh_and_held(undo)
    return lambda: stream.keep(1)


@operation
def keep_with_more_kept_before(undo):
    stream, _ = fresh_and_held(undo)
    stream.keep(1), stream.keep(2)
    stream._queue.keepalive.ask_at = 0  # the next call asks, however soon it comes
    return lambda: stream.keep(3)


@operation
def keep_on_a_foreign_stream(undo):
    stream = sk.wrap(foreign(undo))
    held(undo, stream.handle)
    return lambda: stream.keep(1)


@operation
def keep_on_the_default_streams(undo):
    legacy, per_thread = sk.default_stream(), sk.default_stream(per_thread=True)
    held(undo, 1, 2)
    return lambda: (legacy.keep(1), per_thread.keep(2))


@operation
def keep_in_another_context(undo):
    in_another_context(undo)
    stream = sk.wrap(foreign(undo))
    held(undo, stream.handle)
    return lambda: stream.keep(1)


@operation
def keep_beside_a_capture(undo):
    stream, _ = fresh_and_held(undo)
    capturing(undo)
    return lambda: stream.keep(1)


@operation
def keep_and_sync(undo):
    stream, gate = fresh_and_held(undo)
    keepalive.drain()  # what other operations kept would be asked for here
    stream.keep(1)  # held, or it might let go at once
    gate.open()
    check(driver.cuCtxSynchronize())  # a wait asks as often as it takes
    return lambda: (stream.sync(), stream.done)


@operation
def hand_an_array_over(undo):
    source, native = sk.wrap(foreign(undo)), array()
    target, _ = fresh_and_held(undo)
    return lambda: sk.handoff(native, target, after=source)


@operation
def hand_an_array_over_from_the_current_stream(undo):
    native = array()
    target, _ = fresh_and_held(undo)
    return lambda: sk.handoff(native, target)


@operation(ends=True)
def drop_an_array_that_was_handed_over(undo):
    target, _ = fresh_and_held(undo)
    lent = [sk.handoff(array(), target, after=fresh())]
    return lent.clear


@operation(ends=True)
def drop_an_array_whose_stream_captures(undo):
    stream = foreign(undo)
    lent = [sk.handoff(array(), stream, after=fresh())]
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    undo.callback(
        lambda: check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    )
    return lent.clear
