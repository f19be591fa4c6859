"""How the keys of two calls of a graphed function differ, in words."""

from __future__ import annotations

import dataclasses
import numbers
from typing import TYPE_CHECKING, Any

from streamkit._graphs import settings
from streamkit._graphs.signatures import VALUES
from streamkit._support import messages
from streamkit.protocols import ArrayLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_SHOWN = 3
_PARTS: dict[str, Callable[[Any], str]] = {
    "dtype": str, "shape": str, "strides": str, "address": hex
}  # fmt: skip
"""The parts of an array's layout, in the order of which the first difference is named."""


def from_nearest(key: Any, others: Iterable[Any]) -> str:
    """Return how a key differs from the most similar of others; "" if there are none."""
    nearest = min((list(between(key, other)) for other in others), key=len, default=[])
    more = [f"and {len(nearest) - _SHOWN} more"] if len(nearest) > _SHOWN else []
    return "; ".join([*nearest[:_SHOWN], *more])


def between(key: Any, other: Any) -> Iterator[str]:
    """Yield the differences of a key from another key."""
    (_, args), (_, kwargs), mine = key
    (_, other_args), (_, other_kwargs), theirs = other
    yield from _of_items("", "arguments", _numbered("argument {}", args), args, other_args)
    yield from _of_mappings("", "keywords", "argument {!r}", kwargs, other_kwargs)
    now, then = settings.by_name(mine), settings.by_name(theirs)
    for name in {**now, **then}:
        one, before = now.get(name, "none"), then.get(name, "none")
        if one != before:
            yield f"{name}: {one} instead of {before}"


def _numbered(place: str, items: Any) -> list[str]:
    return [place.format(number) for number in range(len(items))]


def _of_items(where: str, what: str, places: list[str], mine: Any, theirs: Any) -> Iterator[str]:
    if len(mine) != len(theirs):
        yield f"{where}{len(mine)} {what} instead of {len(theirs)}"
        return
    for place, one, other in zip(places, mine, theirs, strict=True):
        if one != other:
            yield from _of_values(place, *one, *other)


def _of_mappings(where: str, what: str, place: str, mine: Any, theirs: Any) -> Iterator[str]:
    names, others = ([name for name, _ in items] for items in (mine, theirs))
    if names != others:
        texts = (", ".join(map(messages.describe, found)) or "none" for found in (names, others))
        yield f"{where}{what} {' instead of '.join(texts)}"
        return
    values, other_values = ([value for _, value in items] for items in (mine, theirs))
    yield from _of_items("", what, list(map(place.format, names)), values, other_values)


def _of_values(where: str, kind: type, mine: Any, other_kind: type, theirs: Any) -> Iterator[str]:
    inside = where.replace("{", "{{").replace("}", "}}")  # for ``format``
    if kind is not other_kind:
        yield f"{where}: {kind.__qualname__} instead of {other_kind.__qualname__}"
    elif issubclass(kind, (tuple, list)):
        places = _numbered(f"{inside}[{{}}]", mine)
        yield from _of_items(f"{where}: ", "items", places, mine, theirs)
    elif issubclass(kind, dict):
        yield from _of_mappings(f"{where}: ", "keys", f"{inside}[{{!r}}]", mine, theirs)
    elif dataclasses.is_dataclass(kind):
        places = [f"{where}.{field.name}" for field in dataclasses.fields(kind)]
        yield from _of_items(f"{where}: ", "fields", places, mine, theirs)
    elif (arrays := [_is_array(mine), _is_array(theirs)]) == [True, True]:
        yield f"{where}: {_of_arrays(*mine, *theirs)}"
    elif any(arrays):  # the other is the place of an array that was passed before it
        texts = "memory of its own", "that of an array before it"
        yield f"{where}: {' instead of '.join(texts if arrays[0] else reversed(texts))}"
    elif kind in VALUES or issubclass(kind, numbers.Number):
        word = messages.describe if kind in (str, bytes) else str
        yield f"{where}: {word(mine)} instead of {word(theirs)}"
    else:
        yield f"{where}: another {kind.__qualname__}"


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and isinstance(leaf[-1], ArrayLayout)


def _of_arrays(
    device: int | None, layout: ArrayLayout, other_device: int | None, other: ArrayLayout
) -> str:
    if device != other_device:
        places = ("the CPU" if one is None else f"cuda:{one}" for one in (device, other_device))
        return f"on {' instead of '.join(places)}"
    for part, word in _PARTS.items():
        mine, theirs = getattr(layout, part), getattr(other, part)
        if mine != theirs:
            return f"{part} {word(mine)} instead of {word(theirs)}"
    return "another size of its elements"
