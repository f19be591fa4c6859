"""The table of StreamKit's operations that call the driver, and what they are tried on.

An operation is a function that prepares what it needs and returns the call to try. What has to be
undone afterwards goes on the stack it is given; everything else dies with the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import streamkit as sk
from streamkit._queues import keepalive  # what others kept goes first
from support.gpu.raw import (
    Foreign,
    Gate,
    check,
    current_context,
    destroy_stream,
    driver,
    make_stream,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

THREAD_LOCAL = driver.CUstreamCaptureMode(1)


class Operation(NamedTuple):
    prepare: Callable[[ExitStack], Callable[[], object]]
    ends: bool  # it ends something, so it cannot be tried twice


OPERATIONS: dict[str, Operation] = {}


def operation(prepare=None, *, ends=False):
    def add(prepare):
        OPERATIONS[prepare.__name__] = Operation(prepare, ends)
        return prepare

    return add if prepare is None else add(prepare)


# -- what the operations are tried on ---------------------------------------------------------


def foreign(undo, *, nonblocking=True):
    owner = Foreign(make_stream(nonblocking=nonblocking))
    undo.callback(lambda: destroy_stream(vars(owner).pop("handle")))  # and says so from then on
    return owner


def fresh(device=None):
    """A stream of StreamKit's that nobody else's allocator has seen, so that it is not parked."""
    return sk.new_stream(device, nonblocking=True, priority=-1)


def held(undo, *handles):
    """Hold queues until the operation is over, so that each look asks once, and says no."""
    check(driver.cuCtxSynchronize())
    keepalive.drain()  # what other operations kept would be asked for too
    gate = Gate()
    undo.callback(gate.free)
    for handle in handles:
        gate.hold(handle)
    return gate


def fresh_and_held(undo):
    stream = fresh()
    return stream, held(undo, stream._queue.handle)  # not .handle: then it would be parked


def capturing(undo):
    """A foreign stream that captures until the operation has been tried."""
    stream = foreign(undo)
    check(driver.cuStreamBeginCapture(stream.handle, THREAD_LOCAL))
    undo.callback(lambda: check(driver.cuGraphDestroy(end_capture(stream))))
    return stream


def join(origin, side):
    """Let the stream that began a capture wait for one that may have joined it."""
    if int(check(driver.cuStreamIsCapturing(side.handle))):
        event = check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(event, side.handle))
        check(driver.cuStreamWaitEvent(origin.handle, event, 0))
        check(driver.cuEventDestroy(event))


def end_capture(stream):
    return check(driver.cuStreamEndCapture(stream.handle))


def in_another_context(undo):
    """Make a context of the test's own current."""
    before = current_context()
    arguments = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    context = check(driver.cuCtxCreate(*arguments))
    check(driver.cuCtxPopCurrent())
    undo.callback(lambda: check(driver.cuCtxDestroy(context)))
    check(driver.cuCtxSetCurrent(context))
    undo.callback(lambda: check(driver.cuCtxSetCurrent(before)))
    undo.callback(keepalive.drain)  # asked about here, and not after the end of the context


def without_a_context(undo):
    """Leave this thread without a current context, as a new one is."""
    before = check(driver.cuCtxPopCurrent())
    undo.callback(lambda: check(driver.cuCtxPushCurrent(before)))


def foreign_event(undo, *, timing=False):
    event = check(driver.cuEventCreate(0 if timing else 2))
    undo.callback(lambda: check(driver.cuEventDestroy(event)))
    return event


def in_vain(sync):
    """Wait for what is held, no longer than it takes to ask: each function is called once."""
    try:
        sync(timeout=0)
    except TimeoutError:
        return
    raise AssertionError("it was not held")
