"""From CUPTI's records to the operations of a report."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from streamkit._audit.cupti import EVENT_SYNCHRONIZE, STREAM_WAIT, Activity, Call, Recorded, Sync
from streamkit._audit.operations import AuditedQueue, Operation
from streamkit._audit.wait_times import WaitTimes
from streamkit._pictures.kernel_names import library_of_kernel, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamkit._audit.cupti import Key, Record

_NOWHERE = 0xFFFFFFFF  # for CUPTI, no stream


class Queues(dict["Key", AuditedQueue]):
    """The queues behind CUPTI's ids: those with a name, and unknown ones from their first use."""

    def __init__(self, named: Mapping[Key, AuditedQueue], devices: dict[int, int]) -> None:
        super().__init__(named)
        self.devices = devices
        """Of CUPTI's context ids."""

    def __missing__(self, key: Key) -> AuditedQueue:
        device = f"cuda:{self.devices.get(key[0], '?')}"
        queue = self[key] = AuditedQueue(device, f"stream #{key[1]}", None, key=key)
        return queue

    def with_id(self, number: int) -> AuditedQueue | None:
        """Return the one that has this public id, if it has a name."""
        return next((queue for queue in self.values() if queue.id == number), None)

    def called_for(self, key: Key) -> AuditedQueue:
        """Return the queue of a record or a wait: these name the context of the caller."""
        if key in self:
            return self[key]
        there = [queue for (_, stream), queue in self.items() if stream == key[1]]
        return there[0] if len(there) == 1 else self[key]


def operations(
    records: list[Record], queues: Queues, window: tuple[int, int], own: list[tuple[int, int]]
) -> list[Operation]:
    """Return what was asked for in the window, in nanoseconds since it began.

    ``own`` are the times of the recorder's own synchronisations, which are left out.
    """
    reader = _Reader(records, queues, window)
    found = [*reader.work(), *reader.recorded()]
    for one in records:
        if not isinstance(one, Sync):
            continue
        if one.kind == STREAM_WAIT:
            found += reader.waits(one)
        elif not any(start <= one.start <= end for start, end in own):
            found += reader.synced(one)
    return found


class _Reader:
    """One audit's view of the records."""

    def __init__(self, records: list[Record], queues: Queues, window: tuple[int, int]) -> None:
        self._queues = queues
        self._began, self._ended = window
        self._calls = {one.correlation: one for one in records if isinstance(one, Call)}
        activities = [one for one in records if isinstance(one, Activity)]
        self._activities = list(_on_launching_queue(activities, queues))
        self._times_of_waits = WaitTimes(
            (queues[one.key], one.correlation, one.start, one.end) for one in self._activities
        )
        self._recorded = [one for one in records if isinstance(one, Recorded)]
        self._points: dict[int, tuple[AuditedQueue, int]] = {}
        """By event: where it was recorded, and when its queue got there."""
        for mark in self._recorded:
            queue = queues.called_for(mark.key)
            given = self._asked_at(mark.correlation, self._began)
            reached = self._times_of_waits.got_to(queue, mark.correlation, given)
            self._points[mark.event] = queue, reached

    def _asked_at(self, correlation: int, otherwise: int) -> int:
        call = self._calls.get(correlation)
        return otherwise if call is None else call.start

    def _is_inside(self, correlation: int, start: int) -> bool:
        return self._began <= self._asked_at(correlation, start) <= self._ended

    def _name(self, sync: Sync, otherwise: str) -> str:
        call = self._calls.get(sync.correlation)
        return otherwise if call is None else call.name

    def _times(self, start: int, end: int) -> tuple[int, int]:
        return start - self._began, end - self._began

    def work(self) -> Iterator[Operation]:
        for one in self._activities:
            if one.end and self._is_inside(one.correlation, one.start):
                name = readable(one.name)
                yield Operation(
                    one.kind,
                    name,
                    self._queues[one.key],
                    *self._times(one.start, one.end),
                    library_of_kernel(name) if one.kind == "kernel" else None,
                    one.graph or None,
                    blocks_host=one.blocks_host,
                )

    def recorded(self) -> Iterator[Operation]:
        for mark in self._recorded:
            queue, reached = self._points[mark.event]
            if self._is_inside(mark.correlation, reached):
                yield Operation("record", "record", queue, *self._times(reached, reached))

    def waits(self, sync: Sync) -> Iterator[Operation]:
        if self._is_inside(sync.correlation, sync.start):
            queue = self._queues.called_for(sync.key)
            after, start = self._points.get(sync.event, (None, sync.start))
            free = max(start, sync.start)
            end = self._times_of_waits.went_on(queue, sync.correlation, free)
            name = self._name(sync, "wait")
            yield Operation("wait", name, queue, *self._times(start, end), after=after)

    def synced(self, sync: Sync) -> Iterator[Operation]:
        name = self._name(sync, "synchronisation")
        if self._is_inside(sync.correlation, sync.start) and "Query" not in name:
            where = None if sync.key[1] == _NOWHERE else self._queues.called_for(sync.key)
            if sync.kind == EVENT_SYNCHRONIZE and sync.event in self._points:
                where = self._points[sync.event][0]
            times = self._times(sync.start, sync.end)
            yield Operation("synchronisation", name, where, *times, blocks_host=True)


def _on_launching_queue(activities: list[Activity], queues: Queues) -> Iterator[Activity]:
    """Put what a graph ran on streams of its own on the queue that launched the graph.

    The record does not name that: it is the stream that has a name, or else the first node's.
    """
    launches: defaultdict[int, list[Activity]] = defaultdict(list)
    for one in activities:
        if one.graph:
            launches[one.correlation].append(one)
        else:
            yield one
    for nodes in launches.values():
        first = min(nodes, key=lambda one: (one.key not in queues, one.node))
        for one in nodes:
            yield one._replace(key=first.key)
