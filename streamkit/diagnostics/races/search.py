"""Finds pairs of work that use the same memory without an order: the engine of every report.

All pairs would be too many. So the accesses of a chain are kept in the order of the chain: if an
access comes before some work, all earlier accesses of the chain do too. Accesses are also filed by
their addresses, so that work meets only accesses that are near.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamkit._support.extents import overlap
from streamkit.diagnostics.races.order import are_ordered, is_before, known

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from streamkit._support.extents import Extent
    from streamkit.diagnostics.races.order import Clock, Stamp

    Stamps = Mapping[Any, Stamp]

Mode = Literal["read", "write", "unknown"]


class Access(NamedTuple):
    """Memory that a piece of work uses."""

    allocation: Hashable
    """The allocation to which the memory belongs, until it is freed; None if unknown."""
    extent: Extent
    mode: Mode
    is_sure: bool
    """Whether all of these bytes are surely used."""
    array: Any = None
    """The array, as a report describes it."""


class Work(NamedTuple):
    """A piece of work."""

    number: int
    site: Hashable
    """The line and the queue. Later work of a site replaces earlier work of the same site."""
    accesses: tuple[Access, ...]


class Pair(NamedTuple):
    """Two pieces of work that nothing orders, the one given first, and the memory they share."""

    first: int
    second: int
    one: Access
    other: Access
    is_certain: bool

    def turned(self) -> Pair:
        """Return the pair in the other order."""
        return Pair(self.second, self.first, self.other, self.one, self.is_certain)


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


def find(works: Iterable[Work], strictly: Stamps, loosely: Stamps) -> Iterator[Pair]:
    """Yield the pairs that race.

    A pair is certain if nothing orders it even ``loosely``, both surely use the same byte, and one
    surely writes. All other pairs that nothing orders ``strictly`` are possible. The work comes as
    it was given, with its places by all orders that are sure, and by all that there may be.
    """
    filed: defaultdict[Hashable, dict[int, _ChainAccesses]] = defaultdict(dict)
    given = _shared([work for work in works if work.number in strictly], strictly)
    has_unknown = any(one.allocation is None for work in given for one in work.accesses)
    for work in given:
        stamp = strictly[work.number]
        for access in work.accesses:
            for kept in _others(filed, access.allocation, stamp):
                for number, earlier in kept.near(access.extent, stamp.before):
                    found = race_of(earlier, access)
                    if found is not None and not is_before(stamp, strictly[number]):
                        both = loosely[number], loosely[work.number]
                        is_certain = found and not are_ordered(*both)
                        yield Pair(number, work.number, earlier, access, is_certain)
        for access in work.accesses:
            for where in (access.allocation, _ALL) if has_unknown else (access.allocation,):
                chains = filed[where]
                if stamp.chain not in chains:
                    chains[stamp.chain] = _ChainAccesses(stamp.chain)
                chains[stamp.chain].add(
                    _Entry((work.site, *access[:4]), work.number, access, stamp.place)
                )


def _shared(works: Sequence[Work], strictly: Stamps) -> Sequence[Work]:
    """Return the work with its accesses to what may be memory of other chains too."""
    used = {
        (one.allocation, strictly[work.number].chain) for work in works for one in work.accesses
    }
    chains = Counter(allocation for allocation, _ in used)
    if None in chains:
        return works
    found = (
        Work(number, site, tuple(one for one in accesses if chains[one.allocation] > 1))
        for number, site, accesses in works
    )
    return [work for work in found if work.accesses]


_ALL = object()  # under which all accesses are filed, if some are of an unknown allocation
_FEW = 16  # entries that are looked at one by one
_place = attrgetter("place")


def _others(
    filed: Mapping[Hashable, dict[int, _ChainAccesses]], allocation: Hashable, stamp: Stamp
) -> Iterator[_ChainAccesses]:
    """Yield the accesses that may be to the same memory: of this or of an unknown allocation.

    A chain whose accesses all come before the work is left out.
    """
    for where in (_ALL,) if allocation is None else (allocation, None):
        for one in filed.get(where, {}).values():
            if one.chain != stamp.chain and known(stamp.before, one.chain) < one.end:
                yield one


class _Entry(NamedTuple):
    """An access that was filed, with its place in the chain of its work."""

    key: Hashable
    """Equal for the same access of a site's earlier work, which the later one replaces."""
    number: int
    access: Access
    place: float


class _ChainAccesses:
    """The accesses of one chain to one allocation."""

    def __init__(self, chain: int) -> None:
        self.chain = chain
        self.end: float = 0  # the last place
        self._entries: list[_Entry] = []  # by their places; also replaced ones
        self._latest: dict[Hashable, _Entry] = {}  # the entries by their keys, as the next one
        # by the power of two that holds them, and by their address in units of that
        self._cells: dict[int, dict[int, dict[Hashable, _Entry]]] = {}

    def add(self, entry: _Entry) -> None:
        """File an access."""
        self.end = max(self.end, entry.place)
        start, stop = entry.access.extent.start, entry.access.extent.stop
        power = (stop - start - 1).bit_length()
        self._latest[entry.key] = entry
        self._cells.setdefault(power, {}).setdefault(start >> power, {})[entry.key] = entry
        insort(self._entries, entry, key=_place)
        if len(self._entries) > 2 * len(self._latest):
            self._entries = sorted(self._latest.values(), key=_place)

    def near(self, extent: Extent, before: Clock) -> Iterator[tuple[int, Access]]:
        """Yield the accesses that overlap an extent and lie after the places that a clock knows."""
        after = known(before, self.chain)
        for entry in self._candidates(extent, bisect_right(self._entries, after, key=_place)):
            access = entry.access
            is_near = access.extent.start < extent.stop and extent.start < access.extent.stop
            if is_near and entry.place > after:
                yield entry.number, access

    def _candidates(self, extent: Extent, start: int) -> Iterable[_Entry]:
        """Return the entries from a place of the list on, or those near an extent if fewer."""
        left = len(self._entries) - start
        near = [
            (places, range((extent.start >> power) - 1, (extent.stop - 1 >> power) + 1))
            for power, places in (self._cells.items() if left > _FEW else ())
        ]
        if near and sum(len(numbers) for _, numbers in near) <= left:
            cells = [places.get(number, {}) for places, numbers in near for number in numbers]
            if sum(map(len, cells)) <= left:
                return chain.from_iterable(cell.values() for cell in cells)
        return (one for one in self._entries[start:] if self._latest[one.key] is one)
