"""numba-cuda and its successor, numba-cuda-mlir: streams, events and arrays.

Neither has a current stream. The second has a copy of the first one's modules, so one adapter
serves both.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from streamkit._support import messages
from streamkit.protocols import ArrayLayout, Queue, Traits
from streamkit.protocols.queues import queue_of_bindings


class NumbaAdapter:
    """The adapter of one of the two, by the modules of that one."""

    api = 1
    traits = Traits(
        streams_are_fixed=True,
        remembers_handles=False,  # memory of theirs is not bound to streams
    )

    def __init__(self, name: str, cuda: Any) -> None:
        self.name, self._cuda = name, cuda
        self._driver, self._arrays = cuda.cudadrv.driver, cuda.cudadrv.devicearray

    def extract(self, obj: Any) -> Queue:
        """Read a stream of theirs, whose handle is an object of cuda.bindings."""
        if not isinstance(obj, self._driver.Stream):
            raise messages.not_a_stream(obj)
        return queue_of_bindings(int(obj.handle), obj, dies_with_owner=not obj.external)

    def borrow(self, queue: Queue) -> Any:
        """Build a stream of theirs on the queue; no context is needed."""
        stream = self._driver.Stream(self._driver.binding.CUstream(queue.handle), external=True)
        stream._streamkit_queue = queue  # numba keeps no owner
        return stream

    def event_handle(self, event: Any) -> int:
        if not isinstance(event, self._driver.Event):
            raise messages.not_a_stream(event)
        return int(event.handle)

    def borrow_event(self, handle: int, device: int, owner: object) -> Any:
        """Build an event of theirs that does not own the event."""
        event = self._driver.Event(self._driver.binding.CUevent(handle))
        event._streamkit_owner = owner
        return event

    def array_device(self, array: Any) -> int | None:
        if not isinstance(array, self._arrays.DeviceNDArrayBase):
            raise messages.not_an_array(array)
        return int(array.gpu_data.context.device.id)

    def lend(self, array: Any, owner: object) -> Any:
        if isinstance(array, np.ndarray):
            why = "its memory is the host's too (mapped, managed), and NumPy's views hold no owner"
            raise messages.cannot_lend(array, why)
        memory, lent = array.gpu_data, copy.copy(array)
        lent.gpu_data = self._driver.MemoryPointer(
            memory.context, memory.device_pointer, memory.size, owner=owner
        )
        return lent

    def lent_by(self, array: Any) -> Any:
        return array.gpu_data.owner

    def adopt(self, memory: Any) -> Any:
        return self._cuda.as_cuda_array(memory, sync=False)

    def array_layout(self, array: Any) -> ArrayLayout:
        address = array.device_ctypes_pointer.value
        return ArrayLayout(address, array.shape, array.strides, array.dtype, array.dtype.itemsize)

    def array_like(self, array: Any, device: int) -> Any:
        """Return a device array of the same order."""
        return self._cuda.device_array_like(array)

    def copy_array(self, to: Any, source: Any, stream: Any) -> None:
        to.copy_to_device(source, stream=stream)
