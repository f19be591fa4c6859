"""The order of work: which other work must have ended when a piece of work begins.

Vector clocks tell the order. A clock says how far each chain of work had come. A queue is a chain,
and so are nodes of a graph that follow one another.
"""

from __future__ import annotations

import heapq
import math
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

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


def stamps_of_nodes(count: int, edges: Iterable[tuple[int, int]]) -> dict[int, Stamp]:
    """Return where each node of a graph stands, in the order of numbers as far as edges allow it.

    Each edge is from a node to one that waits for it. A chain goes on from a node to one of those.
    """
    waits_for: dict[int, set[int]] = {node: set() for node in range(count)}
    for one, other in edges:
        waits_for[other].add(one)
    clocks, stamps = VectorClocks(), dict[int, Stamp]()
    ends: dict[int, int] = {}  # of chains, by their last nodes
    sorter, ready = TopologicalSorter(waits_for), list[int]()
    sorter.prepare()
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, node)
        node = heapq.heappop(ready)
        sorter.done(node)
        before = waits_for[node]
        chain = ends[node] = next((ends.pop(one) for one in before if one in ends), node)
        for one in before:
            clocks.wait(chain, stamps[one].clock)
        stamps[node] = clocks.work(chain, None)
    return stamps
