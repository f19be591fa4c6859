"""The races of made-up graphs, against what a person would find by hand."""

from __future__ import annotations

import itertools
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamkit._cuda import graphs as cuda_graphs  # its questions are answered here
from streamkit._cuda.graphs import NodeWork, Section  # graphs are made up here
from streamkit.diagnostics.races import graph_nodes  # graphs are made up here
from streamkit.diagnostics.races.order import are_ordered, stamps_of_nodes  # of made-up graphs
from streamkit.protocols import MemoryUse
from support.model import search as always_the_same

START = 0x7F0000000000
_use = st.builds(
    lambda start, size, mode, is_sure: MemoryUse(
        START + start, mode, (size,), (1,), is_sure=is_sure
    ),
    st.integers(0, 9),
    st.integers(1, 4),
    st.sampled_from(["read", "write", "unknown"]),
    st.booleans(),
)


@st.composite
def graphs(draw):
    """What each node uses, and edges. The driver lists the nodes in any order."""
    count = draw(st.integers(2, 8))
    uses = [draw(st.lists(_use, min_size=1, max_size=2)) for _ in range(count)]
    order = draw(st.permutations(range(count)))
    edges = draw(st.sets(st.sampled_from(list(itertools.combinations(order, 2)))))
    return uses, order, edges


def found(uses, edges):
    """The pairs that race, and whether one of their races is certain; each node by itself."""
    nodes = [NodeWork("memset", place, uses=tuple(own)) for place, own in enumerate(uses)]
    sections = [Section(str(place), place, place + 1) for place in range(len(nodes))]
    races, _ = graph_nodes.races_of(nodes, sorted(edges), sections, [])
    pairs = {}
    for race in races:
        pair = race.first.node, race.second.node
        assert race.count == 1
        pairs[pair] = pairs.get(pair, False) or race.certain
    return pairs


def is_before(one, other, edges):
    return any(end == other or is_before(end, other, edges) for start, end in edges if start == one)


def unordered(count, edges):
    return [
        (one, other)
        for one, other in itertools.combinations(range(count), 2)
        if not is_before(one, other, edges) and not is_before(other, one, edges)
    ]


def by_hand(uses, edges):
    pairs = {}
    for one, other in unordered(len(uses), edges):
        for mine, its in itertools.product(uses[one], uses[other]):
            shared = set(range(mine.address, mine.address + mine.shape[0])) & set(
                range(its.address, its.address + its.shape[0])
            )
            modes = {mine.mode, its.mode}
            if shared and modes != {"read"}:
                is_certain = "write" in modes and mine.is_sure and its.is_sure
                pairs[one, other] = pairs.get((one, other), False) or is_certain
    return pairs


@settings(always_the_same, max_examples=120)
@given(graphs())
def test_the_races_are_the_unordered_pairs_that_share_bytes(graph):
    uses, _, edges = graph
    assert found(uses, edges) == by_hand(uses, edges)


@settings(always_the_same, max_examples=60)
@example(([[]] * 4, None, [(0, 1), (0, 2)]), ["memcpy", *["memset"] * 3])  # the last one has
@example(([[]] * 4, None, [(0, 3), (1, 3)]), [*["memset"] * 3, "memcpy"])  # no edge like others
@given(graphs(), st.lists(st.sampled_from(["memset", "memcpy"]), min_size=8, max_size=8))
def test_nodes_that_do_the_same_are_one_race_that_counts_pairs_of_them(graph, kinds):
    uses, _, edges = graph
    use = MemoryUse(START, "write", (8,), (1,), is_sure=True)
    nodes = [NodeWork(kinds[place], place, uses=(use,)) for place in range(len(uses))]
    with mock.patch.object(graph_nodes, "_ALIKE", 2):  # more never stand for others here
        races, _ = graph_nodes.races_of(nodes, sorted(edges), [], [])
    pairs = unordered(len(uses), edges)
    assert len(races) == len({frozenset((kinds[one], kinds[other])) for one, other in pairs})
    for race in races:
        assert (race.first.node, race.second.node) in pairs
        assert 1 <= race.count <= len(pairs)


def test_the_pairs_of_many_nodes_that_nothing_tells_apart_are_not_all_looked_at():
    use = MemoryUse(START, "write", (8,), (1,), is_sure=True)
    nodes = [NodeWork("memset", place, uses=(use,)) for place in range(300)]
    (race,), coverage = graph_nodes.races_of(nodes, [], [], [])
    assert (race.first.node, race.second.node, coverage.understood) == (0, 1, 300)
    assert 1 < race.count < 1000  # of 44,850


def test_of_alike_nodes_the_fix_names_the_first_because_the_others_come_after_it():
    places = 8, 8, 8, 8, 8, 0, 0, 0
    uses = [(MemoryUse(START + place, "write", (1,), (1,), is_sure=True),) for place in places]
    nodes = [NodeWork("memset", place, uses=own) for place, own in enumerate(uses)]
    edges = [*itertools.pairwise(range(6)), (6, 7)]
    (race,), _ = graph_nodes.races_of(nodes, edges, [], [])
    assert (race.first.node, race.second.node) == (5, 6)


def test_work_of_one_inner_graph_is_to_be_ordered_where_that_is_captured():
    use = MemoryUse(START, "write", (4,), (1,), is_sure=True)
    nodes = [NodeWork("memset", 3, uses=(use,)) for _ in range(2)]
    (race,), _ = graph_nodes.races_of(nodes, [], [], [])
    assert (race.first.node, race.second.node) == (3, 3)
    assert race.fix == "both are in the graph that is node 3: order them where it is captured"


def test_each_node_of_graphs_in_graphs_has_its_own_uses_and_order(monkeypatch):
    """And the place, in the outermost graph, of the node that holds it."""
    outer, inner, innermost = 1, 2, 3
    nodes = {
        outer: (["before", inner, "after", "beside"], [(0, 1), (1, 2)]),
        inner: (["first", innermost, "free"], [(0, 1)]),
        innermost: (["one", "two"], []),
    }
    names = [node for listed, _ in nodes.values() for node in listed if isinstance(node, str)]
    uses = {
        name: (MemoryUse(START + number, "write", (1,), (1,), is_sure=True),)
        for number, name in enumerate(names)
    }
    monkeypatch.setattr(cuda_graphs, "_nodes", nodes.__getitem__)
    monkeypatch.setattr(cuda_graphs, "_kind", lambda node: "graph" if node in nodes else "memset")
    monkeypatch.setattr(cuda_graphs, "_uses", lambda _, node, sizes: uses[node])
    monkeypatch.setattr(cuda_graphs, "ask", lambda _, node: node)
    found, edges = cuda_graphs.work(outer)
    name_of = {
        number: names[use.address - START] for number, one in enumerate(found) for use in one.uses
    }
    assert {name: found[number].place for number, name in name_of.items()} == {
        "before": 0, "first": 1, "one": 1, "two": 1, "free": 1, "after": 2, "beside": 3
    }  # fmt: skip
    stamps = stamps_of_nodes(len(found), edges)
    unordered = {
        frozenset((name_of[one], name_of[other]))
        for one, other in itertools.combinations(name_of, 2)
        if not are_ordered(stamps[one], stamps[other])
    }
    assert unordered == {
        *map(frozenset, [("one", "two"), ("free", "first"), ("free", "one"), ("free", "two")]),
        *(frozenset(("beside", name)) for name in names if name != "beside"),
    }
