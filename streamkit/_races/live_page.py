"""The page of a block: what was given, and an arrow for each order that is missing.

Host streams tell when their work ran, and the page has those times. CUDA streams do not: with them
the page has the order in which all was given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

from streamkit._host.stream import HostStream
from streamkit._pictures import page
from streamkit._recording.host_recorder import SHOWN, operation_of
from streamkit._recording.operations import Operation, Operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamkit._base.trace import Step
    from streamkit._races.cuda_races import Found
    from streamkit._races.host_recorder import RaceRecorder
    from streamkit._races.report import Race
    from streamkit._races.search import Pair
    from streamkit._recording.operations import AuditedQueue, Kind

    QueueOf = Callable[[Step], AuditedQueue | None]
    When = tuple[int, int]
    """The number of the driver's call, and for work of a host stream that of its step before it."""

_SLOT_NS = 10**6  # the page counts milliseconds
_SHOWN: dict[str, Kind] = {**SHOWN, "then": "function"}
_LAST = 1 << 62  # the call of the driver comes after the steps that were given before it


def in_time(operations: Operations, races: Iterable[tuple[Race, Pair]]) -> Callable[[str], str]:
    """Return what makes the page with the times at which all ran, given its heading."""
    missing = [
        (race, race.first.end_ns, race.second.start_ns)
        for race, _ in races
        if race.first.end_ns and race.second.end_ns
    ]
    return _page_of(operations, races, missing)


def in_order(
    recorder: RaceRecorder,
    queue_of: QueueOf,
    races: Iterable[tuple[Race, Pair]],
    on_cuda: Found,
) -> Callable[[str], str]:
    """Return what makes the page with all in the order in which it was given, given its heading.

    ``races`` are those on host streams, and ``queue_of`` finds the queue of a step there.
    """
    given = [*_given_to_host(recorder, queue_of)]
    given += [(one, (one.end_ns, _LAST), (one.start_ns, _LAST)) for one in on_cuda.operations]
    given.sort(key=lambda one: one[1])
    taken = [when for one, when, _ in given if one.kind not in ("record", "wait")]

    def before(when: When) -> int:
        return bisect_left(taken, when) * _SLOT_NS

    def after(when: When) -> int:
        return bisect_right(taken, when) * _SLOT_NS

    operations = Operations()
    operations.complete(
        (
            replace(one, start_ns=after(since), end_ns=before(when))
            if one.kind == "wait"
            else replace(one, start_ns=before(when), end_ns=after(when))
            for one, when, since in given
        ),
        has_times=False,
    )
    missing = [
        (race, after(recorder.when(pair.first)), before(recorder.when(pair.second)))
        for race, pair in races
    ]
    missing += [
        (race, after((pair.first, _LAST)), before((pair.second, _LAST)))
        for race, pair in on_cuda.races
    ]
    return _page_of(operations, (*races, *on_cuda.races), missing, on_cuda.unread)


def _given_to_host(
    recorder: RaceRecorder, queue_of: QueueOf
) -> Iterator[tuple[Operation, When, When]]:
    """Yield what host streams were given, whether or not it has run, and when that was.

    For a wait the second time is that of the record for which it waits.
    """
    marked = {id(step.mark): step for step in recorder.steps if step.kind == "record"}
    for step in recorder.steps:
        kind = _SHOWN.get(step.kind)
        if kind is None or not isinstance(step.stream, HostStream | None):
            continue
        recorded = marked.get(id(step.mark)) if kind == "wait" else None
        after = None if recorded is None else queue_of(recorded)
        operation = operation_of(step, kind, queue_of(step), after)
        yield operation, recorder.when(step.order), recorder.when((recorded or step).order)


def _page_of(
    operations: Operations,
    races: Iterable[tuple[Race, Pair]],
    missing: Iterable[tuple[Race, int, int]],
    unread: Iterable[Race] = (),
) -> Callable[[str], str]:
    arrows = [
        Operation("wait", "missing wait", race.second.queue, start, end, after=race.first.queue)
        for race, start, end in missing
    ]
    texts = [*(str(race) for race, _ in races), *map(str, unread)]
    return lambda heading: page.html_of(operations, heading=heading, missing=arrows, races=texts)
