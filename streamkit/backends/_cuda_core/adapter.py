"""cuda.core: ``Stream``, ``GraphBuilder`` and ``Event``. It has no current stream."""

from __future__ import annotations

from typing import Any

import cuda.core

from streamkit._base import messages
from streamkit._base.queue import PER_THREAD
from streamkit._cuda import events, loader
from streamkit.backends._protocol import Source
from streamkit.errors import StreamClosedError
from streamkit.protocols import Queue, Traits

name = "cuda.core"
api = 1
traits = Traits(
    any_context=True,
    hides_owners=True,  # behind C++ references
    remembers_handles=False,  # its buffers hold their stream
)

_TELLS_CLOSED = hasattr(cuda.core.Stream, "is_closed")
"""Whether a closed stream raises. Before 1.2 it reads as handle 0, like the default stream."""


def extract(obj: Any) -> Queue:
    """Read the handle by the protocol: after ``close``, ``.handle`` is the legacy stream's 0."""
    if not isinstance(obj, cuda.core.Stream) and type(obj).__name__ != "GraphBuilder":
        raise messages.not_a_stream(obj)
    try:
        _, handle = obj.__cuda_stream__()
    except RuntimeError as error:
        raise messages.closed(obj) from error
    if not handle and not _TELLS_CLOSED:
        raise StreamClosedError(
            f"{messages.describe(obj)} is closed or was made of handle 0: cuda.core before 1.2 "
            "does not tell which. Take cuda.core.LEGACY_DEFAULT_STREAM, or a newer cuda.core."
        )
    handle = handle % 2**64 or loader.null_stream()  # it reads the handle as signed
    return Queue(handle, None, None if handle <= PER_THREAD else obj)


def borrow(queue: Queue) -> Any:
    """Build a ``cuda.core.Stream`` on the queue."""
    if queue.is_default:
        singletons = {1: cuda.core.LEGACY_DEFAULT_STREAM, 2: cuda.core.PER_THREAD_DEFAULT_STREAM}
        return singletons[queue.handle]
    try:
        device = cuda.core.Device(queue.device)
        device.set_current()  # create_stream asks for it, once in each thread
        return device.create_stream(Source(queue))  # which it keeps alive
    except Exception as error:
        raise events.core_error("cuCtxSetCurrent", error) from error


def event_handle(event: Any) -> int:
    """Read a ``cuda.core.Event``."""
    if not isinstance(event, cuda.core.Event):
        raise messages.not_a_stream(event)
    return int(event.handle)


def event_device(event: Any) -> int | None:
    """Return the device it was made on."""
    return int(event.device.device_id)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Refuse: cuda.core has no way to wrap an event."""
    raise messages.library_cannot_take(
        name, "an event made elsewhere", "let the stream wait instead: s.wait(event)"
    )
