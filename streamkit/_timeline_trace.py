"""A report as Chrome trace JSON, which Perfetto reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._timeline import LABELS, lanes_of, library_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from streamkit._report import Report


def write(report: Report, path: str | PathLike[str]) -> None:
    """Write the file."""
    trace = {"traceEvents": list(events(report)), "displayTimeUnit": "ns"}
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


def events(report: Report) -> Iterator[dict[str, Any]]:
    """Yield the trace's events: a process for each device, a thread for each queue.

    Times are microseconds. A wait is a flow between two slices without length, because a flow can
    only be bound to slices.
    """
    devices: dict[str, int] = {}
    threads: dict[Any, dict[str, int]] = {}
    for number, lane in enumerate(lanes_of(report), 1):
        device = "host" if lane.queue is None else lane.queue.device
        process = devices.setdefault(device, len(devices) + 1)
        thread = threads[lane.queue] = {"pid": process, "tid": number}
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": device}}
        yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": lane.label}}
        yield {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": number}}
        for one in lane.operations:
            yield {
                "ph": "X",
                "name": one.name,
                "cat": LABELS[library_of(one)],
                "ts": one.start_ns / 1000,
                "dur": (one.end_ns - one.start_ns) / 1000,
                "args": {"kind": one.kind, "library": one.library, "graph": one.graph},
                **thread,
            }
    for number, wait in enumerate(report.waits):
        if wait.after is None:
            continue
        ends = (("s", wait.after, wait.start_ns), ("f", wait.queue, wait.end_ns))
        for phase, queue, time_ns in ends:
            at = {"ts": time_ns / 1000, **threads[queue]}
            yield {"ph": "X", "name": wait.name, "cat": "wait", "dur": 0, "args": {}, **at}
            end = {"bp": "e"} if phase == "f" else {}
            yield {"ph": phase, "name": wait.name, "cat": "wait", "id": number, **end, **at}
