"""numba-cuda: its streams and events. It has no current stream."""

from __future__ import annotations

from typing import Any

from numba.cuda.cudadrv import driver

from streamkit._base import messages
from streamkit.backends.numba.arrays import array_device, lend, lent_by
from streamkit.protocols import Queue, Traits

__all__ = ["array_device", "lend", "lent_by"]  # a part of the adapter, from the file beside

name = "numba"
api = 1
traits = Traits(
    streams_are_fixed=True,
    remembers_handles=False,  # its memory is not bound to streams
)


def extract(obj: Any) -> Queue:
    """Read a numba-cuda stream, whose handle is an object of cuda.bindings."""
    if not isinstance(obj, driver.Stream):
        raise messages.not_a_stream(obj)
    handle = int(obj.handle)
    return Queue(handle, None, None if handle <= 2 else obj)  # noqa: PLR2004 - default streams


def borrow(queue: Queue) -> Any:
    """Build a numba-cuda stream on the queue; no context is needed."""
    stream = driver.Stream(driver.binding.CUstream(queue.handle), external=True)
    stream._streamkit_queue = queue  # noqa: SLF001 - numba keeps no owner
    return stream


def event_handle(event: Any) -> int:
    """Read a numba-cuda event."""
    if not isinstance(event, driver.Event):
        raise messages.not_a_stream(event)
    return int(event.handle)


def borrow_event(handle: int, device: int, owner: object) -> Any:  # noqa: ARG001 - contract
    """Build a numba-cuda event that does not own the event."""
    event = driver.Event(driver.binding.CUevent(handle))
    event._streamkit_owner = owner  # noqa: SLF001 - numba keeps none
    return event
