"""RMM: its streams, and its memory for other libraries. It has no current stream."""

from __future__ import annotations

from typing import Any

from rmm import mr
from rmm.pylibrmm.stream import Stream

from streamkit._cuda import driver
from streamkit._support import messages
from streamkit.backends._protocol import Source
from streamkit.errors import CaptureError
from streamkit.protocols import Queue, Traits
from streamkit.protocols.queues import LEGACY

name = "rmm"
api = 1
traits = Traits(streams_are_fixed=True)


def extract(obj: Any) -> Queue:
    if not isinstance(obj, Stream):
        raise messages.not_a_stream(obj)
    _, handle = obj.__cuda_stream__()
    return Queue(handle, owner=obj)


def borrow(queue: Queue) -> Any:
    """Build one on the queue, which it keeps alive."""
    return Stream(Source(queue))


# -- memory for other libraries -------------------------------------------------------------------

_taken: dict[int, tuple[Any, int, int, Any]] = {}
"""By address, what other libraries have: its resource, size, device and stream.

The device may have another resource by the time when the memory goes back.
"""


def allocate(size: int, device: int, stream: int) -> int:
    """Take memory from the resource that is the device's now."""
    handle = stream or LEGACY
    resource = mr.get_per_device_resource(device)
    taken_for = Stream(Source(Queue(handle, device)))
    with driver.in_context(driver.primary_context(device)):  # for which the resource was made
        _refuse_in_capture(device, handle)
        # it may call cudaMalloc
        pointer: int = driver.call_beside_captures(resource.allocate, size, taken_for)
    _taken[pointer] = resource, size, device, taken_for
    return pointer


def free(pointer: int) -> None:
    resource, size, device, stream = _taken[pointer]
    with driver.in_context(driver.primary_context(device)):
        _refuse_in_capture(device, stream.__cuda_stream__()[1])
        del _taken[pointer]  # before another thread can have it
        # it may call cudaFree
        driver.call_beside_captures(resource.deallocate, pointer, size, stream)


def _refuse_in_capture(device: int, handle: int) -> None:
    """Raise CaptureError if the stream captures, because then RMM must not see it.

    RMM's pool asks for the stream's id, which ends a capture. It also records an event for whoever
    gets the memory next, so that work outside would wait for work that never ran.
    """
    if driver.capture_id(handle) is not None:
        raise CaptureError(
            f"RMM has no memory for a graph: its pool would end the capture on stream {handle:#x} "
            f"of cuda:{device}. Allocate before the capture, or capture with streamkit.capture()."
        )
