"""What every picture of a report shows: a lane for each queue, a colour for each library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamkit._audit.report import AuditedQueue, Operation, Report


def in_one_line(name: str) -> str:
    """Return a name, whoever gave it, with what is no printable character written out."""
    return name if name.isprintable() else repr(name)[1:-1]


def counted(count: int, what: str) -> str:
    """Return how many there are, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def times(count: int) -> str:
    """Return how often, in words."""
    return "once" if count == 1 else f"{count} times"


UNKNOWN = "unknown"
LABELS = {
    "torch": "torch", "cupy": "CuPy", "warp": "Warp", "numba": "numba-cuda", "numpy": "NumPy",
    UNKNOWN: "other, or unknown",
}  # fmt: skip
# Okabe and Ito's colours, which differ for every kind of colour vision.
COLOURS = {
    "torch": "#D55E00", "cupy": "#0072B2", "warp": "#009E73", "numba": "#CC79A7",
    "numpy": "#56B4E9", UNKNOWN: "#888888",
}  # fmt: skip
HOST = "the host waits"


class Lane(NamedTuple):
    """One row of a picture, with what happened in it, by start."""

    label: str
    queue: AuditedQueue | None
    operations: list[Operation]


def lanes_of(report: Report) -> list[Lane]:
    """Return a lane for each queue that worked or waited, and one for the host if it waited."""
    queues = list(report.queues)
    for wait in report.waits:
        queues += [
            queue for queue in (wait.after, wait.queue) if queue is not None and queue not in queues
        ]
    lanes = [Lane(str(queue), queue, []) for queue in queues]
    place = {lane.queue: lane for lane in lanes}
    for one in report.work:
        if one.queue is not None:
            place[one.queue].operations.append(one)
    waits = [one for one in report.synchronisations if not one.is_work]
    return [*lanes, Lane(HOST, None, waits)] if waits else lanes


def library_of(operation: Operation) -> str:
    """Return whose colour it has."""
    return operation.library if operation.library in COLOURS else UNKNOWN  # a plugin, say


def short(name: str) -> str:
    """Return a kernel's name without the namespaces and tags of C++."""
    return re.sub(r"\(anonymous namespace\)::|\b\w+::|\[abi:\w+\]", "", in_one_line(name))


def title(report: Report) -> str:
    """Return how much ran, and where."""
    work, queues = counted(len(report.work), "operation"), counted(len(report.queues), "queue")
    return f"{work} on {queues}"


def span_ns(report: Report) -> tuple[int, int]:
    """Return when the first thing shown began, and the last ended."""
    shown = [one for one in report.operations if one.kind != "record"]
    return min((one.start_ns for one in shown), default=0), max(
        (one.end_ns for one in shown), default=0
    )
