"""torch's tensors on other queues: by ``record_stream``, or lent if the memory is not torch's."""

from __future__ import annotations

from typing import Any

import torch

from streamkit._base import messages

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

_recorded: dict[Any, list[Any]] = {}
"""Of each queue that torch's allocator may ask until the process ends, the first record and the
last: nobody knows whose owner destroys it."""


def array_device(array: Any) -> int | None:
    """Return the device of a tensor."""
    kind: Any = getattr(torch, "Tensor", ())  # a half-imported torch has none yet
    if not isinstance(array, kind) or array.device.type not in ("cpu", "cuda"):
        raise messages.not_an_array(array)
    index: int | None = array.device.index if array.device.type == "cuda" else None
    return index


def record_stream(array: Any, stream: Any) -> bool:
    """Have torch's allocator wait for the stream, if the memory is its own.

    torch remembers the stream's handle only, so its owner must not go.
    """
    if array.layout is not torch.strided or array.is_nested:
        what = "nested" if array.is_nested else array.layout
        raise messages.cannot_lend(array, f"it is {what}, of several tensors")
    storage = array.untyped_storage()
    if not torch._C._has_Standard_Deleter(storage._cdata):  # noqa: SLF001 - what torch itself asks
        return False
    queue = getattr(stream, "_streamkit_queue", None)
    if queue is not None and queue.owner is not None and not queue.is_owned:
        _remember(queue)  # a stream of StreamKit's is parked instead
    array.record_stream(stream)
    return True


def _remember(queue: Any) -> None:
    _recorded[queue.id] = [*_recorded.get(queue.id, ())[:1], queue]


def lend(array: Any, owner: object) -> Any:
    """Build a tensor on memory of somebody else; its storage holds the owner."""
    if array.requires_grad or array.is_conj() or array.is_neg() or array.is_quantized:
        raise messages.cannot_lend(
            array, "its memory is not torch's, and it has a gradient, a lazy sign or a scale"
        )
    # as numbers of that size, for DLPack does not know every type
    bits = array.view(_BITS[array.element_size()])
    lent = torch.from_dlpack(torch.utils.dlpack.to_dlpack(bits)).view(array.dtype)
    # all views have this storage, whose Python object, once made, lives as long as it does
    lent.untyped_storage()._streamkit_loan = owner  # noqa: SLF001 - for lent_by
    return lent if type(array) is torch.Tensor else lent.as_subclass(type(array))


def lent_by(array: Any) -> Any:
    """Return what ``lend`` attached to the storage of this tensor."""
    return getattr(array.untyped_storage(), "_streamkit_loan", None)
