"""The arrays among the arguments of a call, with the places and owners of their memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import types
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._queues import registry
from streamkit._support.extents import strided
from streamkit._support.messages import describe
from streamkit.diagnostics.races.search import Access
from streamkit.protocols import Diagnosis
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from streamkit.diagnostics.races.search import Mode

_ON_THE_HOST = 1  # kDLCPU of DLPack
CONTAINERS = (tuple, list, set, frozenset, deque)
NO_ARRAYS: set[type[Any]] = {
    bool, int, float, complex, str, bytes, slice, type, type(None), types.FunctionType,
    types.BuiltinFunctionType, types.ModuleType,
}  # fmt: skip
"""Types of objects that are no arrays, which most arguments and variables have."""
_DEPTH = 4  # of containers in each other


def checked_names(arrays: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the arrays that a caller has named; TypeError if that is no dictionary."""
    if not (arrays is None or isinstance(arrays, dict)):
        raise TypeError(
            f"races takes a dictionary of names and arrays, as in races({{'x': x}}), not "
            f"{describe(arrays)}."
        )
    return arrays or {}


@dataclass(frozen=True, slots=True)
class RacedArray:
    """An array with a race on it."""

    name: str | None
    """The name in the caller's code, or in the argument ``arrays``; None where neither has one."""
    dtype: str
    """Empty where only the memory is known."""
    shape: tuple[int, ...]
    nbytes: int
    """The size of its elements; 0 where that is not known."""
    address: int = 0
    """The address on a GPU; 0 for memory of the host."""

    def __str__(self) -> str:
        if not self.dtype:
            name = self.name or "memory"
            name += f" at {self.address:#x}" if self.address else ""
            return f"{name} ({self.nbytes} bytes)" if self.nbytes else name
        shape = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.name or 'an array'} ({self.dtype}, shape ({shape}), {self.nbytes} bytes)"


class _ArrayMemory(NamedTuple):
    """The memory of an array of the host, and the owner of that memory."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    whole: Any
    """The object that all views of the memory share."""
    is_own: bool
    """Whether this object lives as long as the memory."""


class Memories:
    """Finds the memory of arrays, and tells allocations apart that follow at one address."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._owners: dict[int, tuple[weakref.ref[Any], int]] = {}  # by their ids
        self._alike: dict[tuple[Any, ...], Access | None] = {}
        self._adapters: dict[type, Any] = {}  # those that see operators on arrays of a type

    def access(self, use: tuple[Any, Mode, bool], names: Mapping[int, str]) -> Access | None:
        """Return the access that a use of an array makes, None if the array has no memory.

        An access keeps nothing alive. Its allocation differs from those of all arrays that were
        freed before, and is None if the library does not own the memory. ``names`` are from
        ``names_of``.
        """
        value, mode, is_sure = use
        found = self._memory(value)
        name = names.get(id(value))
        if name is None and id(found.whole) in names:
            name = f"part of {names[id(found.whole)]}"
        number = self._number(found.whole) if found.is_own else None
        alike = number, mode, is_sure, name, found[:5]
        try:
            return self._alike[alike]  # a loop makes the same ones again
        except KeyError:
            access = _access(found, number, mode, name, is_sure=is_sure and not has_gaps(value))
        return self._alike.setdefault(alike, access)

    def names_of(self, variables: Iterable[tuple[str, object]]) -> dict[int, str]:
        """Return the names of objects, and of the owners of arrays' memory, by their ids."""
        names: dict[int, str] = {}
        for name, value in variables:
            names[id(value)] = name
            if self._adapters.get(type(value), self) is not None:  # the type is watched, or new
                adapter = self.watching(value)
                if adapter is not None:
                    names[id(adapter.storage_of(value).whole)] = name
        return names

    def watching(self, value: Any) -> Any:
        """Return the adapter that sees operators on an array of the host, None without one."""
        kind = type(value)
        if kind not in self._adapters:
            self._adapters[kind] = next(
                (one for one in registry.candidates(kind) if watches(one)), None
            )
        adapter = self._adapters[kind]
        if adapter is not None:
            with contextlib.suppress(Exception):  # no array, or one that answers nothing
                is_here = adapter.array_device(value) is None
                return adapter if is_here and adapter.storage_of(value) else None
        return None

    def _memory(self, value: Any) -> _ArrayMemory:
        adapter = self.watching(value)
        if adapter is not None:
            address, shape, strides, _, itemsize, _ = adapter.array_layout(value)
            storage, dtype = adapter.storage_of(value), _text(value.dtype).rpartition(".")[2]
            own = storage.whole, storage.is_own
            return _ArrayMemory(address, shape, strides, itemsize, dtype, *own)
        array = _as_numpy(value)
        address, whole = array.__array_interface__["data"][0], owner_of(array)
        kind = array.itemsize, _text(array.dtype)
        return _ArrayMemory(address, array.shape, array.strides, *kind, whole, whole.flags.owndata)

    def _number(self, owner: Any) -> int:
        found = self._owners.get(id(owner))
        if found is None or found[0]() is not owner:
            found = self._owners[id(owner)] = weakref.ref(owner), next(self._numbers)
        return found[1]


