"""The recorder of the GPU: from CUPTI's records to queues and operations."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from streamkit._cuda import driver, loader
from streamkit._queues import identity, ordering
from streamkit._streams.current import current_streams
from streamkit._support import messages
from streamkit.diagnostics.audit.cupti import (
    CONTEXT_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    STREAM_WAIT,
    Activity,
    Call,
    Recorded,
    Sync,
    collector,
)
from streamkit.diagnostics.recording.driver_recorder import (
    audited,
    default_queue,
    name_of,
    used_contexts,
)
from streamkit.diagnostics.recording.kernel_names import library_of_kernel, readable
from streamkit.diagnostics.recording.operations import AuditedQueue, Operation, WaitTimes
from streamkit.errors import ScopeError
from streamkit.protocols.queues import LEGACY, PER_THREAD, QueueRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamkit.diagnostics.audit.cupti import Key, Record

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


class CudaRecorder:
    """Records what all threads give to the GPU, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._cupti: Any = None
        self._began = self._ended = 0
        self._records: list[Record] = []
        self._own: list[tuple[int, int]] = []
        self._queues = Queues({}, {})  # from the beginning on: at the end they may be closed
        self._remembered: set[int] = set()  # their ids
        self._synced = False

    def start(self) -> None:
        """Begin. BackendNotInstalledError without CUPTI, ScopeError if another tool has it."""
        self._cupti = collector.open()
        # its own, for the next audit can begin before this one reads them
        self._records, self._own = collector.records, collector.own
        identity.watch(self._remember_name)
        for queue in filter(identity.is_alive, identity.living()):
            self._remember_name(queue)
        self._began = self._cupti.get_timestamp()

    def sync(self) -> None:
        """Wait until what was given has run. CaptureError while a stream captures."""
        if loader.is_forked:
            raise messages.forked()
        self._ended = self._cupti.get_timestamp()
        contexts = self._find_queues()
        for context in contexts:
            begun = self._cupti.get_timestamp()
            driver.sync_context(context)
            self._own.append((begun, self._cupti.get_timestamp()))
        self._synced = bool(contexts)

    def stop(self) -> None:
        """End. Everything that has run is recorded when it returns."""
        if self._cupti is None:
            return
        identity.unwatch(self._remember_name)
        if loader.is_forked:  # CUPTI is the parent's
            return
        try:
            self._ended = self._ended or self._cupti.get_timestamp()
            if not self._queues.devices:  # the block raised
                with contextlib.suppress(Exception):  # it is the block's error that counts
                    self._find_queues()
        finally:
            collector.close()

    def operations(self) -> list[Operation]:
        """Return what ran, in nanoseconds since the start.

        ScopeError if another tool was given the records, which the synchronisation at the end
        shows: it should be among them.
        """
        if loader.is_forked:
            return []
        records = self._records
        if self._synced and not any(
            isinstance(one, Sync) and one.kind == CONTEXT_SYNCHRONIZE and one.start >= self._ended
            for one in records
        ):
            raise ScopeError(
                "another tool took CUPTI inside the audit, so its records are lost: PyTorch's "
                "profiler is one. Run them one after the other."
            )
        window = self._began, self._ended
        private = {self._ids(context, handle) for context, handle in driver.private_streams}
        found = operations(records, self._queues, window, self._own)
        return [one for one in found if one.queue is None or one.queue.key not in private]

    def key_of(self, stream: Any) -> Key:
        """Return CUPTI's ids of the queue of a StreamKit stream."""
        queue = stream._live()  # ``handle`` would note that others may have it
        return self._ids(queue.context, queue.handle)

    def queue_of(self, stream: Any) -> AuditedQueue | None:
        """Return what this audit calls the queue of a StreamKit stream, closed ones included.

        Or of the stream with this id.
        """
        if isinstance(stream, int):
            return self._queues.with_id(stream)
        with contextlib.suppress(Exception):  # closed, another thread's, or the device has failed
            return self._queues[self.key_of(stream)]
        return self._queues.with_id(stream.id)

    def _ids(self, context: int, handle: int) -> Key:
        if loader.is_forked:
            raise messages.forked()
        cupti = self._cupti
        return cupti.get_context_id(context), cupti.get_stream_id_ex(context, handle, 0)

    def _remember_name(self, queue: QueueRecord) -> None:
        """Remember whose queue it is, unless it captures: asking could break the capture."""
        if queue.id is None or queue.id in self._remembered or queue.is_default:
            return
        with contextlib.suppress(Exception):  # the end names those that can be named
            if driver.capture_id(queue.handle) is None:
                named = self._named(queue)
                self._queues.setdefault(named.key, named)
                self._remembered.add(queue.id)

    def _named(self, queue: QueueRecord) -> AuditedQueue:
        return audited(queue, self._ids(queue.context, queue.handle))

    def _find_queues(self) -> dict[int, int]:
        """Note whose queues CUPTI's are; return their contexts. CaptureError in a capture."""
        contexts = used_contexts()
        # held until their queues have names, also those that no code has wrapped
        current: list[Any] = []
        for device in set(contexts.values()):
            # a library that cannot tell its current stream must not cost the report
            with contextlib.suppress(Exception):
                current.extend(current_streams(device=device).values())
        _refuse_in_capture(current)
        known: dict[Key, AuditedQueue] = {}
        devices = {}
        for context, device in contexts.items():
            defaults = {LEGACY: driver.call_in(context, driver.legacy_id), PER_THREAD: None}
            for handle, number in defaults.items():
                key = self._ids(context, handle)
                known[key] = default_queue(handle, device, number, key)
                devices[key[0]] = device
        for queue in identity.living():
            if queue.context in contexts and identity.is_alive(queue):
                named = self._named(queue)
                known.setdefault(named.key, named)
        self._queues.update(known)
        self._queues.devices.update(devices)
        return contexts


def _refuse_in_capture(streams: list[Any]) -> None:
    # one first met while it captures is not among the known
    current = [stream._identified() for stream in streams]  # noqa: SLF001 - ``handle`` would refuse another thread's
    for queue in [*current, *filter(identity.is_alive, identity.living())]:
        if ordering.capture_of(queue) is not None:
            name = name_of(queue)
            raise messages.illegal_in_capture("ending an audit", name, "end it afterwards.")


# -- from records to operations -------------------------------------------------------------------


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
            given = self._call(mark.correlation, "", self._began).start
            reached = self._times_of_waits.got_to(queue, mark.correlation, given)
            self._points[mark.event] = queue, reached

    def _call(self, correlation: int, name: str, start: int) -> Call:
        """Return the call with this number, or one with this name and start if it is not known."""
        return self._calls.get(correlation) or Call(correlation, name, start)

    def _is_inside(self, correlation: int, start: int) -> bool:
        return self._began <= self._call(correlation, "", start).start <= self._ended

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
                    remedy=one.remedy,
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
            name = self._call(sync.correlation, "wait", 0).name
            yield Operation("wait", name, queue, *self._times(start, end), after=after)

    def synced(self, sync: Sync) -> Iterator[Operation]:
        name = self._call(sync.correlation, "synchronisation", 0).name
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
