"""What must have ended when a piece of work begins.

For queues, vector clocks tell it. A clock says how far each chain of work had come. A queue is a
chain, and so is the body of a scope, because others can know a part of it while it runs. For the
nodes of a graph, what can be reached along its edges tells it.
"""

from __future__ import annotations

import itertools
import math
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    Clock = dict[Any, float]

_ANY = object()
EVERYTHING: Clock = {_ANY: math.inf}
"""The clock of something unknown, which counts as if it came after all work."""


class Stamp(NamedTuple):
    """Where a piece of work stands: its place on its chain, and the clock when it has ended."""

    chain: Hashable
    place: float
    clock: Clock


def is_before(one: Stamp, other: Stamp) -> bool:
    """Whether the first must have ended when the other begins."""
    known = max(other.clock.get(one.chain, 0), other.clock.get(_ANY, 0))
    return known >= one.place


def are_ordered(one: Stamp, other: Stamp) -> bool:
    """Whether one of them must have ended when the other begins."""
    return is_before(one, other) or is_before(other, one)


class VectorClocks:
    """The clocks of queues and of hosts; a host gives work to queues and can wait for it."""

    def __init__(self) -> None:
        self._places = itertools.count(1)
        self._queues: dict[Hashable, Clock] = {}
        self._hosts: dict[Hashable, Clock] = {}

    def work(self, queue: Hashable, host: Hashable) -> Stamp:
        """Give a queue a piece of work."""
        place = next(self._places)
        clock = self._queues[queue] = {**self.point(queue, host), queue: place}
        return Stamp(queue, place, clock)

    def point(self, queue: Hashable, host: Hashable) -> Clock:
        """Return the clock of a queue's present point, with what the host has learned."""
        clock = self._queues[queue] = _joined(
            self._queues.get(queue, {}), self._hosts.get(host, {})
        )
        return clock

    def wait(self, queue: Hashable, clock: Clock) -> None:
        """Let a queue wait for a point."""
        self._queues[queue] = _joined(self._queues.get(queue, {}), clock)

    def learn(self, host: Hashable, clock: Clock) -> None:
        """Note that a host has waited for a point."""
        self._hosts[host] = _joined(self._hosts.get(host, {}), clock)

    # -- the body of a scope, which its host runs itself ----------------------------------------

    def enter(self, queue: Hashable, host: Hashable) -> Hashable:
        """Let a host wait for a queue and hold it; return the chain of the body."""
        body = object()
        clock = self.point(queue, host)
        self.learn(host, clock)
        self._queues[queue] = {**clock, body: math.inf}  # what comes after it comes after all of it
        return body

    def work_inside(self, body: Hashable, host: Hashable) -> Stamp:
        """Run a piece of work in the body."""
        place = next(self._places)
        self.learn(host, {body: place})
        return Stamp(body, place, self._hosts[host])

    def here(self, host: Hashable) -> Clock:
        """Return the clock of what a host has learned."""
        return self._hosts.get(host, {})


def _joined(one: Clock, other: Clock) -> Clock:
    if one is other or not other:
        return one
    return {**one, **{chain: max(place, one.get(chain, 0)) for chain, place in other.items()}}


# -- graphs ---------------------------------------------------------------------------------------


def unordered_nodes(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each node the set of those that may run while it runs.

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
