"""What CUPTI delivered on an H200 (``recorded/cupti.json``), for the readers of today."""

from __future__ import annotations

import enum
import functools
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

from streamkit.diagnostics.audit import cupti as cupti_module  # it reads CUPTI's records
from streamkit.diagnostics.audit import cupti_recorder  # records come from a file here
from streamkit.diagnostics.audit.audit import AuditReport  # records come from a file here
from streamkit.diagnostics.audit.cupti_recorder import Queues  # records come from a file here
from streamkit.diagnostics.recording.operations import AuditedQueue  # records come from a file here

DATA = json.loads((Path(__file__).parents[1] / "recorded" / "cupti.json").read_text())
LEGACY = AuditedQueue("cuda:0", "legacy default stream", 23, True, (2, 14))
TORCH = AuditedQueue("cuda:0", "torch stream id=44", 44, key=(2, 21))
WARP = AuditedQueue("cuda:0", "Warp stream id=43", 43, key=(2, 20))


@functools.cache
def readers():
    cupti = ModuleType("cupti.cupti")
    cupti.ActivityKind = enum.IntEnum("ActivityKind", DATA["kinds"])
    cupti.driver_api_trace_cbid = enum.IntEnum("driver", DATA["driver"])
    cupti.runtime_api_trace_cbid = enum.IntEnum("runtime", DATA["runtime"])
    return cupti_module._readers(cupti)


def records(part):
    return [
        readers()[record["kind"]](SimpleNamespace(**record))
        for record in DATA["parts"][part]["records"]
    ]


def operations(part, known=(LEGACY, TORCH, WARP), window=None, own=None, delivered=None):
    queues = Queues({queue.key: queue for queue in known}, {2: 0})
    recorded = DATA["parts"][part]
    return cupti_recorder.operations(
        records(part) if delivered is None else delivered,
        queues,
        (0, recorded["ended"]) if window is None else window,
        [tuple(recorded["own"])] if own is None else own,
    )


def report(part, **options):
    made = AuditReport()
    made.complete(operations(part, **options))
    return made
