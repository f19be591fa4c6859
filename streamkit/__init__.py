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
checks      is_available  assert_one_queue  audit  races  doctor
modules     errors  types  testing  processes  protocols

The guides are in the folder ``docs`` of the repository, and begin with docs/index.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from streamkit import errors as errors
from streamkit import protocols as protocols
from streamkit._streams.current import assert_one_queue, current_stream, current_streams, use
from streamkit._streams.event import new_event, wrap_event
from streamkit._streams.factories import default_stream, from_handle, is_available, new_stream
from streamkit._streams.stream import wrap
from streamkit.backends import names
from streamkit.errors import StreamKitError
from streamkit.protocols import Event, Stream, StreamLike

if TYPE_CHECKING:
    from streamkit import processes as processes
    from streamkit import testing as testing
    from streamkit import types as types
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
    "processes": "streamkit.processes",
    "races": "streamkit.diagnostics.races.races",
    "share": "streamkit.processes.leases",
    "testing": "streamkit.testing",
    "types": "streamkit.types",
}

_ELSEWHERE = {  # names that users may look for here, by the module that has them
    "errors": errors.__all__,
    "processes": ["ArrayToken", "EventToken", "Lease", "open_event", "token_from_bytes"],
    "testing": [
        "Check", "Report", "accesses", "adversarial", "assert_follows", "check_adapter", "checks",
        "for_seeds",
    ],
    "types": [
        "CudaEvent", "CudaGraph", "CudaStream", "Graph", "GraphedFunction", "HostEvent",
        "HostStream", "Outcome",
    ],
}  # fmt: skip

__all__ = [
    "Event",
    "Stream",
    "StreamKitError",
    "StreamLike",
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
    "is_available",
    "new_event",
    "new_stream",
    "races",
    "share",
    "use",
    "wrap",
    "wrap_event",
]


if not TYPE_CHECKING:  # to type checkers every name would be there

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            message = f"module {__name__!r} has no attribute {name!r}"
            homes = (home for home, listed in _ELSEWHERE.items() if name in listed)
            line = next((f"{__name__}.{home}.{name}" for home in homes), None)
            line = line or names.answers("package").get(name)
            if line is not None:
                message += f": write '{line}' instead."
            elif not name.startswith("_") and name in dir(Stream):
                message += f": a stream has it, as in 's.{name}'."
            raise AttributeError(message)
        module = importlib.import_module(_LATER[name])
        found = globals()[name] = getattr(module, name, module)
        return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATER, "errors", "protocols", "__version__"})
