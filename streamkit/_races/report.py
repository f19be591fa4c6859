"""The report of ``races``: work on the same memory that nothing orders, and what mends it."""

from __future__ import annotations

import html
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._pictures.styles import STYLES
from streamkit._pictures.timeline import counted, times
from streamkit._races import search
from streamkit._races.order import are_ordered
from streamkit._recording.kernel_names import in_one_line
from streamkit.errors import RaceError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from os import PathLike

    from streamkit._races.arrays import RacedArray
    from streamkit._races.order import Stamp
    from streamkit._races.search import Mode, Pair
    from streamkit._recording.operations import AuditedQueue

_DOES = {"read": "reads", "write": "writes", "unknown": "may read or write"}
_NAMED = 8  # operations that a sentence names


@dataclass(frozen=True)
class RacedOperation:
    """One of the two operations of a race."""

    name: str
    """The name of the function or kernel."""
    library: str | None
    """The library that it belongs to, if that is known."""
    queue: AuditedQueue | None
    """None for a node of a graph, which runs on the queues that CUDA picks, and for the host."""
    mode: Mode
    """``"read"``, ``"write"`` or ``"unknown"``."""
    file: str | None
    """The file of the innermost line outside StreamKit and the libraries that gave the work."""
    line: int
    """0 where no line is known."""
    start_ns: int
    """When it ran, since the block began; 0 if it had not run, and on CUDA streams."""
    end_ns: int
    node: int | None = None
    """The number of its node, if it is a graph's."""
    section: str | None = None
    """The innermost section in which the node was captured."""

    @property
    def title(self) -> str:
        """The library and the name of the operation, in words."""
        name = in_one_line(self.name)
        return f"{STYLES[self.library].label}'s {name}" if self.library in STYLES else name

    def __str__(self) -> str:
        does = f"{self.title} {_DOES[self.mode]} it"
        if self.queue is None and self.node is None:
            return f"{self.title} may read it, because it has not waited for that"
        if self.queue is None:
            section = f", in the section {self.section!r}" if self.section else ""
            return f"{does} in node {self.node}{section}"
        where = f", {self.file}:{self.line}" if self.file else ""
        return f"{does} on {self.queue}{where}"


@dataclass(frozen=True)
class Race:
    """Two operations on the same memory that nothing orders."""

    array: RacedArray
    first: RacedOperation
    """The one that was given first."""
    second: RacedOperation
    certain: bool
    """Whether both surely use the same bytes, one surely writes, and surely nothing orders them."""
    mend: str
    """The call that is missing, and where."""
    count: int
    """How often it was found at this pair of lines."""

    def __str__(self) -> str:
        kind = "race" if self.certain else "possible race"
        return (
            f"{kind} on {self.array}, found {times(self.count)}:\n"
            f"  {self.first}\n  {self.second}\n  {self.mend}"
        )


@dataclass(frozen=True)
class Coverage:
    """How much of the work was understood."""

    understood: int
    """Operations of which all that they read and write is known."""
    total: int
    missed: tuple[str, ...]
    """What was not understood, each name once; also what could not be seen at all."""

    def __str__(self) -> str:
        text = f"{self.understood} of {counted(self.total, 'operation')} understood"
        if not self.missed:
            return f"{text}."
        more = len(self.missed) - _NAMED
        names = ", ".join(map(in_one_line, self.missed[:_NAMED]))
        return f"{text}; not: {names}{f', and {more} more' if more > 0 else ''}."


