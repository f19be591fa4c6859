"""The arrays among the parameters of Warp's kernels, but not whether a kernel reads or writes them.

Warp notes that only in modules that are built to verify it, and a kernel's name does not say
whether its module is one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from streamkit.protocols import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ARRAY = struct.Struct("<QQ4i4iHHi")  # addresses of the array and its gradient, shape, strides
_DIMS = 4


def explain_kernel(name: str, parameters: Sequence[bytes]) -> list[MemoryUse] | None:
    # the first parameter has the shape of the launch
    return [use for parameter in parameters[1:] for use in _uses(parameter)]


def _uses(parameter: bytes) -> Iterator[MemoryUse]:
    """Yield the arrays in a parameter, which is one array or a structure of several."""
    start = 0
    while start + 8 <= len(parameter):
        if found := list(_array(parameter, start)):
            yield from found
            start += _ARRAY.size
        else:
            (word,) = struct.unpack_from("<Q", parameter, start)
            yield MemoryUse(word, "unknown")
            start += 8


def _array(parameter: bytes, start: int) -> Iterator[MemoryUse]:
    if start + _ARRAY.size > len(parameter):
        return
    address, gradient, *rest = _ARRAY.unpack_from(parameter, start)
    dims = rest[2 * _DIMS]
    shape, strides = tuple(rest[:dims]), tuple(rest[_DIMS : _DIMS + dims])
    is_array = 0 < dims <= _DIMS and min(shape) > 0 and not any(rest[dims:_DIMS])
    if is_array and all(strides):
        size = min(map(abs, strides))  # no element is longer
        yield MemoryUse(address, "unknown", shape, strides, size)
        if gradient:
            yield MemoryUse(gradient, "unknown", shape, strides, size)
