"""A report as Chrome trace JSON, which Perfetto reads."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from streamkit.diagnostics.pictures.styles import STYLES
from streamkit.diagnostics.pictures.timeline import library_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamkit.diagnostics.recording.operations import Operation, Operations


def events(report: Operations) -> Iterator[dict[str, Any]]:
    """Yield the trace's events: a process for each device, a thread or more for each queue.

    Times are microseconds. A wait is a flow between two slices without length, because a flow can
    only be bound to slices.
    """
    devices: dict[str, int] = {}
    threads: dict[Any, dict[str, int]] = {}
    numbers = itertools.count(1)
    for row in rows_of(report):
        device = "host" if row.queue is None else row.queue.device
        process = devices.setdefault(device, len(devices) + 1)
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": device}}
        for track in _tracks(row.operations):
            number = next(numbers)
            thread = {"pid": process, "tid": number}
            threads.setdefault(row.queue, thread)
            yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": row.label}}
            yield {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": number}}
            for one in track:
                yield {
                    "ph": "X",
                    "name": one.name,
                    "cat": STYLES[library_of(one)].label,
                    "ts": one.start_ns / 1000,
                    "dur": (one.end_ns - one.start_ns) / 1000,
                    "args": {"kind": one.kind, "library": one.library, "graph": one.graph},
                    **thread,
                }
    waits = [wait for wait in report.waits if wait.after is not None]
    for number, wait in enumerate(waits):
        ends = (("s", wait.after, wait.start_ns), ("f", wait.queue, wait.end_ns))
        for phase, queue, time_ns in ends:
            at = {"ts": time_ns / 1000, **threads[queue]}
            yield {"ph": "X", "name": wait.name, "cat": "wait", "dur": 0, "args": {}, **at}
            end = {"bp": "e"} if phase == "f" else {}
            yield {"ph": phase, "name": wait.name, "cat": "wait", "id": number, **end, **at}


def _tracks(operations: list[Operation]) -> list[list[Operation]]:
    """Return a row's operations on as many tracks as it takes, at least one.

    On one track they follow or enclose each other. Perfetto drops what else overlaps there: the
    branches of a graph, or the waits of several threads.
    """
    tracks: list[list[Operation]] = []
    open_: list[list[int]] = []  # on each track, when what encloses the next ends, innermost last
    for one in sorted(operations, key=lambda one: (one.start_ns, -one.end_ns)):
        for track, ends in zip(tracks, open_, strict=True):
            while ends and ends[-1] <= one.start_ns:
                ends.pop()
            if not ends or one.end_ns <= ends[-1]:
                track.append(one)
                ends.append(one.end_ns)
                break
        else:
            tracks.append([one])
            open_.append([one.end_ns])
    return tracks or [[]]
