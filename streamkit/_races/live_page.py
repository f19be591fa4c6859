"""The page of a block: what was given, and an arrow for each order that is missing.

Host streams tell when their work ran, and the page has those times. CUDA streams do not: with them
the page has the order in which all was given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from streamkit._audit import page
from streamkit._audit.host_recording import library_of
from streamkit._audit.operations import Operation, Operations
from streamkit._host.stream import HostStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from streamkit._audit.operations import AuditedQueue, Kind
    from streamkit._base.trace import Step
    from streamkit._races.host import RaceRecorder
    from streamkit._races.report import Race

    When = tuple[int, int]
    """The number of the driver's call, and for work of a host stream that of its step before it."""

_SLOT_NS = 10**6  # the page counts milliseconds
_SHOWN: dict[str, Kind] = {
    "function": "function",
    "then": "function",
    "scope": "scope",
    "wait": "wait",
    "synchronisation": "synchronisation",
}
_LAST = 1 << 62  # the call of the driver comes after the steps that were given before it


class Given(NamedTuple):
    """An operation, and when it was given."""

    operation: Operation
    when: When
    since: When
    """Of a wait: when the point was recorded that it waits for."""


def in_time(operations: Operations, races: Sequence[Race]) -> Callable[[str], str]:
    """Return what makes the page with the times at which all ran, given its heading."""
    missing = [
        _arrow(race, race.first.end_ns, race.second.start_ns)
        for race in races
        if race.first.end_ns and race.second.end_ns
    ]
    return _page_of(operations, races, missing)


def in_order(
    given: Iterable[Given], races: Sequence[Race], pairs: Sequence[tuple[When, When]]
) -> Callable[[str], str]:
    """Return what makes the page with all in the order in which it was given, given its heading.

    ``pairs`` are when the two operations of each race were given.
    """
    found = sorted(given, key=lambda one: one.when)
    taken = [one.when for one in found if one.operation.kind not in ("record", "wait")]

    def before(when: When) -> int:
        return bisect_left(taken, when) * _SLOT_NS

    def after(when: When) -> int:
        return bisect_right(taken, when) * _SLOT_NS

    shown = [
        replace(one, start_ns=after(since), end_ns=before(when))
        if one.kind == "wait"
        else replace(one, start_ns=before(when), end_ns=after(when))
        for one, when, since in found
    ]
    operations = Operations()
    operations.complete(shown, has_times=False)
    missing = [
        _arrow(race, after(first), before(second))
        for race, (first, second) in zip(races, pairs, strict=True)
    ]
    return _page_of(operations, races, missing)


def on_cuda(number: int) -> When:
    """Return when the driver was called."""
    return number, _LAST


def of_cuda(operations: Iterable[Operation]) -> Iterator[Given]:
    """Yield operations of which the times are the numbers of the driver's calls."""
    for one in operations:
        yield Given(one, on_cuda(one.end_ns), on_cuda(one.start_ns))


def of_host(
    recorder: RaceRecorder, queue_of: Callable[[Step], AuditedQueue | None]
) -> Iterator[Given]:
    """Yield what host streams were given, whether or not it has run."""
    marked = {id(step.mark): step for step in recorder.steps if step.kind == "record"}
    for step in recorder.steps:
        kind = _SHOWN.get(step.kind)
        if kind is None or not isinstance(step.stream, HostStream | None):
            continue
        recorded = marked.get(id(step.mark)) if kind == "wait" else None
        operation = Operation(
            kind,
            step.name,
            queue_of(step),
            0,
            0,
            library_of(step) if kind == "function" else None,
            after=None if recorded is None else queue_of(recorded),
            blocks_host=kind == "synchronisation",
        )
        yield Given(operation, recorder.when(step), recorder.when(recorded or step))


def _arrow(race: Race, start_ns: int, end_ns: int) -> Operation:
    first, second = race.first.queue, race.second.queue
    return Operation("wait", "missing wait", second, start_ns, end_ns, after=first)


def _page_of(
    operations: Operations, races: Sequence[Race], missing: Sequence[Operation]
) -> Callable[[str], str]:
    texts = tuple(map(str, races))
    return lambda heading: page.html_of(operations, heading=heading, missing=missing, races=texts)
