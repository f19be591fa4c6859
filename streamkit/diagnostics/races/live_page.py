"""The page of a block: what was given, and an arrow for each order that is missing.

Host streams tell when their work ran, and the page has those times. CUDA streams do not: with them
the page has the order in which all was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit._streams.host_stream import HostStream
from streamkit.diagnostics.pictures import page
from streamkit.diagnostics.pictures.in_order import InOrder
from streamkit.diagnostics.recording.host_recorder import SHOWN, operation_of
from streamkit.diagnostics.recording.operations import LAST, Given, Operation, given_to_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamkit.diagnostics.races.cuda_races import Found
    from streamkit.diagnostics.races.host_recorder import RaceRecorder
    from streamkit.diagnostics.races.report import Race
    from streamkit.diagnostics.races.search import Pair
    from streamkit.diagnostics.recording.operations import AuditedQueue, Kind, Operations
    from streamkit.protocols.watching import WatchedStep

    QueueOf = Callable[[WatchedStep], AuditedQueue | None]

_SHOWN: dict[str, Kind] = {**SHOWN, "then": "function"}


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
    on_host = _given_to_host(recorder, queue_of)
    order = InOrder([*on_host, *map(given_to_cuda, on_cuda.operations)])
    steps = {step.order: step for step in recorder.steps}
    missing = [
        (
            race,
            order.after(recorder.when(steps[pair.first])),
            order.before(recorder.when(steps[pair.second])),
        )
        for race, pair in races
    ]
    missing += [
        (race, order.after((pair.first, LAST)), order.before((pair.second, LAST)))
        for race, pair in on_cuda.races
    ]
    return _page_of(order.operations, (*races, *on_cuda.races), missing, on_cuda.unread)


def _given_to_host(recorder: RaceRecorder, queue_of: QueueOf) -> Iterator[Given]:
    """Yield what host streams were given, whether or not it has run, and when that was."""
    marked = {id(step.mark): step for step in recorder.steps if step.kind == "record"}
    for step in recorder.steps:
        kind = _SHOWN.get(step.kind)
        if kind is None or not isinstance(step.stream, HostStream | None):
            continue
        recorded = marked.get(id(step.mark)) if kind == "wait" else None
        after = None if recorded is None else queue_of(recorded)
        operation = operation_of(step, kind, queue_of(step), after)
        yield Given(operation, recorder.when(step), recorder.when(recorded or step))


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
