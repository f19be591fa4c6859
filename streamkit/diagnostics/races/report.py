"""The report of ``races``: work on the same memory that nothing orders, and the missing calls."""

from __future__ import annotations

import html
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._support.messages import in_one_line
from streamkit.diagnostics.pictures import terminal
from streamkit.diagnostics.pictures.styles import STYLES
from streamkit.diagnostics.pictures.timeline import counted, times
from streamkit.diagnostics.races.search import race_of
from streamkit.diagnostics.recording.operations import distinct_names
from streamkit.errors import RaceError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from os import PathLike

    from streamkit.diagnostics.races.arrays import RacedArray
    from streamkit.diagnostics.races.search import Access, Mode, Pair
    from streamkit.diagnostics.recording.operations import AuditedQueue

QueueT = TypeVar("QueueT", bound="Hashable")
_DOES = {"read": "reads", "write": "writes", "unknown": "may read or write"}
FREE = "free"
"""The name of a free on a CUDA stream, which counts as work that writes the memory."""
_NAMED = 8  # operations that a sentence names


@dataclass(frozen=True)
class RacedOperation:
    """One of the two operations of a race."""

    name: str
    """The name of the function or kernel."""
    library: str | None
    """The library of the function or kernel, if that is known."""
    queue: AuditedQueue | None
    """None for a node of a graph, which runs on the queues that CUDA picks, and for the host."""
    mode: Mode
    """``"read"``, ``"write"`` or ``"unknown"``."""
    file: str | None
    """The file of the innermost line outside StreamKit and the libraries that gave the work."""
    line: int
    """0 where no line is known."""
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
        does = f"{self.title} {_DOES[self.mode]} it" if _does(self) != "frees" else "it is freed"
        if self.queue is None and self.node is None:
            return f"{self.title} may {self.mode} it, because it has not waited for that"
        if self.queue is None:
            section = f", in the section {self.section!r}" if self.section else ""
            return f"{does} in node {self.node}{section}"
        where = f", {in_one_line(self.file)}:{self.line}" if self.file else ""
        return f"{does} on {self.queue}{where}"


@dataclass(frozen=True)
class Race:
    """Two operations on the same memory that nothing orders."""

    array: RacedArray
    first: RacedOperation
    """The operation that was given first."""
    second: RacedOperation
    certain: bool
    """Whether both surely use the same bytes, one surely writes, and surely nothing orders them."""
    fix: str
    """The call to add to the program, and where, so that the second comes after the first."""
    count: int
    """The number of times that the race was found at this pair of lines; at least, in a graph."""
    reason: str = ""
    """Why it is only possible, in a few words."""

    def __str__(self) -> str:
        kind = "race" if self.certain else "possible race"
        often = f", {times(self.count)}" if self.count > 1 else ""
        reason = self.reason and f"\n  only possible, because {self.reason}"
        return (
            f"{kind} on {self.array}: {_happens(self.first, self.second)}{often}\n"
            f"  {self.first}\n  {self.second}{reason}\n  {self.fix}"
        )


# -- the words of a race --------------------------------------------------------------------------


def texts_of(races: Iterable[Race]) -> list[str]:
    """Return what a report says of races: once of a pair of lines and of the streams' names."""
    alike: defaultdict[Hashable, list[Race]] = defaultdict(list)
    for race in races:
        alike[race.certain, _site(race.first), _site(race.second)].append(race)
    texts = []
    for found in alike.values():
        text = str(replace(found[0], count=sum(race.count for race in found)))
        array, more = str(found[0].array), len(found) - 1
        texts.append(text.replace(array, f"{array} and {more} more", 1) if more else text)
    return texts


def _site(one: RacedOperation) -> Hashable:
    stream = one.queue and one.queue.name.removesuffix(f" id={one.queue.id}")
    return one.file, one.line, one.node, stream, None if one.file else one.name


def reason_of(one: Access, other: Access, first: str, second: str) -> str:
    """Return why two accesses are only a possible race, given the titles of their operations."""
    titled = (one, first), (other, second)
    for access, title in sorted(titled, key=lambda pair: pair[0].mode != "unknown"):
        if access.mode == "unknown":
            return f"what {title} does with it was not seen"
        if not access.is_sure:
            return f"{title} perhaps does not use all of it"
    if race_of(one, other):
        return "another thread, the host, another process or a graph may order the two"
    if None in (one.allocation, other.allocation):
        return "the array may have been freed in between, and its memory given to another one"
    return "the two perhaps share no byte of it"


