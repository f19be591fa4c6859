"""The page of a block: what was given, in order, and an arrow for each wait that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit._streams.host_stream import HostStream
from streamkit.diagnostics.pictures import page
from streamkit.diagnostics.recording.host_recorder import SHOWN
from streamkit.diagnostics.recording.operations import LAST, Operation, Operations, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamkit.diagnostics.races.cuda_races import Found
    from streamkit.diagnostics.races.host_recorder import RaceRecorder
    from streamkit.diagnostics.races.report import Race
    from streamkit.diagnostics.races.search import Pair
    from streamkit.diagnostics.recording.operations import AuditedQueue, Kind
    from streamkit.protocols.watching import WatchedStep

_SHOWN: dict[str, Kind] = {**SHOWN, "then": "function"}


def in_order(
    recorder: RaceRecorder,
    queue_of: Callable[[WatchedStep], AuditedQueue | None],
    races: Iterable[tuple[Race, Pair]],
    on_cuda: Found,
) -> Callable[[str], str]:
    """Return what makes the page, given its heading.

    ``races`` are those on host streams, and ``queue_of`` finds the queue of a step there.
    """
    steps = [step for step in recorder.steps if isinstance(step.stream, HostStream | None)]
    on_host = [given for _, given in recorder.given_as(steps, queue_of, _SHOWN)]
    order, operations = Order([*on_host, *on_cuda.operations]), Operations()
    operations.complete(order.operations())
    when, bodies = {}, {}
    for step in steps:
        if step.kind == "scope":
            bodies[step.stream] = step
        is_part = step.kind == "operator"  # of the function that gave it, or of a body
        whole = (step.giver or bodies.get(step.stream, step)) if is_part else step
        when[step.order] = recorder.when(whole)
    found = [(race, when[pair.first], when[pair.second]) for race, pair in races]
    found += [(race, (pair.first, LAST), (pair.second, LAST)) for race, pair in on_cuda.races]
    missing = [
        Operation(
            "wait",
            "missing wait",
            race.second.queue,
            after=race.first.queue,
            place=order.before(second),
            since=order.after(first),
        )
        for race, first, second in found
    ]
    texts = [str(race) for race in (*(race for race, *_ in found), *on_cuda.unread)]
    return lambda heading: page.of_block(operations, heading=heading, missing=missing, races=texts)