def _access(
    found: _ArrayMemory, number: int | None, mode: Mode, name: str | None, *, is_sure: bool
) -> Access | None:
    extent = strided(found.address, found.shape, found.strides, found.itemsize)
    if extent is None:
        return None
    size = math.prod(found.shape) * found.itemsize
    array = RacedArray(name, found.dtype, found.shape, size)
    return Access(number, extent, mode, is_sure, array)


@functools.lru_cache
def _text(dtype: Any) -> str:
    """Return the name of a type of elements, cached because NumPy takes long to word it."""
    return sys.intern(str(dtype))


def has_gaps(value: Any) -> bool:
    """Whether the elements of an array have bytes that belong to none of their fields."""
    dtype: Any = getattr(value, "dtype", None)
    end = 0
    for start, stop in sorted(_fields(dtype, 0)) if getattr(dtype, "names", None) else ():
        if start > end:
            return True
        end = max(end, stop)
    return bool(0 < end < getattr(dtype, "itemsize", 0))


def _fields(dtype: Any, start: int) -> Iterator[tuple[int, int]]:
    if dtype.subdtype is not None and dtype.subdtype[0].names is not None:
        inner, shape = dtype.subdtype
        for number in range(math.prod(shape)):
            yield from _fields(inner, start + number * inner.itemsize)
    elif dtype.names is None:
        yield start, start + dtype.itemsize
    else:
        for field in dtype.fields.values():
            yield from _fields(field[0], start + field[1])


def watches(adapter: object) -> bool:
    """Whether an adapter can tell of its library's operators on the host."""
    return offered(adapter, Diagnosis.watch_operators) is not None


def owner_of(array: Any) -> Any:
    """Return the array that owns the memory of this one, perhaps itself."""
    while isinstance(array.base, sys.modules["numpy"].ndarray):
        array = array.base
    return array


def among(value: object, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the arrays of the host in a value, also in containers."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, CONTAINERS):
        for one in value if depth else ():
            if type(one) not in NO_ARRAYS:
                yield from among(one, depth - 1)
    elif type(value) not in NO_ARRAYS:
        array = _as_numpy(value)
        if array is not None:
            yield value
            if array.dtype.hasobject and depth:
                yield from among([*array.flat], depth - 1)


def _as_numpy(value: Any) -> Any:
    """Return an array of the host, of any library, as NumPy's; None for any other object."""
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(
        value, (type, numpy.generic)
    ):  # nothing else uses the memory of a scalar
        return None
    if isinstance(value, numpy.ndarray):
        return value
    if isinstance(value, memoryview):
        return numpy.asarray(value)
    with contextlib.suppress(Exception):  # the memory is on a GPU, or is not lent
        if hasattr(value, "__dlpack_device__"):
            is_here = value.__dlpack_device__()[0] == _ON_THE_HOST
            return numpy.from_dlpack(value) if is_here else None
        if hasattr(value, "__array_interface__"):
            return numpy.asarray(value)
    return None
