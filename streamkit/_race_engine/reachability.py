"""What must have ended when a node of a graph begins: reachability along its edges."""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Reachability:
    """Which nodes have no order. A node is a number, and a set of nodes one with their bits."""

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        """Follow the edges, each from a node to one that waits for it."""
        waits_for: list[set[int]] = [set() for _ in range(count)]
        for one, other in edges:
            waits_for[other].add(one)
        before = [0] * count
        sequence = list(TopologicalSorter(dict(enumerate(waits_for))).static_order())
        for node in sequence:
            for one in waits_for[node]:
                before[node] |= before[one] | 1 << one
        after = [0] * count
        for node in reversed(sequence):
            for one in waits_for[node]:
                after[one] |= after[node] | 1 << node
        every = (1 << count) - 1
        self.unordered = [
            every & ~(before[node] | after[node] | 1 << node) for node in range(count)
        ]
        """For each node, the set of those that may run while it runs."""


def numbers(nodes: int) -> Iterator[int]:
    """Yield the numbers of the nodes of a set, the lowest first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest
