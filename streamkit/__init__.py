"""Streams of PyTorch, CuPy, Warp and CUDA Python, of one interface and in order with one another.

    import streamkit as sk

    s = sk.wrap(torch.cuda.Stream())  # any library's stream
    with sk.use(s, ordered=True):     # current in every loaded library
        ...
    t.wait(s)                         # later work of t runs after all work so far of s
    s.sync()                          # or: await s

streams     new_stream  wrap  from_handle  default_stream  current_stream  current_streams
events      new_event  wrap_event
work        use  follow  handoff  capture  graphed  share
checks      assert_one_queue  audit  races  doctor

The guides are in the folder ``docs`` of the repository, and begin with docs/index.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from streamkit._streams.current import assert_one_queue, current_stream, current_streams, use
from streamkit._streams.event import new_event, wrap_event
from streamkit._streams.factories import (
    default_stream,
    from_handle,
    new_stream,
    per_thread_stream,
)
from streamkit._streams.stream import wrap
from streamkit.backends import names
from streamkit.errors import (
    BackendNotInstalledError,
    CaptureError,
    DeviceMismatchError,
    DriverError,
    ForkedProcessError,
    NoDeviceError,
    OneQueueError,
    RaceError,
    ScopeError,
    StreamClosedError,
    StreamKitError,
    UnsupportedStreamError,
)
from streamkit.protocols import Event, Graph, Stream, StreamLike

if TYPE_CHECKING:
    from streamkit._graphs.capture import capture
    from streamkit._graphs.graphed import graphed
    from streamkit._streams.follow import follow
    from streamkit._streams.handoff import handoff
    from streamkit.diagnostics.audit.audit import audit
    from streamkit.diagnostics.doctor.doctor import doctor
    from streamkit.diagnostics.races.races import races
    from streamkit.processes.leases import share

__version__ = "0.2.0"

_LATER = {  # loaded at first use: not every program needs them
    "audit": "streamkit.diagnostics.audit.audit",
    "capture": "streamkit._graphs.capture",
    "doctor": "streamkit.diagnostics.doctor.doctor",
    "follow": "streamkit._streams.follow",
    "graphed": "streamkit._graphs.graphed",
    "handoff": "streamkit._streams.handoff",
    "races": "streamkit.diagnostics.races.races",
    "share": "streamkit.processes.leases",
}

_ELSEWHERE = {  # names that users may look for here, and the module that has each
    "ArrayToken": "processes",
    "CudaEvent": "types",
    "CudaGraph": "types",
    "CudaStream": "types",
    "EventToken": "processes",
    "GraphedFunction": "types",
    "HostEvent": "types",
    "HostStream": "types",
    "Lease": "processes",
    "accesses": "testing",
    "adversarial": "testing",
    "assert_follows": "testing",
    "for_seeds": "testing",
    "open_event": "processes",
    "token_from_bytes": "processes",
}

__all__ = [
    "BackendNotInstalledError",
    "CaptureError",
    "DeviceMismatchError",
    "DriverError",
    "Event",
    "ForkedProcessError",
    "Graph",
    "NoDeviceError",
    "OneQueueError",
    "RaceError",
    "ScopeError",
    "Stream",
    "StreamClosedError",
    "StreamKitError",
    "StreamLike",
    "UnsupportedStreamError",
    "assert_one_queue",
    "audit",
    "capture",
    "current_stream",
    "current_streams",
    "default_stream",
    "doctor",
    "follow",
    "from_handle",
    "graphed",
    "handoff",
    "new_event",
    "new_stream",
    "per_thread_stream",
    "races",
    "share",
    "use",
    "wrap",
    "wrap_event",
]


if not TYPE_CHECKING:  # to type checkers every name would be there

    def __getattr__(name: str) -> Any:
        if name in _ELSEWHERE:
            home = f"{__name__}.{_ELSEWHERE[name]}"
            message = f"{__name__}.{name} is in {home}: write 'from {home} import {name}'."
            raise AttributeError(message)
        if name not in _LATER:
            message = f"module {__name__!r} has no attribute {name!r}"
            line = names.answers("package").get(name)
            if line is not None:
                message += f": write '{line}' instead."
            elif not name.startswith("_") and name in dir(Stream):
                message += f": a stream has it, as in 's.{name}'."
            raise AttributeError(message)
        found = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
