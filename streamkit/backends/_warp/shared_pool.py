"""Warp's arrays in the pool of another library.

They are freed in the order of Warp's own: after the work of all blocking streams, and of the
non-blocking queues lent to Warp.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import warp

from streamkit._cuda import driver, memory_pools
from streamkit._support import messages
from streamkit.backends._frees import Frees, Piece
from streamkit.backends._warp import memory
from streamkit.backends._warp.current_stream import warp_runtime
from streamkit.errors import CaptureError
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Memory


def take_memory(giver: Memory) -> Callable[[], bool]:
    """Set the allocator of each device; what its own pool holds unused is freed."""
    frees = Frees(_can_free)
    allocators = [_Allocator(device, giver, frees) for device in warp.get_cuda_devices()]
    for ours in allocators:
        if ours.device.is_mempool_supported:
            memory_pools.trim(ours.device.ordinal)
    for ours in allocators:
        warp.set_device_allocator(ours.device, ours)

    def restore() -> bool:
        still = [ours for ours in allocators if memory.allocator_of(ours.device) is ours]
        for ours in still:
            warp.set_device_allocator(ours.device, ours.former)
        return len(still) == len(allocators)

    return restore


class _Allocator:
    """What Warp asks for one device's memory."""

    waits_for_queues = True

    def __init__(self, device: Any, giver: Memory, frees: Frees) -> None:
        self.device, self._giver, self._frees = device, giver, frees
        self.former = memory.allocator_of(device)
        self._streams: dict[int, Any] = {}
        self._own: dict[int, Any] = {}
        """By address, which allocator of Warp's has memory for a graph, if the giver has none."""

    def allocate(self, size_in_bytes: int) -> int:
        self._frees.do()
        stream = self.device.stream
        number = int(stream.cuda_stream or 0)
        if number == PER_THREAD:
            raise messages.not_per_thread("Warp")
        try:
            pointer = self._giver.allocate(size_in_bytes, self.device.ordinal, number)
        except CaptureError:
            own = self.former or self.device.current_allocator
            pointer = own.allocate(size_in_bytes)
            self._own[pointer] = own
        else:
            self._streams[pointer] = stream
        return pointer

    def deallocate(
        self,
        ptr: int,
        size_in_bytes: int,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        if is_finalizing() or not driver.is_usable():
            return
        own = self._own.pop(ptr, None)
        if own is not None:
            own.deallocate(ptr, size_in_bytes)
            return
        stream = self._streams.pop(ptr)
        handle = int(stream.cuda_stream or LEGACY)
        free = functools.partial(self._giver.free, ptr)
        self._frees.add(Piece(self.device.ordinal, handle, LEGACY, (stream,), free))


def _can_free() -> bool:
    """Have the legacy stream wait for the lent queues; False while Warp knows of a capture."""
    captures = getattr(warp_runtime(), "captures", None)
    if captures is None:  # in another Warp
        captures = any(device.is_capturing for device in warp.get_cuda_devices())
    if captures:
        return False
    return not memory.watched or memory.wait_for_queues()
