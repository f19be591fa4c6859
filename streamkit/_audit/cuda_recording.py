"""The recorder of the GPU: it has CUPTI record, and knows which queues CUPTI's are."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from streamkit._audit.cuda_operations import Queues, operations
from streamkit._audit.cupti import CONTEXT_SYNCHRONIZE, Sync, collector
from streamkit._audit.operations import AuditedQueue
from streamkit._base import messages
from streamkit._base.queue import LEGACY, PER_THREAD, QueueRecord
from streamkit._cuda import driver, loader
from streamkit._queues import identity, ordering, registry
from streamkit._streams.current import current_streams
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from streamkit._audit.cupti import Record
    from streamkit._audit.operations import Operation


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
            message = (
                "another tool took CUPTI inside the audit, so its records are lost: PyTorch's "
                "profiler is one. Run them one after the other."
            )
            raise ScopeError(message)
        window = self._began, self._ended
        private = {self._ids(context, handle) for context, handle in driver.private_streams}
        found = operations(records, self._queues, window, self._own)
        return [one for one in found if one.queue is None or one.queue.key not in private]

    def key_of(self, stream: Any) -> tuple[int, int]:
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

    def _ids(self, context: int, handle: int) -> tuple[int, int]:
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
        key = self._ids(queue.context, queue.handle)
        return AuditedQueue(f"cuda:{queue.device}", name_of(queue), queue.id, key=key)

    def _find_queues(self) -> dict[int, int]:
        """Note whose queues CUPTI's are; return their contexts. CaptureError in a capture."""
        contexts = used_contexts()
        current: list[
            Any
        ] = []  # held until their queues have names, also those that no code has wrapped
        for device in set(contexts.values()):
            # a library that cannot tell its current stream must not cost the report
            with contextlib.suppress(Exception):
                current.extend(current_streams(device=device).values())
        _refuse_in_capture(current)
        known: dict[tuple[int, int], AuditedQueue] = {}
        devices = {}
        for context, device in contexts.items():
            with driver.in_context(context):
                defaults = (
                    (LEGACY, driver.legacy_id(), "legacy default stream"),
                    (PER_THREAD, None, "per-thread default stream"),
                )
            for handle, number, name in defaults:
                key = self._ids(context, handle)
                known[key] = AuditedQueue(f"cuda:{device}", name, number, handle == LEGACY, key)
                devices[key[0]] = device
        for queue in identity.living():
            if queue.context in contexts and identity.is_alive(queue):
                named = self._named(queue)
                known.setdefault(named.key, named)
        self._queues.update(known)
        self._queues.devices.update(devices)
        return contexts


def used_contexts() -> dict[int, int]:
    """Return the contexts in which there can be work, with their devices."""
    found = {
        driver.primary_context(device): device
        for device in range(driver.device_count())
        if driver.primary_is_active(device)
    }
    for queue in identity.living():
        if identity.is_alive(queue):
            found.setdefault(queue.context, queue.device)
    return found


def _refuse_in_capture(streams: list[Any]) -> None:
    # one first met while it captures is not among the known
    current = [stream._identified() for stream in streams]  # noqa: SLF001 - ``handle`` would refuse another thread's
    for queue in [*current, *filter(identity.is_alive, identity.living())]:
        if ordering.capture_of(queue) is not None:
            name = name_of(queue)
            raise messages.illegal_in_capture("ending an audit", name, "end it afterwards.")


def name_of(queue: QueueRecord) -> str:
    """Return what a report calls a queue."""
    if queue.name:
        return queue.name
    maker = "StreamKit" if queue.is_owned else next(iter(queue.views), "")
    row = registry.BY_NAME.get(maker)
    return f"{maker if row is None else row.label} stream id={queue.id}".strip()
