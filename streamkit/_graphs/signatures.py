"""The signature of a call of a graphed function: its arrays by layout, the rest by value.

Arrays are found in nested tuples, lists, dicts and dataclasses, not inside objects of other
classes. The settings of the program around the call count too: see ``settings``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import numbers
import types
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit._queues.arrays import ARRAYS, ON_HOST
from streamkit._support import extents, messages
from streamkit.protocols import ArrayLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from streamkit._queues.arrays import ArrayLibrary
    from streamkit._support.extents import Extent

    Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

VALUES = (int, float, complex, str, bytes, bool, type(None))


@dataclasses.dataclass(eq=False)
class FoundArray:
    """An array among the arguments, or in a result."""

    array: Any
    device: int | None
    """The CUDA ordinal, None for the host."""
    layout: ArrayLayout
    library: Any
    """The adapter that copies the array; None if no adapter does."""

    @property
    def repeats(self) -> bool:
        """Whether elements share memory, as in an expanded array."""
        axes = zip(self.layout.shape, self.layout.strides, strict=True)
        return any(not step and size > 1 for size, step in axes)

    @functools.cached_property
    def _extent(self) -> Extent | None:
        address, shape, strides, _, size, _ = self.layout
        return extents.strided(address, shape, strides, size)

    def overlaps(self, other: FoundArray) -> bool:
        """Whether the two arrays may share memory."""
        one, two = self._extent, other._extent
        if self.device != other.device or one is None or two is None:
            return False
        return extents.overlap(one, two) is not False


class _Unhashable:
    """A value known by equality, which is copied only if its key is held."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def freeze(self) -> None:
        """Keep the value as it is now; TypeError if it cannot be copied."""
        try:
            self._value = copy.deepcopy(self._value)
        except Exception as error:
            raise TypeError(
                f"{messages.describe(self._value)} cannot be hashed and not be copied "
                f"({type(error).__name__}: {error}), so a graphed function cannot know it again. "
                "Give its class a __hash__, or let the function read it from elsewhere."
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashable) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash(type(self._value))


