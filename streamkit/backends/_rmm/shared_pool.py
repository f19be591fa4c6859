"""RMM's memory resources as the pool of other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmm import mr
from rmm.pylibrmm.stream import Stream

from streamkit._base.queue import LEGACY
from streamkit._cuda import driver
from streamkit.backends._protocol import Source
from streamkit.errors import CaptureError
from streamkit.protocols import Queue


class _Taken(NamedTuple):
    """What RMM has to be told again when memory goes back."""

    resource: Any
    """From which it was taken: the device may have another by then."""
    size: int
    device: int
    stream: Any


_taken: dict[int, _Taken] = {}
"""By address, what others have."""


def allocate(size: int, device: int, stream: int) -> int:
    """Take memory from the resource that is the device's now, for the stream."""
    handle = stream or LEGACY
    taken = _Taken(
        mr.get_per_device_resource(device), size, device, Stream(Source(Queue(handle, device)))
    )
    with driver.in_context(driver.primary_context(device)):  # for which the resource was made
        _refuse_in_capture(device, handle)
        with driver.beside_captures():  # it may call cudaMalloc
            pointer: int = taken.resource.allocate(size, taken.stream)
    _taken[pointer] = taken
    return pointer


def free(pointer: int) -> None:
    """Give it back to the stream that it was taken for."""
    resource, size, device, stream = _taken[pointer]
    with driver.in_context(driver.primary_context(device)):
        _refuse_in_capture(device, stream.__cuda_stream__()[1])
        del _taken[pointer]  # before another thread can have it
        with driver.beside_captures():  # it may call cudaFree
            resource.deallocate(pointer, size, stream)


def _refuse_in_capture(device: int, handle: int) -> None:
    """Raise CaptureError if RMM must not see the stream.

    Its pool asks for the stream's id, and records an event for those who get the memory next. The
    one ends a capture, and the other lets work outside wait for work that never ran.
    """
    if driver.capture_id(handle) is not None:
        raise CaptureError(
            f"RMM has no memory for a graph: its pool would end the capture on stream {handle:#x} "
            f"of cuda:{device}. Allocate before the capture, or capture with streamkit.capture()."
        )
