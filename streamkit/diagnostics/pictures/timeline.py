"""What every picture of a report shows: a row for each queue, a colour for each library."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit.diagnostics.pictures.styles import STYLES, UNKNOWN
from streamkit.diagnostics.recording import kernel_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamkit.diagnostics.recording.operations import AuditedQueue, Operation, Operations


HOST = "the host waits"


class Row(NamedTuple):
    """One row of a picture, with what happened in it, by start."""

    label: str
    queue: AuditedQueue | None
    operations: list[Operation]


def rows_of(report: Operations) -> list[Row]:
    """Return a row for each queue that worked or waited, and one for the host if it waited."""
    waited = [queue for wait in report.waits for queue in (wait.after, wait.queue)]
    queues = dict.fromkeys(queue for queue in [*report.queues, *waited] if queue is not None)
    rows = {queue: Row(str(queue), queue, []) for queue in queues}
    for one in report.work:
        if one.queue is not None:
            rows[one.queue].operations.append(one)
    waits = [one for one in report.synchronisations if not one.is_work]
    return [*rows.values(), *([Row(HOST, None, waits)] if waits else [])]


def library_of(operation: Operation) -> str:
    """Return the library whose colour the operation has."""
    return operation.library if operation.library in STYLES else UNKNOWN  # a plugin, say


def plain(one: Operation) -> str:
    """Return what an operation does, as "fill", if its library's kernel names say so."""
    return kernel_names.operation(one.name, one.library)


def tracks_of(operations: list[Operation]) -> list[int]:
    """Return for each operation, sorted by start, a track on which no other is at its time."""
    free_ns: list[int] = []  # when the last operation on each track ends
    tracks = []
    for one in operations:
        track = next((n for n, end in enumerate(free_ns) if end <= one.start_ns), len(free_ns))
        free_ns[track:] = [one.end_ns, *free_ns[track + 1 :]]
        tracks.append(track)
    return tracks


def counted(count: int, what: str) -> str:
    """Return how many there are, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def times(count: int) -> str:
    """Return how often, in words."""
    return "once" if count == 1 else f"{count} times"


def title(report: Operations) -> str:
    """Return how much ran, and where."""
    work, queues = counted(len(report.work), "operation"), counted(len(report.queues), "queue")
    return f"{work} on {queues}"


def extent(report: Operations) -> str:
    """Return how much ran and how long everything took, or what is known in place of that."""
    if not report.has_times:
        return f"{title(report)}, in the order in which they were given; no times were recorded."
    start, end = span_ns(report)
    seconds = (end - start) / 1e9
    took = f"{seconds * 1000:.3f} ms" if seconds < 1 else f"{seconds:.3f} s"
    return f"{title(report)} in {took}."


def waits(report: Operations) -> Iterator[str]:
    """Yield in sentences who waited, and what ran on the legacy default stream."""
    queues, host, legacy = report.waits, report.synchronisations, report.legacy_work
    between = f"Queues waited for each other {times(len(queues))}"
    between = between if queues else "No queue waited for another"
    yield f"{between}, and the host {f'waited {times(len(host))}' if host else 'never waited'}."
    if legacy:
        yield f"{counted(len(legacy), 'operation')} ran on the legacy default stream."


def verdict(report: Operations) -> str:
    """Return in a sentence on how many queues work ran, and what ran at once on two of them."""
    queues = report.queues
    if len(queues) < 2:  # noqa: PLR2004 - one queue is what is wanted
        return f"All work ran on {queues[0]}." if queues else "Nothing ran."
    if not report.has_times:
        return f"{len(queues)} queues were given work."
    early = _at_once(report)
    if early is None:
        return f"{len(queues)} queues; no two of them worked at the same time."
    texts = [_whose(one) for one in early]
    if texts[0] == texts[1]:
        texts = [f"{text} on {one.queue}" for text, one in zip(texts, early, strict=True)]
    return f"{len(queues)} queues; {texts[0]} began before {texts[1]} ended."


def _at_once(report: Operations) -> tuple[Operation, Operation] | None:
    """Return the first work of a queue, and the last of an earlier queue if that ended later.

    A pair from two libraries is preferred.
    """
    first: dict[AuditedQueue | None, Operation] = {}
    last: dict[tuple[AuditedQueue | None, str | None], Operation] = {}
    for one in report.work:
        first.setdefault(one.queue, one)
        before = last.get((one.queue, one.library))
        if before is None or before.end_ns <= one.end_ns:
            last[one.queue, one.library] = one
    order = list(first)
    pairs = [
        (first[queue], other)
        for place, queue in enumerate(order)
        for other in last.values()
        if other.queue in order[:place] and first[queue].start_ns < other.end_ns
    ]
    # the first of equals: the queue that began first
    return max(
        pairs, key=lambda pair: len({one.library for one in pair} - {None}) > 1, default=None
    )


def _whose(one: Operation) -> str:
    if one.library in STYLES:
        return f"{STYLES[one.library].label}'s {plain(one)}"
    return f"{plain(one)} on {one.queue}"


def span_ns(report: Operations) -> tuple[int, int]:
    """Return when the first thing shown began, and the last ended."""
    shown = [one for one in report.operations if one.kind != "record"]
    return min((one.start_ns for one in shown), default=0), max(
        (one.end_ns for one in shown), default=0
    )
