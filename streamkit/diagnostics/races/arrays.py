"""The arrays among the arguments of a call, with the places and owners of their memory."""

from __future__ import annotations

import dis
import functools
import gc
import itertools
import math
import sys
import types
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from streamkit._queues import registry
from streamkit._support.extents import strided
from streamkit._support.locks import new_lock
from streamkit._support.messages import describe, in_one_line
from streamkit.diagnostics.races.search import Access
from streamkit.diagnostics.recording.places import skipping
from streamkit.protocols import Diagnosis
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from streamkit.diagnostics.races.search import Mode
    from streamkit.protocols import ArrayUse

    Layout = tuple[Any, ...]
    """The address, the shape, the strides and their unit, the size and the type of an element."""
    MemoryUse = tuple["Owner", Layout, Mode, bool]  # with ``is_sure``
    Named = tuple[str, weakref.ref[Any]]  # a name, and the object that it means

_ALIKE = 4096  # accesses that are kept, as a loop makes them again
_ON_THE_HOST = 1  # kDLCPU of DLPack
CONTAINERS = (tuple, list, set, frozenset, deque)
NO_ARRAYS: set[int] = {*map(id, (
    bool, int, float, complex, str, bytes, slice, type, type(None), types.FunctionType,
    types.BuiltinFunctionType, types.ModuleType,
))}  # fmt: skip
"""Types of objects that are no arrays, by their ids: a metaclass can have ``==`` and no hash."""
DEPTH = 4  # of containers in each other
_LEVELS, _MOST = 3, 256  # of objects to which one call is followed, and their number
_ENDS = NO_ARRAYS - {id(types.FunctionType), id(types.BuiltinFunctionType)}
_INSIDE = "an array in "
_PASSED = dict, tuple, types.CellType, functools.partial  # on the way to what is held
_HOLDERS = {"builtins", "collections", "functools", "types"}
"""The modules of Python's own classes whose objects are followed: they only hold others."""


