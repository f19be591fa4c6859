"""The memory that CuPy's own kernels use: arrays come by value, the outputs last.

The kernels of ufuncs have the types of their parameters in their names. Of other kernels only the
arrays are known, and not whether they are read or written.
"""

from __future__ import annotations

import re
import struct
from math import prod
from typing import TYPE_CHECKING

import cupy

from streamkit.protocols import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_UFUNC = re.compile(r"^cupy_(\w+?)__(\w+)$")
_REDUCTION = re.compile(r"^cupy_(?:sum|prod|max|min|argmax|argmin|all|any|mean|count_nonzero)$")
_TYPES = re.compile(
    r"(?<![^_])(?:bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128))(?![^_])"
)
_HEAD, _AXIS = 16, 16  # bytes of an address and a count, and of a length and a stride


def explain_kernel(name: str, parameters: Sequence[bytes]) -> list[MemoryUse] | None:
    arrays = [array for one in parameters if (array := _array(one)) is not None]
    ufunc = _UFUNC.match(name)
    outputs = 0
    if ufunc is not None:
        outputs = getattr(getattr(cupy, ufunc[1], None), "nout", 1)
    elif name == "cupy_fill" or (_REDUCTION.match(name) and len(arrays) == 2):  # noqa: PLR2004 - in, out
        outputs = 1
    elif len(arrays) == 0:
        return None
    types = _TYPES.findall(ufunc[2]) if ufunc else []
    sizes = [cupy.dtype(one).itemsize for one in types] if len(types) == len(arrays) else []
    is_sure = bool(outputs) and "where" not in name  # with a mask it may leave elements alone
    first = len(arrays) - outputs
    uses: list[MemoryUse] = []
    for place, array in enumerate(arrays):
        used = array
        if outputs:
            used = array._replace(mode="read" if place < first else "write", is_sure=is_sure)
        uses += [used._replace(itemsize=sizes[place])] if sizes else _without_types(used)
    return uses


def _array(parameter: bytes) -> MemoryUse | None:
    """Read an array that was passed by value; None if the parameter is not an array."""
    dims, rest = divmod(len(parameter) - _HEAD, _AXIS)
    if dims < 0 or rest:
        return None
    address, size, *axes = struct.unpack(f"<QQ{2 * dims}q", parameter)
    shape, strides = tuple(axes[:dims]), tuple(axes[dims:])
    return MemoryUse(address, "unknown", shape, strides) if size == prod(shape) else None


def _without_types(array: MemoryUse) -> Iterator[MemoryUse]:
    """Yield the first byte of each element, which is surely used, and the most that may be used."""
    if array.is_sure:
        yield array
    axes = zip(array.strides, array.shape or (), strict=True)
    steps = (abs(step) for step, count in axes if count > 1 and step)
    widest = min(steps, default=_HEAD)  # no element is longer than that
    yield array._replace(itemsize=widest, is_sure=False)
