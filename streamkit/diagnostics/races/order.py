"""The order of work: which other work must have ended when a piece of work begins.

For queues, vector clocks tell the order. A clock says how far each chain of work had come, and a
queue is a chain. For the nodes of a graph, the paths along its edges tell the order.
"""

from __future__ import annotations

import math
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

Clock = tuple[float, ...]
"""A place for each chain, by its number: all work up to there has ended.

The first entry counts for every chain that has none of its own, and no entry is below it. A clock
is never changed, so that all work between two waits shares one.
"""
NOTHING: Clock = ()
EVERYTHING: Clock = (math.inf,)
"""The clock of something unknown, which counts as if it came after all work."""
READS_A_NUMBER = {"_local_scalar_dense", "nonzero"}
"""Operators that read a number, for which a GPU's host waits."""


def known(clock: Clock, chain: int) -> float:
    """Return the place up to which a clock knows a chain."""
    if chain < len(clock):
        return clock[chain]
    return clock[0] if clock else 0


def joined(one: Clock, other: Clock) -> Clock:
    """Return the clock after both, one of the two themselves if it covers the other."""
    if one is other or not other:
        return one
    if not one:
        return other
    if len(one) < len(other):
        one, other = other, one
    both = tuple(map(max, one, other + other[:1] * (len(one) - len(other))))
    return one if both == one else other if both == other else both


def reaching(clock: Clock, chain: int, place: float) -> Clock:
    """Return a clock that also knows a chain up to a place."""
    if known(clock, chain) >= place:
        return clock
    floor = clock[0] if clock else 0
    return (*clock[:chain], *(floor,) * (chain - len(clock)), place, *clock[chain + 1 :])


class Stamp(NamedTuple):
    """The place of a piece of work in the order."""

    chain: int
    place: float
    """The place of the chain that a clock has to know to come after this work."""
    before: Clock
    """The clock of the work on other chains that comes before this work."""

    @property
    def clock(self) -> Clock:
        """The clock when the work has ended."""
        return reaching(self.before, self.chain, self.place)


def is_before(one: Stamp, other: Stamp) -> bool:
    """Whether the first must have ended when the other begins."""
    if one.chain == other.chain:
        return one.place <= other.place
    return known(other.before, one.chain) >= one.place


def are_ordered(one: Stamp, other: Stamp) -> bool:
    """Whether one of them must have ended when the other begins."""
    return is_before(one, other) or is_before(other, one)


class _Queue:
    """The present place of a queue, and the clock of the work that it comes after."""

    def __init__(self, chain: int) -> None:
        self.chain = chain
        self.place = 0
        self.before = NOTHING
        self.learned = NOTHING  # the latest clock that was joined


class VectorClocks:
    """The clocks of queues, and of hosts, which give work to queues and can wait for it."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, _Queue] = {}
        self._hosts: dict[Hashable, Clock] = {}

    def work(self, queue: Hashable, host: Hashable) -> Stamp:
        """Give a queue a piece of work."""
        found = self.wait(queue, self.here(host))
        found.place += 1
        return Stamp(found.chain, found.place, found.before)

    def point(self, queue: Hashable, host: Hashable) -> Clock:
        """Return the clock of a queue's present point, joined with that of the host."""
        found = self.wait(queue, self.here(host))
        found.before = reaching(found.before, found.chain, found.place)
        return found.before

    def learn(self, host: Hashable, clock: Clock) -> None:
        """Note that a host has waited for a point."""
        self._hosts[host] = joined(self.here(host), clock)

    def here(self, host: Hashable) -> Clock:
        """Return the clock of a host: all that it has learned."""
        return self._hosts.get(host, NOTHING)

    def wait(self, queue: Hashable, clock: Clock) -> _Queue:
        """Let a queue wait for a point; return the queue's state."""
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Queue(len(self._queues) + 1)
        if clock is not found.learned:
            found.before, found.learned = joined(found.before, clock), clock
        return found


# -- graphs ---------------------------------------------------------------------------------------


def unordered_nodes(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each node the set of nodes that may run while it runs.

    Each edge is from a node to one that waits for it. A node is its number, and a set of nodes is a
    number with their bits.
    """
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
    return [every & ~(before[node] | after[node] | 1 << node) for node in range(count)]


def numbers(nodes: int) -> Iterator[int]:
    """Yield the numbers of the nodes of a set, the lowest first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest
