"""The bytes of an array, by its address, shape and strides, and whether two arrays share any."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST = 4096  # blocks that are looked at one by one


class Extent(NamedTuple):
    """Blocks of bytes between two addresses, at regular distances."""

    start: int
    stop: int
    """One past the last byte."""
    block: int
    """Bytes without a gap."""
    dims: tuple[tuple[int, int], ...] = ()
    """Distance and number of blocks, then of groups of blocks, and so on; empty for one block."""


def strided(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> Extent | None:
    """Return the extent of an array; None if it has no bytes."""
    if 0 in shape or not itemsize:
        return None
    start, size = address, itemsize
    if strides and min(strides) < 0:
        both = zip(strides, shape, strict=True)
        start += sum(stride * (count - 1) for stride, count in both if stride < 0)
    dims: list[tuple[int, int]] = []
    for stride, count in sorted(zip(map(abs, strides), shape, strict=True)):
        if not stride or count == 1:
            continue
        if not dims and stride <= size:
            size += stride * (count - 1)
        elif dims and stride == dims[-1][0] * dims[-1][1]:
            dims[-1] = dims[-1][0], dims[-1][1] * count
        else:
            dims.append((stride, count))
    return Extent(start, start + _span(size, dims), size, tuple(dims))


def overlap(one: Extent, other: Extent) -> bool | None:
    """Whether two extents share a byte; None if it would take too long to find out."""
    if one.stop <= other.start or other.stop <= one.start:
        return False
    if not one.dims and not other.dims:
        return True
    if _lie_side_by_side(one, other):
        return False
    few, many = sorted((one, other), key=_blocks)
    if not _is_nested(many):
        few, many = many, few
        if not _is_nested(many):
            return None
    for start in itertools.islice(_starts(few.start, few.dims), _MOST):
        if _touches(many.start, many.dims, many.block, start, start + few.block):
            return True
    return False if _blocks(few) <= _MOST else None


def _span(size: int, dims: Sequence[tuple[int, int]]) -> int:
    return size + sum(stride * (count - 1) for stride, count in dims)


def _blocks(extent: Extent) -> int:
    return math.prod(count for _, count in extent.dims)


def _is_nested(extent: Extent) -> bool:
    """Whether each group of blocks ends before the next one begins."""
    return all(
        stride >= _span(extent.block, extent.dims[:place])
        for place, (stride, _) in enumerate(extent.dims)
    )


def _lie_side_by_side(one: Extent, other: Extent) -> bool:
    """Whether two extents alternate, like the even and the odd elements of one array."""
    period = math.gcd(*(stride for stride, _ in one.dims + other.dims))
    between = (other.start - one.start) % period
    return between >= one.block and between + other.block <= period


def _starts(start: int, dims: Sequence[tuple[int, int]]) -> Iterator[int]:
    if not dims:
        yield start
        return
    stride, count = dims[-1]
    for number in range(count):
        yield from _starts(start + number * stride, dims[:-1])


def _touches(start: int, dims: Sequence[tuple[int, int]], size: int, low: int, high: int) -> bool:
    """Whether nested blocks have a byte between two addresses."""
    if not dims:
        return start < high and low < start + size
    stride, count = dims[-1]
    inner = dims[:-1]
    first = max(0, (low - start - _span(size, inner)) // stride + 1)
    last = min(count - 1, (high - 1 - start) // stride)
    if last > first:  # the bytes reach from the end of one group to the beginning of the next
        return True
    return first == last and _touches(start + first * stride, inner, size, low, high)
