"""The contract: what a stream, an event and a library's adapter are.

``Stream`` and ``Event`` are what users hold. ``Adapter`` and the other groups of functions are what
another library provides, usually as a module, to take part: ``tests/plugin`` is a working one.
"""

from streamkit.protocols.adapters import (
    API,
    Adapter,
    ArrayLayout,
    ArrayUse,
    Binding,
    Capture,
    CapturedGraph,
    CapturePart,
    CurrentStream,
    Diagnosis,
    Events,
    Finding,
    JoinedPart,
    LibraryWork,
    Memory,
    MemoryUse,
    OwnDevice,
    Settings,
    Storage,
    Traits,
)
from streamkit.protocols.queues import Queue
from streamkit.protocols.streams import (
    ArrayLike,
    Event,
    EventLike,
    ForeignStream,
    Graph,
    Stream,
    StreamLike,
    SupportsCudaStream,
    WorkLike,
)

__all__ = [
    "API", "Adapter", "ArrayLayout", "ArrayLike", "ArrayUse", "Binding", "Capture", "CapturePart",
    "CapturedGraph", "CurrentStream", "Diagnosis", "Event", "EventLike", "Events", "Finding",
    "ForeignStream", "Graph", "JoinedPart", "LibraryWork", "Memory", "MemoryUse", "OwnDevice",
    "Queue", "Settings", "Storage", "Stream", "StreamLike", "SupportsCudaStream", "Traits",
    "WorkLike",
]  # fmt: skip
