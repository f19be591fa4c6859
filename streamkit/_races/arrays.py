"""The arrays among the arguments of a call: where their memory is, and whose."""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamkit._base.messages import describe
from streamkit._races.extents import strided
from streamkit._races.search import Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamkit._races.search import Mode

_ON_THE_HOST = 1  # kDLCPU of DLPack
_CONTAINERS = (tuple, list, set, frozenset)
_DEPTH = 4  # of containers in each other


def checked_names(arrays: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the arrays that a caller has named; TypeError if that is no dictionary."""
    if not (arrays is None or isinstance(arrays, dict)):
        raise TypeError(
            f"races takes a dictionary of names and arrays, as in races({{'x': x}}), not "
            f"{describe(arrays)}."
        )
    return arrays or {}


@dataclass(frozen=True)
class RacedArray:
    """An array with a race on it."""

    name: str | None
    """What the caller, or the argument ``arrays``, calls it; None where neither has a name."""
    dtype: str
    """Empty where only the memory is known."""
    shape: tuple[int, ...]
    nbytes: int
    """Of its elements; 0 where that is not known."""
    address: int = 0
    """Of memory on a GPU."""

    def __str__(self) -> str:
        if not self.dtype:
            name = f"{self.name or 'memory'} at {self.address:#x}"
            return f"{name} ({self.nbytes} bytes)" if self.nbytes else name
        shape = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.name or 'an array'} ({self.dtype}, shape ({shape}), {self.nbytes} bytes)"


class Memories:
    """Finds the memory of arrays, and distinguishes allocations that follow at one address."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._owners: dict[int, tuple[weakref.ref[Any], int]] = {}  # by their ids

    def access(self, use: tuple[Any, Mode, bool], names: Mapping[int, str]) -> Access | None:
        """Return what a use of an array of the host accesses, None if the array has no memory.

        It keeps nothing alive. Its allocation differs from that of each array that was freed
        before, and is None if NumPy does not own the memory. ``names`` are those of objects, by
        their ids.
        """
        value, mode, is_sure = use
        array = _as_numpy(value)
        address = array.__array_interface__["data"][0]
        extent = strided(address, array.shape, array.strides, array.itemsize)
        if extent is None:
            return None
        owner = owner_of(array)
        name = names.get(id(value))
        if name is None and id(owner) in names:
            name = f"part of {names[id(owner)]}"
        described = RacedArray(name, str(array.dtype), array.shape, array.nbytes)
        number = self._number(owner) if owner.flags.owndata else None
        return Access(number, extent, mode, is_sure, described)

    def _number(self, owner: Any) -> int:
        found = self._owners.get(id(owner))
        if found is None or found[0]() is not owner:
            found = self._owners[id(owner)] = weakref.ref(owner), next(self._numbers)
        return found[1]


def owner_of(array: Any) -> Any:
    """Return the array of which this one is a view, perhaps itself."""
    while isinstance(array.base, sys.modules["numpy"].ndarray):
        array = array.base
    return array


def among(value: object, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the arrays of the host in a value, also in containers."""
    if isinstance(value, dict):
        yield from among(tuple(value.values()), depth)
    elif isinstance(value, _CONTAINERS):
        for one in value if depth else ():
            yield from among(one, depth - 1)
    elif _as_numpy(value) is not None:
        yield value


def _as_numpy(value: Any) -> Any:
    """Return an array of the host, of any library, as one of NumPy; None for another object."""
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(
        value, (type, numpy.generic)
    ):  # nothing else uses the memory of a scalar
        return None
    if isinstance(value, numpy.ndarray):
        return value
    with contextlib.suppress(Exception):  # its memory is on a GPU, or the library does not lend it
        if hasattr(value, "__dlpack_device__"):
            is_here = value.__dlpack_device__()[0] == _ON_THE_HOST
            return numpy.from_dlpack(value) if is_here else None
        if hasattr(value, "__array_interface__"):
            return numpy.asarray(value)
    return None
