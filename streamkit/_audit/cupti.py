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
from typing import TYPE_CHECKING, Any

from streamkit._audit.records import Activity, Call, Recorded, Records, Sync
from streamkit._base import messages
from streamkit._base.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
                if _torch_profiles():
                    raise messages.audit_in_profiler()
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
            raise messages.no_cupti(error) from error

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


def _torch_profiles() -> bool:
    torch: Any = sys.modules.get("torch")
    profiler = getattr(getattr(torch, "autograd", None), "profiler", None)
    return bool(getattr(profiler, "_is_profiler_enabled", False))


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
