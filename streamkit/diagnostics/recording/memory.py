"""Finds the allocation to which an address belonged when a call of the driver used it.

CUDA gives addresses again, so a question asked afterwards can take new memory for old, or find
none. Therefore each allocation is noted as it is made and as it ends. An address that no call in
the block made belongs to an allocation that was there before and still is: the driver knows it.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from streamkit._cuda import memory_pools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamkit._cuda.memory_pools import Allocation
    from streamkit.diagnostics.recording.steps import CudaStep

_MADE = ("allocation", "memory made", "memory mapped")
_ENDED = ("free", "memory gone")


class Life(NamedTuple):
    """An allocation from when it is made until it ends; the next one there is another life."""

    number: int
    stop: int
    is_host: bool
    """Whether this is pinned memory of the host."""


class Lives:
    """The allocations that there are at a step, while the steps of a program are read in order."""

    def __init__(
        self,
        program: Iterable[CudaStep],
        ask: Callable[[int], Allocation | None] = memory_pools.allocation,
    ) -> None:
        """Take the steps that will be read, and the driver's look-up of present allocations."""
        self._numbers = itertools.count(1)
        self._starts: list[int] = []
        self._there: dict[int, Life] = {}  # by their starts, which ``_starts`` has in order
        self._to_come: Counter[int] = Counter()  # how often memory will be made at a start
        self._ask = functools.cache(ask)
        self.changes: int = 0
        """The number of allocations that were made or ended so far."""
        made: set[int] = set()
        for step in program:
            if step.kind in _MADE:
                self._to_come[step.fact.more.start] += 1
                made.add(step.fact.more.start)
            elif step.kind in _ENDED and step.fact.more is not None:
                if step.fact.more.start not in made and self._around(step.fact.more.start) is None:
                    self._begin(step.fact.more)  # an allocation from before the block
                made.discard(step.fact.more.start)

    def read(self, step: CudaStep) -> None:
        """Take the allocation that a step makes or ends. Ask for the memory it uses before that."""
        if step.kind in _MADE:
            self.changes += 1
            self._to_come[step.fact.more.start] -= 1
            self._begin(step.fact.more)
        elif step.kind in _ENDED and step.fact.more is not None:
            self.changes += 1
            start, size = step.fact.more[:2]
            self._end(start, start + size)

    def at(self, address: int) -> Life | None:
        """Return the allocation with this address in it, None if CUDA knows none there."""
        found = self._around(address)
        if found is None:
            known = self._ask(address)
            if known is not None and not self._to_come[known.start]:
                found = self._begin(known)
        return found

    def across(self, start: int, stop: int) -> Iterator[Life]:
        """Yield the allocations of these bytes, for an array can lie in mappings side by side."""
        while start < stop and (found := self.at(start)) is not None:
            yield found
            start = found.stop

    def _around(self, address: int) -> Life | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        found = self._there[self._starts[place]]
        return found if address < found.stop else None

    def _begin(self, memory: Allocation) -> Life:
        stop = memory.start + memory.size
        place = self._end(memory.start, stop)  # nothing told of the end of older memory
        self._starts.insert(place, memory.start)
        life = Life(next(self._numbers), stop, memory.is_host)
        self._there[memory.start] = life
        return life

    def _end(self, start: int, stop: int) -> int:
        """Drop the allocations between two addresses; return the place where they were."""
        place = bisect_left(self._starts, start)
        if place and self._there[self._starts[place - 1]].stop > start:
            place -= 1
        end = bisect_left(self._starts, stop, place)
        for one in self._starts[place:end]:
            del self._there[one]
        del self._starts[place:end]
        return place
