"""CUPTI's activity records, collected while somebody audits.

CUPTI hands full buffers over in a thread of its own, so what is done with them there is short:
each record becomes a tuple.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._base import messages
from streamkit._base.locks import new_lock
from streamkit._queues import registry
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamkit._audit.operations import Kind

_BUFFER = 8 << 20  # bytes; NVIDIA advises 1 to 10 MB
_ASYNC = 1  # the flag of a copy for which the caller does not wait
_HOST_MEMORY = (1, 2)  # pageable and pinned
_FORCED = 1
_COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host",
           10: "device to another"}  # fmt: skip
# What puts work on a queue, or waits. The rest of CUDA's calls are most of what a program makes,
# and each of their records would cost as much as a kernel's.
_CALLS = re.compile(r"Launch|Memcpy|Memset|Synchronize|Query|WaitEvent|EventRecord|Prefetch")
_NO_CALLS = ("INVALID", "SIZE", "FORCE_INT")


EVENT_SYNCHRONIZE, STREAM_WAIT, CONTEXT_SYNCHRONIZE = 1, 2, 4

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


def load() -> Any:
    """Import CUPTI's bindings; BackendNotInstalledError if they cannot be."""
    try:
        return importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise messages.not_installed("cupti", ("audit",), error) from error


class Collector:
    """The one collector of the process, which all open audits share."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._open = 0
        self._cupti: Any = None
        self.records = Records()
        self.own: list[tuple[int, int]] = []

    def open(self) -> Any:
        """Record from now on, until as many ``close``; return CUPTI's bindings."""
        with self._lock:
            if not self._open:
                self._cupti = load()
                profiling = running_profiler()
                if profiling is not None:
                    message = (
                        f"{profiling}'s profiler is running, and CUPTI serves one tool at a time: "
                        "both would lose their records. Run the audit before or after it."
                    )
                    raise ScopeError(message)
                self.records, self.own = Records(), []
                try:
                    self._enable()
                except BaseException:
                    with contextlib.suppress(Exception):  # it would hide why it did not begin
                        self._disable()
                    raise
            self._open += 1
            return self._cupti

    def close(self) -> None:
        """Stop with the last audit. CUPTI's threads have delivered everything when it returns."""
        with self._lock:
            self._open -= 1
            if self._open:
                self._cupti.activity_flush_all(_FORCED)
            else:
                self._disable()

    def _enable(self) -> None:
        cupti = self._cupti
        try:
            cupti.activity_register_callbacks(_requested, self._completed)
            for kind in _kinds(cupti):
                cupti.activity_enable(kind)
            for disable, number in _other_calls(cupti):
                disable(number, 0)
        except Exception as error:
            message = (
                f"CUPTI cannot record here ({error}). It serves one tool at a time, and needs CUDA "
                "13: end Nsight or another profiler, or look at what 'nvidia-smi' says of the "
                "driver."
            )
            raise ScopeError(message) from error

    def _disable(self) -> None:
        with contextlib.ExitStack() as ending:  # one that fails does not leave the others on
            ending.callback(self._cupti.activity_flush_all, _FORCED)
            for kind in _kinds(self._cupti):
                ending.callback(self._cupti.activity_disable, kind)

    def _completed(self, activities: Iterable[Any]) -> None:
        """Take a buffer's records, in CUPTI's thread or in that of a flush."""
        readers = _readers(self._cupti)
        for one in activities:
            reader = readers.get(one.kind)
            if reader is not None:
                reader(self.records, one)


collector = Collector()


def _requested() -> tuple[int, int]:
    return _BUFFER, 0  # as many records as fit


def _kinds(cupti: Any) -> list[Any]:
    kinds = cupti.ActivityKind
    return [
        kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMCPY2, kinds.MEMSET,
        kinds.SYNCHRONIZATION, kinds.CUDA_EVENT, kinds.RUNTIME, kinds.DRIVER,
    ]  # fmt: skip


@functools.cache
def _other_calls(cupti: Any) -> list[tuple[Callable[[int, int], object], int]]:
    ways = (
        (cupti.driver_api_trace_cbid, cupti.activity_enable_driver_api),
        (cupti.runtime_api_trace_cbid, cupti.activity_enable_runtime_api),
    )
    return [
        (disable, int(call))
        for calls, disable in ways
        for call in calls
        if call.name not in _NO_CALLS and not _CALLS.search(call.name)
    ]


def running_profiler() -> str | None:
    """Return the library whose profiler has CUPTI now, if one has."""
    for row in registry.LIBRARIES:
        if row.profiling is not None:
            found: Any = sys.modules.get(row.module)
            for name in row.profiling.split("."):
                found = getattr(found, name, None)
            if found:
                return row.label
    return None


# -- one record -------------------------------------------------------------------------------


@functools.cache
def _readers(cupti: Any) -> dict[int, Callable[[Records, Any], None]]:
    kinds = cupti.ActivityKind
    driver = {int(one): _call_name(one.name) for one in cupti.driver_api_trace_cbid}
    runtime = {int(one): _call_name(one.name) for one in cupti.runtime_api_trace_cbid}

    def call(names: dict[int, str]) -> Callable[[Records, Any], None]:
        def read(records: Records, one: Any) -> None:
            name = names.get(one.cbid, "")
            records.calls.append(Call(one.correlation_id, name, one.start, one.end))

        return read

    return {
        int(kinds.CONCURRENT_KERNEL): _kernel,
        int(kinds.MEMCPY): _copy,
        int(kinds.MEMCPY2): _copy,
        int(kinds.MEMSET): _fill,
        int(kinds.SYNCHRONIZATION): _sync,
        int(kinds.CUDA_EVENT): _event,
        int(kinds.DRIVER): call(driver),
        int(kinds.RUNTIME): call(runtime),
    }


def _call_name(name: str) -> str:
    """Return ``cudaMemcpyAsync`` for ``cudaMemcpyAsync_v3020``."""
    return re.sub(r"_(v\d+|ptsz|ptds)", "", name)


def _kernel(records: Records, one: Any) -> None:
    key = one.context_id, one.stream_id
    graph, node = one.graph_id, one.graph_node_id
    records.activities.append(
        Activity("kernel", one.name, key, one.correlation_id, one.start, one.end, graph, node)
    )


def _copy(records: Records, one: Any) -> None:
    key = one.context_id, one.stream_id
    name = f"copy {_COPIES.get(one.copy_kind, 'of an array')}, {one.bytes} bytes"
    touches_host = one.src_kind in _HOST_MEMORY or one.dst_kind in _HOST_MEMORY
    blocks = touches_host and not one.flags_ & _ASYNC
    graph, node = one.graph_id, one.graph_node_id
    records.activities.append(
        Activity("copy", name, key, one.correlation_id, one.start, one.end, graph, node, blocks)
    )


def _fill(records: Records, one: Any) -> None:
    key, name = (one.context_id, one.stream_id), f"fill, {one.bytes} bytes"
    graph, node = one.graph_id, one.graph_node_id
    records.activities.append(
        Activity("fill", name, key, one.correlation_id, one.start, one.end, graph, node)
    )


def _sync(records: Records, one: Any) -> None:
    key, event = (one.context_id, one.stream_id), one.cuda_event_sync_id
    records.syncs.append(Sync(one.correlation_id, one.type, key, event, one.start, one.end))


def _event(records: Records, one: Any) -> None:
    key = one.context_id, one.stream_id
    records.recorded.append(Recorded(one.correlation_id, key, one.cuda_event_sync_id))