def _happens(first: RacedOperation, second: RacedOperation) -> str:
    """Return in words how two operations use the memory at one time."""
    one, other = _where(first), _where(second)
    if (first.queue, first.node) == (second.queue, second.node):
        return f"{one} uses it twice at a time"
    if _does(first) == _does(second) == _DOES["write"]:
        return f"{one} and {other} both write it"
    return f"{other} {_does(second)} it while {one} {_does(first)} it"


def _does(operation: RacedOperation) -> str:
    """Return the verb for an operation's use of the memory."""
    is_on_cuda = operation.queue is not None and operation.queue.device != "cpu"
    is_free = is_on_cuda and operation.name == FREE and operation.library is None
    return "frees" if is_free else _DOES[operation.mode]


def _where(operation: RacedOperation) -> str:
    if operation.node is not None:
        return f"node {operation.node}"
    return operation.title if operation.queue is None else in_one_line(operation.queue.name)


def fix(
    first: RacedOperation,
    second: RacedOperation,
    both: tuple[int, int],
    missing: Callable[[int, int, str], str],
) -> str:
    """Return how to order the second operation after the first: the call to add, and where.

    ``missing`` words the call, given the numbers of ``both`` and the place before which it belongs.
    """
    title = first.title
    if title == second.title:
        has_line = first.file and first.line != second.line
        title += f" of line {first.line}" if has_line else f" on {_where(first)}"
    before = f"line {second.line}" if second.file else "it"
    if first.file and second.file and first.file != second.file:
        before += f" of {in_one_line(second.file)}"
    return f"to run {title} first, {missing(*both, before)}"


def missing_wait(waiting: str, awaited: str, before: str, *, are_code: bool) -> str:
    """Return the wait to add: as code, if both have names in the code of that place."""
    if are_code:
        return f"add {waiting}.wait({awaited}) before {before}"
    return f"let {waiting} wait for {awaited} before {before}"


def fix_in_graph(first: RacedOperation, second: RacedOperation) -> str:
    """Return how to order two nodes of a graph, or two parts of a graph that is one node."""
    if first.node == second.node:
        return f"both are in the graph that is node {first.node}: order them where it is captured"
    return (
        f"to run node {first.node} first, let the stream of node {second.node} wait for that of "
        f"node {first.node} in the capture, before node {second.node}: second.wait(first)"
    )


# -- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """The share of the work that was understood."""

    understood: int
    """The number of operations all of whose accesses are known."""
    total: int
    missed: tuple[str, ...]
    """The names of work that was not understood, or could not be seen at all, each once."""
    unseen: tuple[str, ...] = ()
    """Those of ``missed`` that could not be seen at all, and are not counted."""
    remedy: str = ""
    """What to do so that more is understood."""

    def __str__(self) -> str:
        if not self.total and not self.missed:
            return "No operation was given to a stream, so there was nothing to look at."
        text = f"{self.understood} of {counted(self.total, 'operation')} understood."
        names = tuple(name for name in self.missed if name not in self.unseen)
        remedy = self.remedy and f" {self.remedy}"
        both = (" Not understood: ", names, ", ", remedy), (" Not seen: ", self.unseen, "; ", "")
        for what, found, between, end in both:
            more = [f"and {len(found) - _NAMED} more"][: len(found) > _NAMED]
            named = between.join((*map(in_one_line, found[:_NAMED]), *more))
            text += f"{what}{named}.{end}" if found else ""
        return text


