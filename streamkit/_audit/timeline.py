"""What every picture of a report shows: a row for each queue, a colour for each library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from streamkit._audit.operations import in_one_line
from streamkit._queues import registry

if TYPE_CHECKING:
    from streamkit._audit.operations import AuditedQueue, Operation, Operations


class Style(NamedTuple):
    """How a library's work is shown."""

    label: str
    colour: str
    letter: str


UNKNOWN = "unknown"
# Okabe and Ito's colours, which differ for every kind of colour vision.
STYLES = {
    row.name: Style(row.label, row.colour, row.letter)
    for row in registry.LIBRARIES
    if row.colour is not None and row.letter is not None
}
STYLES["numpy"] = Style("NumPy", "#56B4E9", "p")
STYLES[UNKNOWN] = Style("other, or unknown", "#888888", "#")
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
    """Return whose colour it has."""
    return operation.library if operation.library in STYLES else UNKNOWN  # a plugin, say


def short(name: str) -> str:
    """Return a kernel's name without the namespaces and tags of C++."""
    return re.sub(r"\(anonymous namespace\)::|\b\w+::|\[abi:\w+\]", "", in_one_line(name))


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


def span_ns(report: Operations) -> tuple[int, int]:
    """Return when the first thing shown began, and the last ended."""
    shown = [one for one in report.operations if one.kind != "record"]
    return min((one.start_ns for one in shown), default=0), max(
        (one.end_ns for one in shown), default=0
    )
