"""From pairs of work to the races of a report, for host streams and CUDA streams alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit._race_engine import search
from streamkit._race_engine.order import are_ordered
from streamkit._races.report import Race, RacedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from streamkit._race_engine.order import Stamp
    from streamkit._race_engine.search import Mode, Pair
    from streamkit._races.places import Place


def unordered(
    works: Iterable[search.Work], strictly: Mapping[Any, Stamp], loosely: Mapping[Any, Stamp]
) -> Iterator[Pair]:
    """Yield the pairs that race, given the stamps without and with ``threads_talk``."""
    return search.find(
        works,
        lambda one, other: are_ordered(strictly[one], strictly[other]),
        lambda one, other: are_ordered(loosely[one], loosely[other]),
    )


def race(
    pair: Pair,
    pairs: list[Pair],
    operation: Callable[[int, Mode], RacedOperation],
    missing_call: str,
    places: tuple[Place | None, Place | None],
) -> Race:
    """Return the race of all pairs of two lines, described by one of them.

    ``operation`` describes a piece of work by its number and what it does with the memory, and
    ``missing_call`` orders the second piece after the first.
    """
    # an operation that reads and writes an array has two accesses
    same = [one for one in pairs if (one.first, one.second) == (pair.first, pair.second)]
    first = operation(pair.first, strongest({one.one.mode for one in same}))
    one, other = places
    before = "it" if other is None else f"line {other.line}"
    if one and other and one.file != other.file:
        before += f" of {other.file}"
    return Race(
        min((pair.one.array, pair.other.array), key=lambda array: array.name is None),
        first,
        operation(pair.second, strongest({one.other.mode for one in same})),
        pair.is_certain,
        f"if {first.title} should come first: {missing_call} before {before}",
        len({(one.first, one.second) for one in pairs}),
    )


def strongest(modes: set[Mode]) -> Mode:
    """Return the one of an operation's uses of a piece of memory that a report names."""
    return "write" if "write" in modes else min(modes)
