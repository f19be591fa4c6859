"""Warp's arrays, lent to other queues: Warp frees memory on the legacy stream."""

from __future__ import annotations

from typing import Any

import warp

from streamkit._base import messages


def array_device(array: Any) -> int | None:
    """Return the device of a ``wp.array``; there are other classes, which have several."""
    kind: Any = getattr(warp, "array", ())  # a half-imported warp has none yet
    if not isinstance(array, kind) or array.device is None:
        raise messages.not_an_array(array)
    return int(array.device.ordinal) if array.device.is_cuda else None


def lend(array: Any, owner: object) -> Any:
    """Build a view that holds the owner instead of the array; its own views hold it.

    Its gradient is an array by itself.
    """
    lent = array.view(array.dtype)
    for part in (lent, lent.grad):
        if part is not None:
            part._streamkit_loan = owner  # noqa: SLF001 - Warp keeps none
            part._ref = None  # noqa: SLF001 - what it is a view of, always an array
    return lent


def lent_by(array: Any) -> Any:
    """Return what the array holds instead of memory of its own."""
    return getattr(array, "_streamkit_loan", None)