class RaceReport:
    """The report of ``streamkit.races``, made when its block ends, or of a graph's ``races``."""

    def __init__(self) -> None:
        self._found: tuple[tuple[Race, ...], Coverage] | None = None
        self._page: Callable[[str], str] = str

    def complete(
        self, races: tuple[Race, ...], coverage: Coverage, draw: Callable[[str], str]
    ) -> None:
        """Take the races and the coverage.

        Args:
            races: In the order in which they were given.
            coverage: The share of the work that was understood.
            draw: Makes the page, given its heading.
        """
        self._found, self._page = (races, coverage), draw

    @property
    def races(self) -> tuple[Race, ...]:
        """A race for each pair of lines and array, in the order in which these were given."""
        return self._read()[0]

    @property
    def certain(self) -> tuple[Race, ...]:
        """The races that are surely races."""
        return tuple(race for race in self.races if race.certain)

    @property
    def possible(self) -> tuple[Race, ...]:
        """All other races: the use of the memory, or the order, is not fully known."""
        return tuple(race for race in self.races if not race.certain)

    @property
    def coverage(self) -> Coverage:
        """The share of the work that was understood. Other work can race unseen."""
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
            possible: Check that there are no possible races either.

        Raises:
            RaceError: There are races. The error lists them, with the call to add for each.
        """
        __tracebackhide__ = True  # in pytest
        found = self.races if possible else self.certain
        if found:
            text = "\n\n".join((*texts_of(found), str(self.coverage)))
            raise RaceError(
                f"nothing orders work on the same memory: {_counted(self.races)}.\n\n{text}"
            )

    def as_data(self) -> dict[str, Any]:
        """Return the report in JSON's types.

        ``format`` is the number of this layout, which changes when a key changes its meaning.
        """
        return {
            "format": 1,
            "races": [asdict(race) for race in self.races],
            "coverage": asdict(self.coverage),
        }

    # -- to look at ---------------------------------------------------------------------------

    def show(self) -> None:
        """Print the races, the call to add for each, and the work that was not understood."""
        terminal.show(str(self))

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write a page with an arrow for each order that is missing; return its path.

        The page is the audit's, or has the picture of the graph.

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
        return "\n\n".join((f"{_counted(self.races)}.", *texts_of(self.races), str(self.coverage)))

    def __repr__(self) -> str:
        if self._found is None:
            return "<streamkit race report, not over>"
        return f"<streamkit race report: {_counted(self.races)}. {self.coverage}>"


def _counted(races: tuple[Race, ...]) -> str:
    """Return the numbers of certain and possible races in words, and never "no races"."""
    certain = sum(race.certain for race in races)
    possible = len(races) - certain
    if certain and possible:
        return f"{counted(certain, 'race')} and {counted(possible, 'possible one')} found"
    if possible:
        return f"{counted(possible, 'possible race')} found"
    return f"{counted(certain, 'race')} found" if races else "no race found in what was understood"


# -- from pairs of work to a report ---------------------------------------------------------------


def named_queues(
    queues: Mapping[QueueT, AuditedQueue], names: Iterable[Mapping[QueueT, str]]
) -> dict[QueueT, AuditedQueue]:
    """Return queues as a report names them: without a name, by a variable that has no other.

    ``names`` are the variables of some lines, each by the key of its queue.
    """
    keys: dict[str, set[QueueT]] = {}
    for line in {id(one): one for one in names}.values():  # most lines share one object
        for key, name in line.items():
            keys.setdefault(name, set()).add(key)
    called = {key: name for name, (key, *others) in reversed(keys.items()) if not others}
    found = dict(queues)
    for key in called.keys() & queues.keys():
        if queues[key].name.endswith(f"stream id={queues[key].id}"):
            found[key] = replace(queues[key], name=called[key])
    distinct = distinct_names({*found.values()})
    return {key: distinct.get(queue, queue) for key, queue in found.items()}


def races_among(
    pairs: Iterable[Pair],
    *,
    key: Callable[[Pair], Hashable],
    operation: Callable[[int, Mode], RacedOperation],
    fix: Callable[[RacedOperation, RacedOperation, tuple[int, int]], str],
) -> list[tuple[Race, Pair]]:
    """Return the races that pairs make, each with the pair that it is described by.

    Args:
        pairs: In the order of their second pieces of work.
        key: Pairs with the same key are one race.
        operation: Describes a piece of work by its number and its use of the memory.
        fix: Words how to order the second operation after the first, given their numbers too.
    """
    found: defaultdict[Hashable, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[key(pair)].append(pair)
    races = []
    for alike in found.values():
        pair = next((one for one in alike if one.is_certain), alike[0])
        both = pair.first, pair.second
        # an operation that reads and writes an array has two accesses
        same = [one for one in alike if one[:2] == both]
        modes: Any = {one.one.mode for one in same}, {one.other.mode for one in same}
        first, second = (
            operation(number, "write" if "write" in used else min(used))
            for number, used in zip(both, modes, strict=True)
        )
        array, count = array_of(pair.one, pair.other), len({one[:2] for one in alike})
        reason = "" if pair.is_certain else reason_of(*pair[2:4], first.title, second.title)
        call = fix(first, second, both)
        races.append((Race(array, first, second, pair.is_certain, call, count, reason), pair))
    return races


def array_of(one: Access, other: Access) -> RacedArray:
    """Return a report's array for two accesses: one with a name, and the larger one."""
    arrays: tuple[RacedArray, RacedArray] = one.array, other.array
    return min(arrays, key=lambda array: (array.name is None, -array.nbytes, array.address))


def coverage_of(
    operations: Iterable[tuple[str, bool]], unseen: Iterable[str] = (), remedy: str = ""
) -> Coverage:
    """Count operations, each given by its name and whether all that it uses is known."""
    known = list(operations)
    missed = [name for name, is_known in known if not is_known]
    not_seen = tuple(dict.fromkeys(unseen))
    names = tuple(dict.fromkeys([*missed, *not_seen]))
    return Coverage(len(known) - len(missed), len(known), names, not_seen, remedy)
