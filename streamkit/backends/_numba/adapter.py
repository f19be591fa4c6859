"""numba-cuda: streams, events and arrays, without a current stream."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import devicearray, driver

from streamkit._support import messages
from streamkit.protocols import ArrayLayout, Queue, Traits
from streamkit.protocols.queues import queue_of_bindings

name = "numba"
api = 1
traits = Traits(
    streams_are_fixed=True,
    remembers_handles=False,  # memory of numba-cuda is not bound to streams
)


def extract(obj: Any) -> Queue:
    """Read a numba-cuda stream, whose handle is an object of cuda.bindings."""
    if not isinstance(obj, driver.Stream):
        raise messages.not_a_stream(obj)
    return queue_of_bindings(int(obj.handle), obj, dies_with_owner=not obj.external)


def borrow(queue: Queue) -> Any:
    """Build a numba-cuda stream on the queue; no context is needed."""
    stream = driver.Stream(driver.binding.CUstream(queue.handle), external=True)
    stream._streamkit_queue = queue  # numba keeps no owner
    return stream


def event_handle(event: Any) -> int:
    if not isinstance(event, driver.Event):
        raise messages.not_a_stream(event)
    return int(event.handle)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Build a numba-cuda event that does not own the event."""
    event = driver.Event(driver.binding.CUevent(handle))
    event._streamkit_owner = owner
    return event


def array_device(array: Any) -> int | None:
    if not isinstance(array, devicearray.DeviceNDArrayBase):
        raise messages.not_an_array(array)
    return int(array.gpu_data.context.device.id)


def lend(array: Any, owner: object) -> Any:
    if isinstance(array, np.ndarray):
        why = "its memory is the host's too (mapped, managed), and NumPy's views hold no owner"
        raise messages.cannot_lend(array, why)
    memory, lent = array.gpu_data, copy.copy(array)
    lent.gpu_data = driver.MemoryPointer(
        memory.context, memory.device_pointer, memory.size, owner=owner
    )
    return lent


def lent_by(array: Any) -> Any:
    return array.gpu_data.owner


def adopt(memory: Any) -> Any:
    return cuda.as_cuda_array(memory, sync=False)


def array_layout(array: Any) -> ArrayLayout:
    address = array.device_ctypes_pointer.value
    return ArrayLayout(address, array.shape, array.strides, array.dtype, array.dtype.itemsize)


def array_like(array: Any, device: int) -> Any:
    """Return a device array of the same order."""
    return cuda.device_array_like(array)


def copy_array(to: Any, source: Any, stream: Any) -> None:
    to.copy_to_device(source, stream=stream)
