"""torch's tensors on other queues: by ``record_stream``, or lent if the memory is not torch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from streamkit import _refusals

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_TYPES = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8", 16: "<c16"}  # the same, for the array interface

_recorded: dict[Any, Any] = {}  # queues that torch's allocator may ask until the process ends


def array_device(array: Any) -> int | None:
    """Return the device of a tensor."""
    kind: Any = getattr(torch, "Tensor", ())  # a half-imported torch has none yet
    if not isinstance(array, kind) or array.device.type not in ("cpu", "cuda"):
        raise _refusals.not_an_array(array)
    index: int | None = array.device.index if array.device.type == "cuda" else None
    return index


def record_stream(array: Any, stream: Any) -> bool:
    """Have torch's allocator wait for the stream, if the memory is its own.

    torch remembers the stream's handle only, so its owner must not go.
    """
    if array.layout is not torch.strided:
        raise _refusals.cannot_lend(array, f"it is {array.layout}, of several tensors")
    storage = array.untyped_storage()
    if not torch._C._has_Standard_Deleter(storage._cdata):  # noqa: SLF001 - what torch itself asks
        return False
    queue = getattr(stream, "_streamkit_queue", None)
    if queue is not None and queue.owner is not None and not queue.is_owned:
        _recorded[queue.id] = queue  # a stream of StreamKit's is parked instead
    array.record_stream(stream)
    return True


def lend(array: Any, owner: object) -> Any:
    """Build a tensor on memory of somebody else, through the interface that takes an owner."""
    if array.requires_grad or array.is_conj() or array.is_neg():
        raise _refusals.cannot_lend(
            array, "its memory is not torch's, and it has a gradient or a lazy sign"
        )
    size = array.element_size()
    whole = SimpleNamespace(
        owner=owner,
        __cuda_array_interface__={
            "shape": tuple(array.shape),
            "strides": tuple(step * size for step in array.stride()),
            "typestr": _TYPES[size],
            "data": (array.data_ptr(), False),
            "version": 2,
        },
    )
    lent = torch.as_tensor(whole, device=array.device).view(array.dtype)
    lent._streamkit_loan = owner  # noqa: SLF001 - for lent_by
    return lent


def lent_by(array: Any) -> Any:
    """Return what ``lend`` attached to this tensor."""
    return getattr(array, "_streamkit_loan", None)
