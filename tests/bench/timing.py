"""How a row of the speed table is timed.

The sides take turns of a few hundred calls in one process, so that other load of the machine
slows all. Only the caller is timed: the device is idle when a turn begins, because a full queue
would make the caller wait.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    Loop = Callable[[list[Any]], object]
    Items = Callable[[int], list[Any]]

TURN = 200  # calls until the device is synchronised: far fewer than fill a queue


@dataclass(frozen=True)
class Libraries:
    """The libraries compared with, ready on one device."""

    torch: Any
    cupy: Any
    warp: Any
    device: int


@dataclass(frozen=True)
class Row:
    """One operation's cost: medians over the repeats, and the ratio's extremes."""

    name: str
    against: str
    ours_ns: float
    theirs_ns: float
    ratio: float
    ratio_low: float
    ratio_high: float
    at_most: float
    aim: float
    note: str = ""
    bare_ns: float | None = None
    """What the calls of CUDA and of the libraries that ours has to make take by themselves."""

    @property
    def met(self) -> bool:
        """Whether the ratio is at most what the design allows."""
        return self.ratio <= self.at_most


def same(item: Any) -> Items:
    """Return what makes a list of one item, repeated."""
    return lambda count: [item] * count


_nothing = same(None)  # for loops that do not look at their items


@dataclass(frozen=True)
class Arms:
    """Two loops, and what makes the lists of a given length that they run over."""

    ours: Loop
    theirs: Loop
    ours_items: Items = _nothing
    theirs_items: Items = _nothing
    bare: Loop | None = None  # over items of ours: only the calls that ours has to make
    before: Callable[[], object] = lambda: None  # called before each turn, the device idle
    after: Callable[[], object] = lambda: None  # called after each turn
    clear: Callable[[], object] = lambda: None  # called after the turns of all, their lists gone
    one_turn: int = 0  # calls of a repeat's only turn, for items that are costly to make
    turn: int = TURN  # calls of each turn else
    each: int = 1  # how many calls an item stands for


@dataclass(frozen=True)
class Plan:
    """A row not yet measured; ``arrange`` holds the surroundings of its two loops.

    ``is_last`` is for what changes the process for good, and so is measured after the others, and
    for what has a process of its own.
    """

    name: str
    against: str
    at_most: float
    aim: float
    arrange: Callable[[Libraries], AbstractContextManager[Arms]]
    note: str = ""
    is_last: bool = False

    def measure(self, libraries: Libraries, repeats: int, iterations: int) -> list[list[float]]:
        """Time each side, as ``take_turns``; one more repeat goes first, unmeasured."""
        with self.arrange(libraries) as arms:
            return take_turns(arms, repeats, iterations, libraries.torch.cuda.synchronize)

    def row(self, ours: Sequence[float], theirs: Sequence[float], *bare: Sequence[float]) -> Row:
        """Return what those times come to."""
        ratio, low, high = ratios(ours, theirs)
        return Row(
            self.name, self.against, median(ours), median(theirs), ratio, low, high,
            self.at_most, self.aim, self.note, *map(median, bare),
        )  # fmt: skip


# -- measuring --------------------------------------------------------------------------------


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the least and the greatest of the ratios within each repeat."""
    found = [one / other for one, other in zip(ours, theirs, strict=True)]
    return median(found), min(found), max(found)


def take_turns(
    arms: Arms, repeats: int, iterations: int, sync: Callable[[], object]
) -> list[list[float]]:
    """Return the nanoseconds of a call in each repeat: of ours, of theirs, and bare if asked."""
    turn = min(arms.one_turn or arms.turn, iterations)
    turns = 1 if arms.one_turn else iterations // turn
    empty = min(_time(_empty, [None] * turn) for _ in range(20))
    sides = [(arms.ours, arms.ours_items), (arms.theirs, arms.theirs_items)]
    if arms.bare is not None:
        sides.append((arms.bare, arms.ours_items))
    found: list[list[float]] = [[] for _ in sides]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats + 1):
            total = [0] * len(sides)
            for _ in range(turns):
                lists = [items(turn) for _, items in sides]
                for number, (loop, _) in enumerate(sides):
                    sync()
                    arms.before()
                    total[number] += _time(loop, lists[number]) - empty
                    arms.after()
                sync()
                lists.clear()
                arms.clear()
            for times, nanoseconds in zip(found, total, strict=True):
                times.append(nanoseconds / turns / turn / arms.each)
    finally:
        if collecting:
            gc.enable()
    return [times[1:] for times in found]  # the first repeat fills the caches


def _time(loop: Loop, items: list[Any]) -> int:
    start = perf_counter_ns()
    results = loop(items)
    end = perf_counter_ns()
    del results  # not before the end: see ``held_calls``
    return end - start


def _empty(items: list[Any]) -> None:
    for _ in items:
        pass


def calls(call: Callable[[Any], object]) -> Loop:
    """Return the loop that calls with each item."""

    def loop(items: list[Any]) -> None:
        for item in items:
            call(item)

    return loop


def held_calls(call: Callable[[Any], object]) -> Loop:
    """Return ``calls`` that holds the results till the clock stops: their end is not measured."""
    return lambda items: [call(item) for item in items]


def calls_without(call: Callable[[], object]) -> Loop:
    """Return the loop that calls without the item."""

    def loop(items: list[Any]) -> None:
        for _ in items:
            call()

    return loop


def dropping_calls(call: Callable[[Any], object]) -> Loop:
    """Return the loop that calls with each item and drops it: the end of both is measured."""

    def loop(items: list[Any]) -> None:
        take = items.pop
        for _ in range(len(items)):
            call(take())

    return loop


def each_of(functions: Sequence[Callable[[], object]]) -> Loop:
    """Return the loop that calls all these functions for each item."""

    def loop(items: list[Any]) -> None:
        for _ in items:
            for function in functions:
                function()

    return loop