class RaceReport:
    """What ``streamkit.races`` found, made when its block ends, or the ``races`` of a graph."""

    def __init__(self) -> None:
        self._found: tuple[tuple[Race, ...], Coverage] | None = None
        self._page: Callable[[str], str] = str

    def complete(
        self, races: tuple[Race, ...], coverage: Coverage, draw: Callable[[str], str]
    ) -> None:
        """Take what was found.

        Args:
            races: In the order in which they were given.
            coverage: How much was understood.
            draw: Makes the page, given its heading.
        """
        self._found, self._page = (races, coverage), draw

    @property
    def races(self) -> tuple[Race, ...]:
        """One for each pair of lines and array, in the order in which they were given."""
        return self._read()[0]

    @property
    def certain(self) -> tuple[Race, ...]:
        """The races that are surely races."""
        return tuple(race for race in self.races if race.certain)

    @property
    def possible(self) -> tuple[Race, ...]:
        """All others: what the operations do with the memory, or their order, is not known."""
        return tuple(race for race in self.races if not race.certain)

    @property
    def coverage(self) -> Coverage:
        """How much of the work was understood. What was not can race unseen."""
        return self._read()[1]

    def _read(self) -> tuple[tuple[Race, ...], Coverage]:
        if self._found is None:
            raise ScopeError(
                "the report is made when the block ends. Read it after 'with ... as report:'"
            )
        return self._found

    def assert_none(self, *, possible: bool = False) -> None:
        """Check that there are no certain races.

        A copy to the host that nothing waited for is a possible one: the host's read is not seen.

        Args:
            possible: Check that there are no possible ones either.

        Raises:
            RaceError: There are. It lists them, and what mends each.
        """
        __tracebackhide__ = True  # in pytest
        found = self.races if possible else self.certain
        if found:
            lines = "\n".join(map(str, found))
            raise RaceError(
                f"nothing orders work on the same memory: {_counted(self.races)}.\n{lines}\n"
                f"{self.coverage}"
            )

    # -- to look at ---------------------------------------------------------------------------

    def show(self) -> None:
        """Print the races, what mends each, and what was not understood."""
        print(self)  # noqa: T201 - what it is for

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write a page with an arrow for each order that is missing; return its path.

        It is the audit's page, or the picture of the graph.

        Args:
            path: The file to write.
        """
        text = self._page(f"{_counted(self.races)}. {self.coverage}")
        Path(path).write_text(text, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str | None:
        """Show the text in a notebook."""
        return None if self._found is None else f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        return "\n".join([f"{_counted(self.races)}.", *map(str, self.races), str(self.coverage)])

    def __repr__(self) -> str:
        if self._found is None:
            return "<streamkit race report, not over>"
        return f"<streamkit race report: {_counted(self.races)}; {self.coverage}>"


def _counted(races: tuple[Race, ...]) -> str:
    """Return how many there are of each class, in words; never that there are none."""
    certain = sum(race.certain for race in races)
    if not races:
        return "no race found in what was understood"
    return f"{counted(certain, 'race')} found, and {counted(len(races) - certain, 'possible one')}"


# -- from pairs of work to a report ---------------------------------------------------------------


def races_among(
    works: Iterable[search.Work],
    stamps: Callable[[bool], Mapping[Any, Stamp]],
    *,
    key: Callable[[Pair], Hashable],
    operation: Callable[[int, Mode], RacedOperation],
    missing_call: Callable[[int, int], str],
) -> list[tuple[Race, Pair]]:
    """Return the races among pieces of work, each with the pair that it is described by.

    Args:
        works: In the order in which they were given.
        stamps: Finds where each of them stands, by its number, without or with ``threads_talk``.
            Work that has no place there is left out.
        key: Pairs with the same key are one race.
        operation: Describes a piece of work by its number and what it does with the memory.
        missing_call: Words the call that orders the second of two numbers after the first.
    """
    strictly, loosely = stamps(False), stamps(True)  # noqa: FBT003 - a callable has no keywords
    found: defaultdict[Hashable, list[Pair]] = defaultdict(list)
    for pair in search.find(
        (work for work in works if work.number in strictly),
        lambda one, other: are_ordered(strictly[one], strictly[other]),
        lambda one, other: are_ordered(loosely[one], loosely[other]),
    ):
        found[key(pair)].append(pair)
    races = []
    for pairs in found.values():
        pair = next((one for one in pairs if one.is_certain), pairs[0])
        both = pair.first, pair.second
        # an operation that reads and writes an array has two accesses
        same = [one for one in pairs if (one.first, one.second) == both]
        first = operation(pair.first, strongest({one.one.mode for one in same}))
        second = operation(pair.second, strongest({one.other.mode for one in same}))
        before = f"line {second.line}" if second.file else "it"
        if first.file and second.file and first.file != second.file:
            before += f" of {second.file}"
        race = Race(
            array_of(pair),
            first,
            second,
            pair.is_certain,
            f"if {first.title} should come first: {missing_call(*both)} before {before}",
            len({(one.first, one.second) for one in pairs}),
        )
        races.append((race, pair))
    return races


def array_of(pair: Pair) -> RacedArray:
    """Return what is said of the memory of both: the array that has a name, if one has."""
    arrays: tuple[RacedArray, RacedArray] = pair.one.array, pair.other.array
    return min(arrays, key=lambda array: array.name is None)


def strongest(modes: set[Mode]) -> Mode:
    """Return the one of an operation's uses of a piece of memory that a report names."""
    return "write" if "write" in modes else min(modes)


def coverage_of(operations: Iterable[tuple[str, bool]], unseen: Iterable[str] = ()) -> Coverage:
    """Count operations, each given by its name and whether all that it uses is known."""
    known = list(operations)
    missed = [name for name, is_known in known if not is_known]
    names = tuple(dict.fromkeys([*missed, *unseen]))
    return Coverage(len(known) - len(missed), len(known), names)
