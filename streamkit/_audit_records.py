"""From CUPTI's records to the operations of a report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamkit._audit_libraries import library_of_kernel, readable
from streamkit._audit_waits import Point, Timeline
from streamkit._report import AuditedQueue, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamkit._report import Kind

EVENT_SYNCHRONIZE, STREAM_WAIT, CONTEXT_SYNCHRONIZE = 1, 2, 4
_NOWHERE = 0xFFFFFFFF  # for CUPTI, no stream

Key = tuple[int, int]
"""CUPTI's ids of a context and of a stream in it."""


class Activity(NamedTuple):
    """A kernel, copy or fill that ran. Its correlation is the number of the call that gave it."""

    kind: Kind
    name: str
    key: Key
    correlation: int
    start: int
    end: int
    graph: int = 0
    node: int = 0
    blocks_host: bool = False


class Call(NamedTuple):
    """A call of CUDA's driver or runtime; correlations are given in the order of calls."""

    correlation: int
    name: str
    start: int
    end: int


class Recorded(NamedTuple):
    """An event that was recorded: where, and under which number waits refer to it."""

    correlation: int
    key: Key
    event: int


class Sync(NamedTuple):
    """A wait: of the host, or of a stream for an event."""

    correlation: int
    kind: int
    key: Key
    event: int
    start: int
    end: int


@dataclass
class Records:
    """All that CUPTI delivered since recording began."""

    activities: list[Activity] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)


class Queues:
    """The queues behind CUPTI's ids; those that nobody told of are unknown."""

    def __init__(self, known: dict[Key, AuditedQueue], devices: dict[int, int]) -> None:
        self._known = known
        self._devices = devices  # of CUPTI's context ids
        self._unknown: dict[Key, AuditedQueue] = {}

    def knows(self, key: Key) -> bool:
        """Whether somebody told of this one."""
        return key in self._known

    def __getitem__(self, key: Key) -> AuditedQueue:
        """Return the queue."""
        queue = self._known.get(key) or self._unknown.get(key)
        if queue is None:
            device = f"cuda:{self._devices.get(key[0], '?')}"
            queue = AuditedQueue(device, f"stream #{key[1]}", None, key=key)
            self._unknown[key] = queue
        return queue


def operations(
    records: Records, queues: Queues, window: tuple[int, int], own: list[tuple[int, int]]
) -> Iterator[Operation]:
    """Yield what was asked for in the window, in nanoseconds since it began.

    ``own`` are the times of the recorder's own synchronisations, which are left out.
    """
    calls = {call.correlation: call for call in records.calls}
    began, ended = window

    def is_inside(correlation: int, start: int) -> bool:
        call = calls.get(correlation)
        return began <= (start if call is None else call.start) <= ended

    activities = list(_on_launching_queue(records.activities, queues))
    timeline = Timeline(
        Point(queues[one.key], one.correlation, one.start, one.end) for one in activities
    )
    for one in activities:
        if one.end and is_inside(one.correlation, one.start):
            name = readable(one.name)
            yield Operation(
                one.kind,
                name,
                queues[one.key],
                one.start - began,
                one.end - began,
                library_of_kernel(name) if one.kind == "kernel" else None,
                one.graph or None,
                blocks_host=one.blocks_host,
            )
    points: dict[int, tuple[AuditedQueue, int]] = {}
    for mark in records.recorded:
        call = calls.get(mark.correlation)
        queue = queues[mark.key]
        reached = timeline.got_to(queue, mark.correlation, call.start if call else began)
        points[mark.event] = queue, reached
        if is_inside(mark.correlation, reached):
            yield Operation("record", "record", queue, reached - began, reached - began)
    for sync in records.syncs:
        name = _name(calls.get(sync.correlation), sync)
        if not is_inside(sync.correlation, sync.start) or "Query" in name:  # asks, and goes on
            continue
        if sync.kind == STREAM_WAIT:
            queue = queues[sync.key]
            after, start = points.get(sync.event, (None, sync.start))
            end = timeline.went_on(queue, sync.correlation, max(start, sync.start))
            yield Operation("wait", name, queue, start - began, end - began, after=after)
        elif not any(start <= sync.start <= end for start, end in own):
            where = None if sync.key[1] == _NOWHERE else queues[sync.key]
            if sync.kind == EVENT_SYNCHRONIZE and sync.event in points:
                where = points[sync.event][0]
            yield Operation(
                "synchronisation",
                name,
                where,
                sync.start - began,
                sync.end - began,
                blocks_host=True,
            )


def _name(call: Call | None, sync: Sync) -> str:
    if call is not None:
        return call.name
    return "wait" if sync.kind == STREAM_WAIT else "synchronisation"


def _on_launching_queue(activities: list[Activity], queues: Queues) -> Iterator[Activity]:
    """Put what a graph ran on streams of its own on the queue that launched the graph.

    The record does not name that: it is the stream that somebody knows, or else the first node's.
    """
    launches: defaultdict[int, list[Activity]] = defaultdict(list)
    for one in activities:
        if one.graph:
            launches[one.correlation].append(one)
        else:
            yield one
    for nodes in launches.values():
        first = min(nodes, key=lambda one: (not queues.knows(one.key), one.node))
        for one in nodes:
            yield one._replace(key=first.key)
