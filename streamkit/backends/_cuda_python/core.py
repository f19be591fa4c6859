"""cuda.core: ``Stream``, ``GraphBuilder`` and ``Event``, without a current stream."""

from __future__ import annotations

from typing import Any

import cuda.core

from streamkit._cuda import events
from streamkit._support import messages
from streamkit.backends._protocol import Source
from streamkit.protocols import Queue, Traits
from streamkit.protocols.queues import queue_of_bindings

name = "cuda.core"
api = 1
traits = Traits(
    any_context=True,
    hides_owners=True,  # behind C++ references
    remembers_handles=False,  # buffers of cuda.core hold their stream
)


def extract(obj: Any) -> Queue:
    """Read the handle by the protocol, because after ``close`` ``.handle`` is 0."""
    if not isinstance(obj, cuda.core.Stream) and type(obj).__name__ != "GraphBuilder":
        raise messages.not_a_stream(obj)
    try:
        _, handle = obj.__cuda_stream__()
    except RuntimeError as error:
        raise messages.closed(obj) from error
    return queue_of_bindings(handle % 2**64, obj)  # cuda.core reads a handle as signed


def borrow(queue: Queue) -> Any:
    if queue.is_default:
        singletons = {1: cuda.core.LEGACY_DEFAULT_STREAM, 2: cuda.core.PER_THREAD_DEFAULT_STREAM}
        return singletons[queue.handle]
    try:
        device = cuda.core.Device(queue.device)
        device.set_current()  # for create_stream, once in each thread
        return device.create_stream(Source(queue))  # which the stream keeps alive
    except Exception as error:
        raise events.core_error("cuCtxSetCurrent", error) from error


def event_handle(event: Any) -> int:
    if not isinstance(event, cuda.core.Event):
        raise messages.not_a_stream(event)
    handle = int(event.handle or 0)
    if not handle:  # each event of cuda.core has a handle until ``close``
        raise messages.closed(event)
    return handle


def event_device(event: Any) -> int | None:
    event_handle(event)  # a closed event has no device, which each version tells in its own way
    return int(event.device.device_id)
