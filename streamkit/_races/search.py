"""Which pairs of work use the same memory without an order: the engine behind every report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamkit._races.extents import overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from streamkit._races.extents import Extent

Mode = Literal["read", "write", "unknown"]


class Access(NamedTuple):
    """Memory that a piece of work uses."""

    allocation: Hashable
    """What the memory belongs to from its allocation until it is freed; None if unknown."""
    extent: Extent
    mode: Mode
    is_sure: bool
    """Whether all of these bytes are surely used."""
    array: Any = None
    """What a report says of it."""


class Work(NamedTuple):
    """A piece of work."""

    number: int
    site: Hashable
    """Where it was given, and to which queue. Later work of a site replaces earlier work of it."""
    accesses: tuple[Access, ...]


class Pair(NamedTuple):
    """Two pieces of work that nothing orders, the one given first, and the memory they share."""

    first: int
    second: int
    one: Access
    other: Access
    is_certain: bool


def race_of(one: Access, other: Access) -> bool | None:
    """Whether two accesses without an order race surely or possibly; None if not at all."""
    if one.mode == other.mode == "read":
        return None
    shared = overlap(one.extent, other.extent)
    if shared is False:
        return None
    return (
        shared is True
        and one.is_sure
        and other.is_sure
        and "write" in (one.mode, other.mode)
        and None not in (one.allocation, other.allocation)
    )


def find(
    works: Iterable[Work],
    are_ordered: Callable[[int, int], bool],
    may_be_ordered: Callable[[int, int], bool],
) -> Iterator[Pair]:
    """Yield the pairs that race.

    A pair is certain if ``may_be_ordered`` denies an order, both surely use the same byte, and one
    surely writes. All other pairs are possible.
    """
    seen: dict[Hashable, dict[Hashable, tuple[int, Access]]] = {}
    for work in works:
        for access in work.accesses:
            for number, earlier in _to_compare(seen, access.allocation):
                if number == work.number:
                    continue
                if earlier.extent.stop <= access.extent.start:
                    continue
                if access.extent.stop <= earlier.extent.start or are_ordered(number, work.number):
                    continue
                found = race_of(earlier, access)
                if found is not None:
                    is_certain = found and not may_be_ordered(number, work.number)
                    yield Pair(number, work.number, earlier, access, is_certain)
        for access in work.accesses:
            same = seen.setdefault(access.allocation, {})
            same[work.site, access.extent, access.mode, access.is_sure] = work.number, access


def _to_compare(
    seen: dict[Hashable, dict[Hashable, tuple[int, Access]]], allocation: Hashable
) -> Iterator[tuple[int, Access]]:
    """Yield what may be the same memory: of the same allocation, or of an unknown one."""
    where = list(seen) if allocation is None else [allocation, None]
    for one in where:
        yield from seen.get(one, {}).values()