class Signature:
    """The arrays of a call, in order, and ``key``, which is equal for calls that share a graph.

    The key holds the ``objects`` that are known by their identity weakly.
    """

    def __init__(
        self, arguments: Arguments, *, by_address: bool, settings: Hashable = None
    ) -> None:
        self.arguments = arguments
        self.arrays: list[FoundArray] = []
        self.places: dict[int, int] = {}  # in ``arrays``, by the id of the object
        self.objects: list[object] = []
        self._by_address = by_address
        self._unhashable: list[_Unhashable] = []
        args, kwargs = arguments
        named = dict(sorted(kwargs.items())) if len(kwargs) > 1 else kwargs
        self.key: Hashable = self._read(args), self._read(named), settings

    def freeze(self) -> None:
        """Make the key independent of later changes of the arguments."""
        for value in self._unhashable:
            value.freeze()
        self._unhashable.clear()

    def _read(self, value: Any) -> Hashable:
        kind = type(value)
        if kind in VALUES:
            return kind, _number(value) if kind is float or kind is complex else value
        if isinstance(value, (tuple, list)):
            return kind, tuple(map(self._read, value))
        if isinstance(value, dict):
            return kind, tuple((name, self._read(item)) for name, item in value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return kind, tuple(self._read(item) for _, item in _fields(value))
        found = find(value)
        return kind, self._known(value) if found is None else self._add(found)

    def _known(self, value: Any) -> Hashable:
        """Return the part of the key for a value that is no array."""
        kind = type(value)
        if isinstance(value, numbers.Number):
            return _number(value)  # type: ignore[no-any-return]  # hashable
        if _is_one_of_a_kind(kind):
            return self._weak(value)
        if kind is types.MethodType and _is_one_of_a_kind(type(value.__self__)):
            return value.__func__, self._weak(value.__self__)
        if isinstance(value, set):
            return frozenset(value)
        try:
            hash(value)
        except TypeError:
            value = _Unhashable(value)
            self._unhashable.append(value)
        return value  # type: ignore[no-any-return]  # hashable by now

    def _weak(self, value: Any) -> Hashable:
        try:
            reference = weakref.ref(value)
        except TypeError:  # of a class with slots, for example
            return value  # type: ignore[no-any-return]  # hashable, as it is known by identity
        self.objects.append(value)
        return reference

    def _add(self, found: FoundArray) -> Hashable:
        if not self._by_address:
            for index, other in enumerate(self.arrays):
                if (other.device, other.layout) == (found.device, found.layout):
                    self.places[id(found.array)] = index  # a graph has one copy of this memory
                    return index
                if found.overlaps(other):
                    raise ValueError(
                        f"{messages.describe(found.array)} and {messages.describe(other.array)} "
                        "overlap in memory, so a graph cannot have a copy of each. Pass a copy "
                        "of one of them, or use copy=False."
                    )
        self.places[id(found.array)] = len(self.arrays)
        self.arrays.append(found)
        return found.device, found.layout if self._by_address else found.layout._replace(address=0)


def _is_one_of_a_kind(kind: Any) -> bool:
    """Whether an object of a class is equal to no other."""
    return kind.__eq__ is object.__eq__


def _number(value: Any) -> Any:
    """Return a number for keys, where 0.0 is not -0.0, and NaN is equal to itself."""
    is_plain = isinstance(value, numbers.Real) and value and value == value  # noqa: PLR0124 - NaN
    return value if is_plain else repr(value)


def library_of(value: Any) -> ArrayLibrary | None:
    """Return the library whose array a value is, or None."""
    return ARRAYS.types.get(type(value)) or registry.find(value, ARRAYS)


def find(value: Any) -> FoundArray | None:
    """Return the value as a found array, or None if it is no array.

    TypeError for an array that does not say where its memory is, ValueError for one that needs a
    gradient.
    """
    library = library_of(value)
    if library is not None and library.copies is not None:
        try:
            device = library.device_of(value)
        except TypeError:  # an object of the type that is not an array of CUDA or of the host
            return _find_by_protocol(value)
        layout = library.copies.array_layout(value)
        if layout.needs_gradient:
            raise messages.needs_gradient(value)
        if not layout.address and 0 not in layout.shape:  # of a class that wraps others
            raise messages.no_memory_of_its_own(value)
        return FoundArray(value, device, layout, library.copies)
    return _find_by_protocol(value)


def _find_by_protocol(value: Any) -> FoundArray | None:
    try:
        place, device = value.__dlpack_device__()
    except Exception:  # noqa: BLE001 - no such method, a class, or an unknown device
        place, device = None, driver.current_device() if driver.is_present() else 0
    if place in ON_HOST:
        return FoundArray(value, None, ArrayLayout(0, (), (), None, 0), None)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        if place is None:
            return None
        raise TypeError(
            f"{messages.describe(value)} does not say where its memory is, so a graph cannot "
            "recognise it. Pass what another library's from_dlpack makes of it."
        )
    shape, dtype = tuple(interface["shape"]), interface["typestr"]
    size, strides = int(dtype[2:]), interface.get("strides")
    if strides is None:
        strides = tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    layout = ArrayLayout(interface["data"][0] or 0, shape, tuple(strides), dtype, size)
    return FoundArray(value, device, layout, None)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of a value's containers, or the value itself."""
    if isinstance(value, dict):
        items: Iterable[Any] = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = (item for _, item in _fields(value))
    elif isinstance(value, (tuple, list)):
        items = value
    else:
        yield value
        return
    for one in items:
        yield from leaves(one)


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(value):
        yield field.name, getattr(value, field.name)


def replaced(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return the value with other leaves, in containers of its own."""
    kind = type(value)
    if kind in VALUES:
        return value
    if isinstance(value, (tuple, list)):
        items = [replaced(item, replace) for item in value]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    if isinstance(value, dict):
        items_of = copy.copy(value)
        for name, item in value.items():  # some classes refuse ``update``
            items_of[name] = replaced(item, replace)
        return items_of
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new: Any = copy.copy(value)
        for name, item in _fields(value):
            object.__setattr__(new, name, replaced(item, replace))  # a frozen one has no other way
        return new
    return replace(value)
