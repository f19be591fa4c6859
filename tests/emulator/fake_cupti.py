"""Stands in for CUPTI's bindings, which do not work on the emulated driver: it delivers records.

It invents no behaviour of its own: what it delivers is what an H200 delivered for the same.
"""

from __future__ import annotations

import enum
import time
from types import ModuleType, SimpleNamespace

CONTEXT_SYNCHRONIZE = 4
NOWHERE = 0xFFFFFFFF


class Kind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    MEMCPY2 = 22
    CUDA_EVENT = 36
    SYNCHRONIZATION = 38


class Cupti(ModuleType):
    def __init__(self):
        super().__init__("cupti.cupti")
        self.ActivityKind = Kind
        self.driver_api_trace_cbid = enum.IntEnum("driver", {"cuInit": 1, "cuLaunchKernel": 2})
        self.runtime_api_trace_cbid = enum.IntEnum("runtime", {"cudaGetDevice_v3020": 7})
        self.enabled, self.left_out, self.enabled_ever = set(), [], []
        self.refuses, self.is_taken = None, False
        self._pending, self._ids, self._number = [], {}, 0

    # -- what the bindings have ---------------------------------------------------------------

    def activity_register_callbacks(self, requested, completed):
        size, records = requested()
        assert size > 1 << 20
        assert records == 0
        self._completed = completed

    def activity_enable(self, kind):
        if kind == self.refuses:
            raise RuntimeError("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)")
        self.enabled.add(kind)
        self.enabled_ever.append(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_enable_driver_api(self, number, on):
        assert not on
        self.left_out.append(("driver", number))

    def activity_enable_runtime_api(self, number, on):
        assert not on
        self.left_out.append(("runtime", number))

    def activity_flush_all(self, forced):
        assert forced == 1
        records, self._pending = self._pending, []
        if not self.is_taken:
            self._completed(records)

    def get_timestamp(self):
        return time.time_ns()

    def get_context_id(self, context):
        return self._id(("context", context))

    def get_stream_id_ex(self, context, stream, per_thread):
        assert not per_thread
        return self._id((context, stream))

    # -- what happens on the device -----------------------------------------------------------

    def _id(self, what):
        return self._ids.setdefault(what, len(self._ids) + 1)

    def synchronised(self, context):
        """The driver was told to wait for a context."""
        now = self.get_timestamp()
        self._add(
            kind=Kind.SYNCHRONIZATION, type=CONTEXT_SYNCHRONIZE, stream_id=NOWHERE,
            context_id=self.get_context_id(context), cuda_event_sync_id=NOWHERE, start=now, end=now,
        )  # fmt: skip

    def ran(self, name, context, stream):
        """A kernel ran."""
        start = self.get_timestamp()
        self._add(
            kind=Kind.DRIVER, cbid=2, start=start, end=start,
        )  # fmt: skip
        self._number -= 1
        self._add(
            kind=Kind.CONCURRENT_KERNEL, name=name, context_id=self.get_context_id(context),
            stream_id=self.get_stream_id_ex(context, stream, 0), start=start, end=start + 10,
            graph_id=0, graph_node_id=0,
        )  # fmt: skip

    def _add(self, **record):
        self._number += 1
        if record["kind"] in self.enabled:
            self._pending.append(SimpleNamespace(correlation_id=self._number, **record))
