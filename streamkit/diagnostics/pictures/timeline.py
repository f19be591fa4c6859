"""The content of every picture of a report: a row for each queue, and a summary in sentences."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from streamkit.diagnostics.pictures.styles import STYLES
from streamkit.diagnostics.recording import kernel_names
from streamkit.diagnostics.recording.operations import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamkit.diagnostics.recording.operations import AuditedQueue, Operation, Operations


_NAMES = 6  # operations named for each row


class Row(NamedTuple):
    """One row of a picture, with its operations in order."""

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
    return [*rows.values(), *([Row("the host waits", None, waits)] if waits else [])]


def plain(one: Operation) -> str:
    """Return an operation in a word, such as "fill", if its library's kernel names tell it."""
    return kernel_names.operation(one.name, one.library)


def counted(count: int, what: str) -> str:
    """Return a count with its noun, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def times(count: int) -> str:
    """Return "once", or the number of times in words."""
    return "once" if count == 1 else f"{count} times"


def title(report: Operations) -> str:
    """Return the number of operations and of queues, in words."""
    return f"{counted(len(report.work), 'operation')} on {counted(len(report.queues), 'queue')}"


def verdict(report: Operations) -> str:
    """Return in a sentence how many queues were given work, and whether anything orders them."""
    queues = report.queues
    if len(queues) > 1:
        alone = "" if report.waits else ", and none was told to wait for another"
        return f"{len(queues)} queues were given work{alone}."
    return f"All work ran on {queues[0]}." if queues else "Nothing ran."


def summary(report: Operations) -> Iterator[str]:
    """Yield in sentences who waited, and what ran on the legacy default stream."""
    queues, host, legacy = report.waits, report.synchronisations, report.legacy_work
    between = f"Queues waited for each other {times(len(queues))}"
    between = between if queues else "No queue waited for another"
    yield f"{between}, and the host {f'waited {times(len(host))}' if host else 'never waited'}."
    if legacy:
        yield f"{counted(len(legacy), 'operation')} ran on the legacy default stream."
    if report.unfinished:
        yield f"{counted(report.unfinished, 'function')} had not run when the audit ended."


def text(report: Operations) -> str:
    """Return the report for a terminal: the verdict, the work of each queue, and the waits."""
    held = listed(report.synchronisations)
    lines = [
        verdict(report),
        f"{title(report)}, in the order in which they were given.",
        "",
        *(f"{row.label}: {', '.join(_names(row))}" for row in rows_of(report)),
        "",
        *summary(report),
        *(["What held the host:", *held] if held else []),
    ]
    return "\n".join(lines)


def _names(row: Row) -> list[str]:
    """Return the names of a row's operations, equal neighbours together."""
    texts = [
        plain(one) + (f" [{STYLES[one.library].label}]" if one.library in STYLES else "")
        for one in row.operations
    ]
    counts = [(text, len(list(same))) for text, same in itertools.groupby(texts)]
    lines = [f"{count} x {text}" if count > 1 else text for text, count in counts]
    more = len(lines) - _NAMES
    return lines if more <= 0 else [*lines[:_NAMES], f"and {more} more"]
