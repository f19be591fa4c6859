"""CuPy's arrays, lent to other queues: CuPy's pools know the stream of the allocation only."""

from __future__ import annotations

from typing import Any

import cupy

from streamkit._base import messages


def array_device(array: Any) -> int | None:
    """Return the device of a ``cupy.ndarray``."""
    if not isinstance(array, cupy.ndarray):
        raise messages.not_an_array(array)
    device: int = array.data.device_id
    return device


def lend(array: Any, owner: object) -> Any:
    """Build an array on the same memory, all of it: a view can begin at its end."""
    memory = array.data.mem
    whole = cupy.cuda.UnownedMemory(memory.ptr, memory.size, owner, array.data.device_id)
    pointer = cupy.cuda.MemoryPointer(whole, array.data.ptr - memory.ptr)
    lent = cupy.ndarray(array.shape, array.dtype, pointer, array.strides)
    return lent if type(array) is cupy.ndarray else lent.view(type(array))


def lent_by(array: Any) -> Any:
    """Return the owner of memory that is not CuPy's own."""
    return getattr(array.data.mem, "_owner", None)
