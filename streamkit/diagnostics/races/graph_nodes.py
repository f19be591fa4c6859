"""The races of a graph, found from the memory of its nodes and the order of its edges."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from streamkit.diagnostics.pictures import graph_picture
from streamkit.diagnostics.pictures import page as pages
from streamkit.diagnostics.races import search
from streamkit.diagnostics.races.arrays import checked_names
from streamkit.diagnostics.races.memory_use import Launch, LaunchReader
from streamkit.diagnostics.races.order import stamps_of_nodes
from streamkit.diagnostics.races.report import (
    RacedOperation,
    array_of,
    coverage_of,
    fix_in_graph,
    races_among,
)
from streamkit.diagnostics.recording import kernel_names, places

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from streamkit._cuda.graphs import Node, NodeWork, Section
    from streamkit.diagnostics.races.report import Coverage, Race
    from streamkit.diagnostics.races.search import Mode, Pair

_ORDER = ("empty", "wait event", "event record", "mem alloc")
"""The kinds of nodes that use no memory."""
_ALIKE = 32
"""How many nodes stand for all that do the same and have the same edges, which no report needs."""


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
        number: _launch(reader, node)
        for number, node in enumerate(nodes)
        if node.kind not in _ORDER
    }
    who = {  # the node in a report's words: nodes with the same words are one operation there
        number: (launch.name, launch.library, _section(nodes[number], sections))
        for number, launch in works.items()
    }

    def key(pair: Pair) -> Hashable:
        return frozenset({who[pair.first], who[pair.second]}), array_of(pair.one, pair.other)

    def operation(number: int, mode: Mode) -> RacedOperation:
        name, library, section = who[number]
        return RacedOperation(name, library, None, mode, None, 0, nodes[number].place, section)

    edges_of: list[set[tuple[int, int]]] = [set() for _ in nodes]  # with -1 for the node itself
    for one, other in edges:
        edges_of[one].add((-1, other))
        edges_of[other].add((one, -1))
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, launch in works.items():
        alike[who[number], launch.accesses, frozenset(edges_of[number])].append(number)
    compared = {number for numbers in alike.values() for number in numbers[:_ALIKE]}
    stamps, regions = stamps_of_nodes(len(nodes), edges), _regions_written(works.values())
    given = (  # of alike nodes of a chain the last one stands for those before it
        search.Work(
            number,
            (stamps[number].chain, who[number]),
            tuple(
                one._replace(allocation=regions[one.extent[:2]])
                for one in works[number].accesses
                if one.extent[:2] in regions
            ),
        )
        for number in stamps
        if number in compared
    )
    pairs = search.find(given, stamps, stamps)
    pairs = (one if one.first < one.second else one.turned() for one in pairs)
    found = races_among(
        sorted(pairs, key=lambda pair: pair[:2]),
        key=key,
        operation=operation,
        fix=lambda first, second, _: fix_in_graph(first, second),
    )
    coverage = coverage_of((launch.name, launch.is_known) for launch in works.values())
    return tuple(race for race, _ in found), coverage


def _regions_written(works: Iterable[Launch]) -> dict[tuple[int, int], int]:
    """Return the memory that some node writes: the number of its region, by the extents there.

    Extents that overlap are in one region, and addresses are fixed: so the search compares only
    what can race.
    """
    accesses = [one for work in works for one in work.accesses]
    found: dict[tuple[int, int], int] = {}
    region, stop = 0, 0
    for extent in sorted({one.extent[:2] for one in accesses}):
        region += extent[0] >= stop
        stop = max(stop, extent[1])
        found[extent] = region
    written = {found[one.extent[:2]] for one in accesses if one.mode != "read"}
    return {extent: region for extent, region in found.items() if region in written}


def page(
    nodes: Sequence[Node], edges: Sequence[tuple[int, int]], races: Sequence[Race], heading: str
) -> str:
    """Return a page with the races, and the graph's picture with an arrow for each missing edge."""
    pairs = {(race.first.node or 0, race.second.node or 0) for race in races}
    missing = sorted((one, other) for one, other in pairs if one != other)
    picture = graph_picture.svg(nodes, edges, missing)
    return pages.of_graph(picture, heading, [*map(str, races)], has_missing=bool(missing))


def _section(node: NodeWork, sections: Sequence[Section]) -> str | None:
    around = [one for one in sections if one.start <= node.place < one.stop]
    return min(around, key=lambda one: one.stop - one.start).name if around else None


def _launch(reader: LaunchReader, node: NodeWork) -> Launch:
    if node.kind != "kernel":
        return reader.transfer(graph_picture.NAMES.get(node.kind, node.kind), node.uses)
    launch = reader.kernel(node.symbol, node.parameters)
    return launch._replace(name=kernel_names.operation(launch.name, launch.library) or node.kind)