def checked_names(arrays: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the arrays that a caller has named; TypeError if that is no dictionary of names."""
    if not (arrays is None or isinstance(arrays, dict)):
        raise TypeError(
            f"races takes a dictionary of names and arrays, as in races({{'x': x}}), not "
            f"{describe(arrays)}."
        )
    for name in arrays or ():
        if not isinstance(name, str):
            raise TypeError(
                f"races takes arrays by names that are str, not {describe(name)}: write "
                f"str({describe(name)})."
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
            name = in_one_line(self.name or "memory")
            name += f" at {self.address:#x}" if self.address else ""
            return f"{name} ({self.nbytes} bytes)" if self.nbytes else name
        shape = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        name = in_one_line(self.name or "an array")
        return f"{name} ({self.dtype}, shape ({shape}), {self.nbytes} bytes)"


class Owner:
    """The object that all views of some memory share; the next owner at its address is another."""

    __slots__ = "is_own", "number", "ref", "user"

    def __init__(self, whole: Any, number: int, *, is_own: bool) -> None:
        self.ref: weakref.ref[Any] = weakref.ref(whole)
        self.number: int = number
        self.is_own: bool = is_own  # whether the object lives as long as the memory
        self.user: object = self  # who alone has used the memory; None if several have


class Memories:
    """Finds the memory of arrays, and tells allocations apart that follow at one address."""

    def __init__(self) -> None:
        self.has_foreign: bool = False  # whether some owner does not live as long as its memory
        self._lock = new_lock()
        self._numbers = itertools.count(1)
        self._owners: dict[int, Owner] = {}  # by the ids of the objects
        # a loop makes the same accesses again
        self.made: Callable[..., Access | None] = functools.lru_cache(_ALIKE)(access_to)
        self._adapters: dict[type, Any] = {}  # those that see operators on arrays of a type

    def memory(
        self, array: Any, told: tuple[Any, ...] | None, user: object = None
    ) -> tuple[Owner, Layout]:
        """Return the memory of an array, which nothing keeps alive, and note who uses it.

        ``told`` is what the library tells of the memory, as in ``ArrayUse``.
        """
        whole, is_own, layout, _ = told or self._layout(array)
        owner = self._owners.get(id(whole))
        if owner is None or owner.ref() is not whole:
            with self._lock:
                owner = self._owners.get(id(whole))
                if owner is None or owner.ref() is not whole:
                    self.has_foreign = self.has_foreign or not is_own
                    owner = Owner(whole, next(self._numbers), is_own=is_own)
                    self._owners[id(whole)] = owner
        if owner.user is not user:
            owner.user = user if owner.user is owner else None
        return owner, layout

    def access(self, use: ArrayUse, names: Mapping[int, Named]) -> Access | None:
        """Return the access that a use of an array makes, None if the array has no memory.

        An access keeps nothing alive. Its allocation differs from those of all arrays that were
        freed before, and is None if the library does not own the memory. ``names`` are from
        ``names_of``.
        """
        has_fields = getattr(getattr(use.array, "dtype", None), "names", None)
        is_sure = use.is_sure and not has_fields  # there can be gaps
        owner, layout = self.memory(use.array, use.memory)
        name = self.name_of(use.array, owner, names)
        return self.made((owner, layout, use.mode, is_sure), name)

    def name_of(self, value: Any, owner: Owner, names: Mapping[int, Named]) -> str | None:
        """Return the name of an array, or of the owner of its memory."""
        return _name(names, value) or _name(names, owner.ref(), "part of ")

    def names_of(self, variables: Iterable[tuple[str, object]]) -> dict[int, Named]:
        """Return the names of objects, and of the owners of arrays' memory, by their ids."""
        names: dict[int, Named] = {}
        for name, value in variables:
            with skipping:
                may_be = self._adapters.get(type(value), self) is not None  # watched or new
                adapter = self.watching(value) if may_be else None
                whole = value if adapter is None else adapter.storage_of(value).whole
                for one in (value, whole) if type(value).__weakrefoffset__ else ():
                    names[id(one)] = name, weakref.ref(one)
        return names

    def reached(self, call: Any) -> Iterator[tuple[str, Any]]:
        """Yield the arrays that a call is given, holds or loads, with the names that lead there."""
        numpy: Any = sys.modules.get("numpy")
        kinds = (bytearray, memoryview, *([numpy.ndarray] if numpy else ()))
        called = getattr(type(call.func), "__call__", None)  # noqa: B004 - of a class of the user's
        waiting, seen = deque([("", call, 0), ("", called, 0)]), {id(call)}
        while waiting:
            name, value, depth = waiting.popleft()
            if issubclass(type(value), kinds) or self.watching(value) is not None:
                yield name, value
            is_passed = type(value) in _PASSED
            if name and type(value) is not types.CellType and not name.startswith(_INSIDE):
                name = _INSIDE + name
            for key, one in _held_by(value) if is_passed or depth < _LEVELS else ():
                kind, is_new = type(one), id(one) not in seen and len(seen) < _MOST
                if is_new and not (id(kind) in _ENDS or issubclass(kind, type)):
                    seen.add(id(one))
                    waiting.append((name or key, one, depth + (not is_passed)))

    def watching(self, value: Any) -> Any:
        """Return the adapter that sees operators on an array of the host, None without one."""
        kind = type(value)
        with skipping:  # no array, or one that answers nothing
            if kind not in self._adapters:
                self._adapters[kind] = next(filter(watches, registry.candidates(kind)), None)
            adapter = self._adapters[kind]
            if adapter is not None and adapter.array_device(value) is None:
                return adapter if adapter.storage_of(value) else None
        return None

    def _layout(self, value: Any) -> tuple[Any, ...]:
        adapter = self.watching(value)
        if adapter is not None:
            address, shape, strides, _, itemsize, _ = adapter.array_layout(value)
            whole, is_own, _ = adapter.storage_of(value)
            layout = address, tuple(shape), tuple(strides), 1, itemsize, value.dtype
            return whole, is_own, layout, True
        array = _as_numpy(value)
        address, whole = array.__array_interface__["data"][0], owner_of(array)
        layout = address, array.shape, array.strides, 1, array.itemsize, array.dtype
        return whole, whole.flags.owndata, layout, True


def access_to(use: MemoryUse, name: str | None = None) -> Access | None:
    """Return the access to some memory, None if the memory is empty."""
    owner, (address, shape, strides, unit, itemsize, dtype), mode, is_sure = use
    extent = strided(address, shape, [stride * unit for stride in strides], itemsize)
    if extent is None:
        return None
    array = RacedArray(name, _text(dtype), tuple(shape), math.prod(shape) * itemsize)
    return Access(owner.number if owner.is_own else None, extent, mode, is_sure, array)


def _name(names: Mapping[int, Named], value: object, what: str = "") -> str | None:
    name, ref = names.get(id(value), ("", None))
    return what + name if name and ref and ref() is value else None


@functools.lru_cache
def _text(dtype: Any) -> str:
    """Return the name of a type of elements, cached because NumPy takes long to word it."""
    text = str(dtype)
    return sys.intern(text if hasattr(dtype, "fields") else text.rpartition(".")[2])


def watches(adapter: object) -> bool:
    """Whether an adapter can tell of its library's operators on the host."""
    return offered(adapter, Diagnosis.watch_operators) is not None


def owner_of(array: Any) -> Any:
    """Return the array that owns the memory of this one, perhaps itself."""
    while issubclass(type(array.base), sys.modules["numpy"].ndarray):
        array = array.base
    return array


def is_mapped(array: Any) -> bool:
    """Whether an array lies in a mapping, which a second one can show at other addresses."""
    base = owner_of(_as_numpy(array)).base
    base = base.obj if type(base) is memoryview else base
    return type(base).__name__ == "mmap"


def among(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Yield the arrays of the host in a value, also in containers."""
    if issubclass(type(value), dict):
        value = tuple(dict.values(value))
    if issubclass(type(value), CONTAINERS):
        for one in value if depth else ():
            if id(type(one)) not in NO_ARRAYS:
                yield from among(one, depth - 1)
    elif id(type(value)) not in NO_ARRAYS:
        array = _as_numpy(value)
        if array is not None:
            yield value
            if array.dtype.hasobject and depth:
                yield from among([*array.flat], depth - 1)


def _held_by(value: Any) -> Iterable[tuple[str, Any]]:
    """Return what an object holds, with the names that a function has for it.

    Python's garbage collector tells it, so that no code of the program runs.
    """
    if type(value) is types.FunctionType:
        code, within = value.__code__, value.__globals__
        cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
        defaults = ("", value.__defaults__), ("", value.__kwdefaults__)
        is_own = "-packages" not in code.co_filename  # a library's globals are constants
        return *cells, *(_named(code, within) if is_own else ()), *defaults
    root = str(type(value).__module__).partition(".")[0]
    is_closed = root in sys.stdlib_module_names and root not in _HOLDERS
    return () if is_closed or root == "streamkit" else zip(repeat(""), gc.get_referents(value))


def _named(code: types.CodeType, within: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that some code names, and those of modules, also in functions inside."""
    for one in code.co_consts:
        if type(one) is types.CodeType:
            yield from _named(one, within)
    for name in _globals_of(code):
        value = within.get(name)
        if type(value) is types.ModuleType:
            inside = vars(value)
            yield from ((name, inside[one]) for one in code.co_names if one in inside)
        elif value is not None:
            yield name, value


@functools.lru_cache
def _globals_of(code: types.CodeType) -> set[str]:
    """Return the names of globals that some code loads; ``co_names`` has attributes' names too."""
    return {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}


def _as_numpy(value: Any) -> Any:
    """Return an array of the host, of any library, as NumPy's; None for any other object."""
    numpy = sys.modules.get("numpy")
    # nothing else uses the memory of a scalar
    if numpy is None or issubclass(type(value), (type, bytes, numpy.generic)):
        return None
    if issubclass(type(value), numpy.ndarray):
        return value
    with skipping:  # it is no buffer, as most objects
        return numpy.asarray(memoryview(value))
    with skipping:  # the memory is on a GPU, or is not lent
        if hasattr(type(value), "__dlpack_device__"):
            is_here = value.__dlpack_device__()[0] == _ON_THE_HOST
            return numpy.from_dlpack(value) if is_here else None
        if hasattr(type(value), "__array_interface__"):
            return numpy.asarray(value)
    return None
