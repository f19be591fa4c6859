"""What CuPy's own kernels do with memory: they are given arrays by value, the outputs last.

The kernels of ufuncs have the types of their parameters in their names. Of other kernels only the
arrays are known, and not what becomes of them.
"""

from __future__ import annotations

import re
import struct
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

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


class _Array(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


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
    # with a mask it may leave elements alone
    is_sure = bool(outputs) and "where" not in name
    first = len(arrays) - outputs
    return [
        use
        for place, array in enumerate(arrays)
        for use in _uses(
            array,
            "unknown" if not outputs else "read" if place < first else "write",
            sizes[place] if sizes else 0,
            is_sure=is_sure,
        )
    ]


def _array(parameter: bytes) -> _Array | None:
    """Read an array that was passed by value; None if the parameter is none."""
    dims, rest = divmod(len(parameter) - _HEAD, _AXIS)
    if dims < 0 or rest:
        return None
    address, size, *axes = struct.unpack(f"<QQ{2 * dims}q", parameter)
    shape, strides = tuple(axes[:dims]), tuple(axes[dims:])
    return _Array(address, shape, strides) if size == prod(shape) else None


def _uses(
    array: _Array, mode: Literal["read", "write", "unknown"], size: int, *, is_sure: bool
) -> Iterator[MemoryUse]:
    if size:
        yield MemoryUse(*_placed(array, mode), size, is_sure)
        return
    if is_sure:
        yield MemoryUse(*_placed(array, mode), 1, is_sure=True)
    steps = (abs(step) for step, count in zip(array.strides, array.shape, strict=True) if count > 1)
    widest = min((step for step in steps if step), default=_HEAD)  # no element is longer than that
    yield MemoryUse(*_placed(array, mode), widest)


def _placed(
    array: _Array, mode: Literal["read", "write", "unknown"]
) -> tuple[int, Literal["read", "write", "unknown"], tuple[int, ...], tuple[int, ...]]:
    return array.address, mode, array.shape, array.strides
