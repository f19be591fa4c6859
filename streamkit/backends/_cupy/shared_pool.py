"""CuPy's arrays in the pool of another library, and others in CuPy's."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

import cupy

from streamkit._cuda import driver
from streamkit._support import messages
from streamkit.backends._frees import Frees, Piece
from streamkit.backends._protocol import Source
from streamkit.errors import CaptureError
from streamkit.protocols import Queue
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Memory

_given: dict[int, tuple[Any, Any]] = {}
"""By address, what other libraries have: the stream for which it was taken, and CuPy's memory."""


def allocate(size: int, device: int, stream: int) -> int:
    """Take memory as an array would that is made on the stream: a graph's, if that captures."""
    with cupy.cuda.Device(device):
        before = made_on = cupy.cuda.get_current_stream(device)
        if before.ptr != stream:
            made_on = _stream(stream, device)
            made_on.use()
        try:
            memory = cupy.cuda.alloc(size)
        finally:
            before.use()
    pointer: int = memory.ptr
    _given[pointer] = made_on, memory
    return pointer


def free(pointer: int) -> None:
    _made_on, memory = _given.pop(pointer)
    del memory  # before the stream, to which stream-ordered memory has only a weak reference


def _stream(handle: int, device: int) -> Any:
    if not handle:
        return cupy.cuda.Stream.null
    stream = cupy.cuda.Stream.from_external(Source(Queue(handle, device)))
    stream.device_id = device
    return stream


def take_memory(giver: Memory) -> Callable[[], bool]:
    """Set CuPy's allocator, and free what its own pool holds unused."""
    before, memory = cupy.cuda.get_allocator(), _Memory(giver)
    ours = cupy.cuda.PythonFunctionAllocator(memory.allocate, memory.free).malloc
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.cuda.set_allocator(ours)

    def restore() -> bool:
        is_ours = cupy.cuda.get_allocator() == ours
        if is_ours:
            cupy.cuda.set_allocator(before)
        return bool(is_ours)

    return restore


class _Memory:
    """The memory of CuPy's arrays, each piece with the stream for which it was taken."""

    def __init__(self, giver: Memory) -> None:
        self._giver = giver
        self._streams: dict[int, Any] = {}
        self._frees = Frees(lambda: True)

    def allocate(self, size: int, device: int) -> int:
        self._frees.do()
        stream = cupy.cuda.get_current_stream(device)
        pointer = self._giver.allocate(size, device, _handle(stream))
        self._streams[pointer] = stream
        return pointer

    def free(
        self, pointer: int, device: int, is_finalizing: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Give it back, after the work of CuPy's current stream if that is another one."""
        if is_finalizing() or not driver.is_usable():
            return
        made_on, last = self._streams.pop(pointer), cupy.cuda.get_current_stream(device)
        free = functools.partial(self._giver.free, pointer)
        if made_on.ptr == last.ptr:
            with contextlib.suppress(CaptureError):  # then with a later call
                free()
                return
        handles = made_on.ptr or LEGACY, last.ptr or LEGACY
        self._frees.add(Piece(device, *handles, (made_on, last), free))


def _handle(stream: Any) -> int:
    handle: int = stream.ptr
    if handle == PER_THREAD:
        raise messages.not_per_thread("CuPy")
    return handle
