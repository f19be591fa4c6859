"""CUPTI's activity records, collected while an audit is open.

CUPTI hands full buffers over in a thread of its own, so what is done with them there is short:
each record becomes a tuple.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._cuda import loader
from streamkit._queues import registry
from streamkit._support import messages
from streamkit._support.locks import new_lock
from streamkit.diagnostics.recording.copies import PAGEABLE
from streamkit.errors import BackendNotInstalledError, ScopeError
from streamkit.protocols import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamkit.diagnostics.recording.operations import Kind

_BUFFER = 8 << 20  # bytes; NVIDIA advises 1 to 10 MB
_ASYNC = 1  # the flag of a copy for which the caller does not wait
_PAGEABLE, _PINNED = 1, 2  # kinds of memory, both of the host
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
    graph: int
    node: int
    blocks_host: bool = False
    remedy: str = ""


class Call(NamedTuple):
    """A call of CUDA's driver or runtime; correlations are given in the order of calls."""

    correlation: int
    name: str
    start: int


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


Record = Activity | Call | Recorded | Sync

_NEEDS = 13  # the CUDA whose CUPTI goes with today's CUDA Python
_STAYS = (
    "from now on every CUDA call of this process costs more, because CUPTI, which "
    "streamkit.audit(times=True) asks for times, stays attached until the process ends. An audit "
    "without times leaves nothing behind."
)
_USERS_FRAME = 5  # above open, start of the recorder, audit and __enter__ of its block


def _not_installed(cause: object) -> BackendNotInstalledError:
    """Word that CUPTI is missing."""
    if sys.platform != "linux":
        message = (
            f"an audit of CUDA streams needs cupti ({cause}), which is made for Linux alone. "
            "Host streams can be audited here: streamkit.new_stream(device='cpu')."
        )
        return BackendNotInstalledError(message, name="cupti")
    served = loader.driver_version() // 1000
    found = installed.packages(installed.distributions())
    major = installed.cuda_in_use(found, served) or _NEEDS
    line = f'pip install "cupti-python>={_NEEDS},<{_NEEDS + 1}"'
    if major < _NEEDS:  # cupti-python would pull libraries of CUDA 13 among these
        line = (
            f"{line} in an environment whose libraries are of CUDA {_NEEDS}. Those here are of "
            f"CUDA {major}, and would be mixed with it: an audit of the GPU needs CUDA {_NEEDS}."
        )
    return messages.not_installed("cupti", line, cause)


class Collector:
    """The one collector of the process, which all open audits share."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._open = 0
        self._has_warned = False
        self._cupti: Any = None
        self.records: list[Record] = []
        self.own: list[tuple[int, int]] = []

    def open(self) -> Any:
        """Record from now on, until as many ``close``; return CUPTI's bindings."""
        with self._lock:
            if not self._open:
                try:
                    self._cupti = importlib.import_module("cupti.cupti")
                except ImportError as error:
                    raise _not_installed(error) from error
                profiling = running_profiler()
                if profiling is not None:
                    raise ScopeError(
                        f"{profiling}'s profiler is running, and CUPTI serves one tool at a time: "
                        "both would lose their records. Run the audit before or after it."
                    )
                if not self._has_warned:
                    warnings.warn(_STAYS, RuntimeWarning, stacklevel=_USERS_FRAME)
                    self._has_warned = True
                self.records, self.own = [], []
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
            cupti.activity_register_callbacks(lambda: (_BUFFER, 0), self._completed)
            for kind in _readers(cupti):
                cupti.activity_enable(kind)
            for disable, number in _other_calls(cupti):
                disable(number, 0)
        except Exception as error:
            raise ScopeError(
                f"CUPTI cannot record here ({error}). It serves one tool at a time, and needs CUDA "
                "13: end Nsight or another profiler, or look at what 'nvidia-smi' says of the "
                "driver."
            ) from error

    def _disable(self) -> None:
        with contextlib.ExitStack() as ending:  # one that fails does not leave the others on
            ending.callback(self._cupti.activity_flush_all, _FORCED)
            for kind in _readers(self._cupti):
                ending.callback(self._cupti.activity_disable, kind)

    def _completed(self, activities: Iterable[Any]) -> None:
        """Take a buffer's records, in CUPTI's thread or in that of a flush."""
        readers = _readers(self._cupti)
        for one in activities:
            reader = readers.get(one.kind)
            if reader is not None:
                self.records.append(reader(one))


collector = Collector()


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
def _readers(cupti: Any) -> dict[int, Callable[[Any], Record]]:
    """Return what makes a tuple of a record, for each kind of record that is collected."""
    kinds = cupti.ActivityKind
    return {
        kinds.CONCURRENT_KERNEL: lambda one: _activity(one, "kernel", one.name),
        kinds.MEMCPY: _copy,
        kinds.MEMCPY2: _copy,
        kinds.MEMSET: lambda one: _activity(one, "fill", f"fill, {one.bytes} bytes"),
        kinds.SYNCHRONIZATION: _sync,
        kinds.CUDA_EVENT: lambda one: Recorded(
            one.correlation_id, _key(one), one.cuda_event_sync_id
        ),
        kinds.RUNTIME: _call_reader(cupti.runtime_api_trace_cbid),
        kinds.DRIVER: _call_reader(cupti.driver_api_trace_cbid),
    }


def _call_reader(calls: Iterable[Any]) -> Callable[[Any], Call]:
    # ``cudaMemcpyAsync`` for ``cudaMemcpyAsync_v3020``
    names = {int(one): re.sub(r"_(v\d+|ptsz|ptds)", "", one.name) for one in calls}
    return lambda one: Call(one.correlation_id, names.get(one.cbid, ""), one.start)


def _key(one: Any) -> Key:
    return one.context_id, one.stream_id


def _activity(one: Any, kind: Kind, name: str) -> Activity:
    times, graph = (one.start, one.end), (one.graph_id, one.graph_node_id)
    return Activity(kind, name, _key(one), one.correlation_id, *times, *graph)


def _copy(one: Any) -> Activity:
    name = f"copy {_COPIES.get(one.copy_kind, 'of an array')}, {one.bytes} bytes"
    kinds, is_async = {one.src_kind, one.dst_kind}, one.flags_ & _ASYNC
    if is_async and _PAGEABLE in kinds:
        return _activity(one, "copy", name)._replace(blocks_host=True, remedy=PAGEABLE)
    blocks = not is_async and bool(kinds & {_PAGEABLE, _PINNED})
    return _activity(one, "copy", name)._replace(blocks_host=blocks)


def _sync(one: Any) -> Sync:
    event = one.cuda_event_sync_id
    return Sync(one.correlation_id, one.type, _key(one), event, one.start, one.end)
