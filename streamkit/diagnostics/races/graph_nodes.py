"""The races of a graph, found from the memory of its nodes and the order of its edges."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from streamkit.diagnostics.pictures import graph_picture
from streamkit.diagnostics.pictures import page as pages
from streamkit.diagnostics.races.arrays import checked_names
from streamkit.diagnostics.races.memory_use import Launch, LaunchReader
from streamkit.diagnostics.races.order import numbers, unordered_nodes
from streamkit.diagnostics.races.report import (
    Race,
    RacedOperation,
    array_of,
    coverage_of,
    fix_in_graph,
    reason_of,
    strongest,
)
from streamkit.diagnostics.races.search import race_of
from streamkit.diagnostics.recording import places
from streamkit.diagnostics.recording.kernel_names import operation

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from streamkit._cuda.graphs import Node, NodeWork, Section
    from streamkit.diagnostics.races.arrays import RacedArray
    from streamkit.diagnostics.races.report import Coverage
    from streamkit.diagnostics.races.search import Access, Mode

_ORDER = ("empty", "wait event", "event record", "mem alloc")
"""The kinds of nodes that use no memory."""
_MEMORY = "the memory of a graph"


def names_for(arrays: Mapping[str, object] | None) -> list[tuple[str, object]]:
    """Return objects with their names, those of ``arrays`` first, then those of the caller."""
    given = checked_names(arrays)
    return [*given.items(), *reversed(places.variables(places.users_frame()))]


def races_of(
    nodes: Sequence[NodeWork],
    edges: Sequence[tuple[int, int]],
    sections: Sequence[Section],
    names: Sequence[tuple[str, object]],
) -> tuple[tuple[Race, ...], Coverage]:
    """Return the races of a graph, and the coverage of its nodes."""
    reader = LaunchReader(names)
    works = {
        number: _Work(node.place, _section(node, sections), _launch(reader, node))
        for number, node in enumerate(nodes)
        if node.kind not in _ORDER
    }
    alike: defaultdict[_Part, int] = defaultdict(int)  # the set of nodes that do so
    for number, work in works.items():
        for access in work.accesses:
            alike[_Part(work.who, access)] |= 1 << number
    unordered = unordered_nodes(len(nodes), edges)
    found: defaultdict[tuple[Hashable, RacedArray], _Pairs] = defaultdict(_Pairs)
    for one, other, is_certain in _sharing(alike):
        pairs = found[frozenset({one.who, other.who}), array_of(one.access, other.access)]
        pairs.add(alike[one], alike[other], unordered, is_certain=is_certain)
    races = [_race(array, pairs, works) for (_, array), pairs in found.items() if pairs.possible]
    races.sort(key=lambda race: (race.first.node or 0, race.second.node or 0))
    counted = ((work.launch.name, work.launch.is_known) for work in works.values())
    return tuple(races), coverage_of(counted)


def page(
    nodes: Sequence[Node], edges: Sequence[tuple[int, int]], races: Sequence[Race], heading: str
) -> str:
    """Return a page with the races, and the graph's picture with an arrow for each missing edge."""
    pairs = {(race.first.node or 0, race.second.node or 0) for race in races}
    missing = sorted((one, other) for one, other in pairs if one != other)
    picture = graph_picture.svg(nodes, edges, missing)
    return pages.of_graph(picture, heading, [*map(str, races)], has_missing=bool(missing))


class _Work(NamedTuple):
    """The work of a node, and the place where it was captured."""

    place: int
    section: str | None
    launch: Launch

    @property
    def who(self) -> tuple[str, str | None, str | None]:
        """The node in a report's words: nodes with the same words are one operation there."""
        return self.launch.name, self.launch.library, self.section

    @property
    def accesses(self) -> Iterator[Access]:
        """The accesses. A graph's addresses are fixed: the same bytes are the same memory."""
        return (access._replace(allocation=_MEMORY) for access in self.launch.accesses)


class _Part(NamedTuple):
    """An access that some nodes make alike."""

    who: tuple[str, str | None, str | None]
    access: Access


class _Pairs:
    """The pairs of nodes of one race: for each node, the set of nodes with which it races."""

    def __init__(self) -> None:
        self.possible: dict[int, int] = {}
        """All pairs, also those that surely race."""
        self.certain: dict[int, int] = {}

    def add(self, ones: int, others: int, unordered: Sequence[int], *, is_certain: bool) -> None:
        """Add the pairs that nothing orders, of two sets of nodes that share memory."""
        for nodes, opposite in ((ones, others), (others, ones)):
            for node in numbers(nodes):
                met = opposite & unordered[node]
                for pairs in (self.possible, self.certain)[: 1 + is_certain] if met else ():
                    pairs[node] = pairs.get(node, 0) | met

    def __len__(self) -> int:
        return sum(met.bit_count() for met in self.possible.values()) // 2

    @property
    def first(self) -> tuple[int, int]:
        """The first pair, of the certain ones if there are any."""
        pairs = self.certain or self.possible
        one = min(pairs)
        return one, next(numbers(pairs[one]))


def _section(node: NodeWork, sections: Sequence[Section]) -> str | None:
    around = [one for one in sections if one.start <= node.place < one.stop]
    return min(around, key=lambda one: one.stop - one.start).name if around else None


def _launch(reader: LaunchReader, node: NodeWork) -> Launch:
    if node.kind != "kernel":
        return reader.transfer(graph_picture.name_of(node.kind), node.uses)
    launch = reader.kernel(node.symbol, node.parameters)
    return launch._replace(name=operation(launch.name, launch.library) or node.kind)


def _sharing(parts: Iterable[_Part]) -> Iterator[tuple[_Part, _Part, bool]]:
    """Yield the pairs that race if nothing orders them, and whether they surely race then."""
    open_parts: list[_Part] = []
    for part in sorted(parts, key=lambda part: part.access.extent.start):
        start = part.access.extent.start
        open_parts = [one for one in open_parts if one.access.extent.stop > start]
        open_parts.append(part)  # two nodes can make the same access
        for one in open_parts:
            is_certain = race_of(one.access, part.access)
            if is_certain is not None:
                yield one, part, is_certain


def _race(array: RacedArray, pairs: _Pairs, works: Mapping[int, _Work]) -> Race:
    one, other = (works[number] for number in pairs.first)
    shared = [
        (mine, its)
        for mine in one.accesses
        for its in other.accesses
        if race_of(mine, its) is not None and array_of(mine, its) == array
    ]
    first = _operation(one, {mine.mode for mine, _ in shared})
    second = _operation(other, {its.mode for _, its in shared})
    reason = "" if pairs.certain else reason_of(*shared[0], first.title, second.title)
    fix = fix_in_graph(first, second)
    return Race(array, first, second, bool(pairs.certain), fix, len(pairs), reason)


def _operation(work: _Work, modes: set[Mode]) -> RacedOperation:
    launch, where = work.launch, (work.place, work.section)
    return RacedOperation(launch.name, launch.library, None, strongest(modes), None, 0, *where)
