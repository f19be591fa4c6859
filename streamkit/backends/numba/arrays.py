"""numba-cuda's device arrays, lent to other queues."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numba.cuda.cudadrv import devicearray, driver

from streamkit._base import messages


def array_device(array: Any) -> int | None:
    """Return the device of a device array."""
    if not isinstance(array, devicearray.DeviceNDArrayBase):
        raise messages.not_an_array(array)
    return int(array.gpu_data.context.device.id)


def lend(array: Any, owner: object) -> Any:
    """Build an array whose memory belongs to ``owner``."""
    if isinstance(array, np.ndarray):
        why = "its memory is the host's too (mapped, managed), and NumPy's views hold no owner"
        raise messages.cannot_lend(array, why)
    memory, lent = array.gpu_data, copy.copy(array)
    lent.gpu_data = driver.MemoryPointer(
        memory.context, memory.device_pointer, memory.size, owner=owner
    )
    return lent


def lent_by(array: Any) -> Any:
    """Return the owner of memory that is not numba's own."""
    return array.gpu_data.owner
