"""What tells one call of a graphed function from another: its arrays by layout, the rest by value.

Arrays are found in nested tuples, lists, dicts and dataclasses. What an object of another class
holds is not looked at.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamkit._base import messages
from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit._streams.array_libraries import ARRAYS, ON_HOST
from streamkit.protocols import ArrayLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_VALUES = (int, float, complex, str, bytes, bool, type(None))


class FoundArray(NamedTuple):
    """An array among the arguments."""

    array: Any
    device: int | None
    """The CUDA ordinal, None for the host."""
    layout: ArrayLayout
    library: Any
    """The adapter that copies it; None if its library has none."""

    @property
    def extent(self) -> tuple[int, int]:
        """The first address of its elements, and the first one after them."""
        address, shape, strides, _, size = self.layout
        if not all(shape):
            return address, address
        reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        low = address + sum(step for step in reach if step < 0)
        return low, address + sum(step for step in reach if step > 0) + size


class _Unhashable:
    """A value as it was, known by equality."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = copy.deepcopy(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashable) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash(type(self._value))


class Signature:
    """The arrays of a call, in order, and ``key``, which is equal for calls that share a graph."""

    def __init__(self, arguments: Arguments, *, by_address: bool) -> None:
        self.arguments = arguments
        self.arrays: list[FoundArray] = []
        self.places: dict[int, int] = {}  # in ``arrays``, by the id of the object
        self._by_address = by_address
        args, kwargs = arguments
        self.key: Hashable = self._read(args), self._read(dict(sorted(kwargs.items())))

    def replaced(self, arrays: list[Any]) -> Arguments:
        """Return the arguments with other arrays."""
        places = self.places

        def replace(leaf: Any) -> Any:
            place = places.get(id(leaf))
            return leaf if place is None else arrays[place]

        args, kwargs = replaced(self.arguments, replace)
        return args, kwargs

    def _read(self, value: Any) -> Hashable:
        kind = type(value)
        if kind in _VALUES:
            return kind, value
        if isinstance(value, (tuple, list)):
            return kind, tuple(map(self._read, value))
        if isinstance(value, dict):
            return kind, tuple((name, self._read(item)) for name, item in value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return kind, tuple(self._read(item) for _, item in _fields(value))
        found = find(value)
        if found is None:
            try:
                hash(value)
            except TypeError:
                value = _Unhashable(value)
            return kind, value
        return kind, self._add(found)

    def _add(self, found: FoundArray) -> Hashable:
        if not self._by_address:
            for index, other in enumerate(self.arrays):
                if (other.device, other.layout) == (found.device, found.layout):
                    self.places[id(found.array)] = index  # a graph has one copy of this memory
                    return index
                (low, high), (start, end) = found.extent, other.extent
                if found.device == other.device and low < end and start < high:
                    raise ValueError(
                        f"{messages.describe(found.array)} and {messages.describe(other.array)} "
                        "overlap in memory, so a graph cannot have a copy of each. Pass one of "
                        "them a copy, or use copy_inputs=False."
                    )
        self.places[id(found.array)] = len(self.arrays)
        self.arrays.append(found)
        return found.device, found.layout if self._by_address else found.layout._replace(address=0)


def find(value: Any) -> FoundArray | None:
    """Return the array that a value is, or None.

    TypeError if it is an array that does not say where its memory is, ValueError if it needs a
    gradient.
    """
    library = ARRAYS.types.get(type(value)) or registry.find(value, ARRAYS)
    if library is not None and library.copies is not None:
        try:
            device = library.device_of(value)
        except TypeError:  # an object of the type that is not an array of CUDA or of the host
            return _find_by_protocol(value)
        return FoundArray(value, device, library.copies.array_layout(value), library.copies)
    return _find_by_protocol(value)


def _find_by_protocol(value: Any) -> FoundArray | None:
    try:
        place, device = value.__dlpack_device__()
    except Exception:  # noqa: BLE001 - it has none, it is a class, or it knows no such device
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


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(value):
        yield field.name, getattr(value, field.name)


def replaced(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return the value with other leaves, in containers of its own."""
    kind = type(value)
    if kind in _VALUES:
        return value
    if isinstance(value, (tuple, list)):
        items = [replaced(item, replace) for item in value]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    if isinstance(value, dict):
        items_of = copy.copy(value)
        items_of.update((name, replaced(item, replace)) for name, item in value.items())
        return items_of
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new: Any = copy.copy(value)
        for name, item in _fields(value):
            object.__setattr__(new, name, replaced(item, replace))  # a frozen one has no other way
        return new
    return replace(value)
