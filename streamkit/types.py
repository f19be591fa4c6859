"""The classes of what StreamKit's functions return: for annotations and ``isinstance``.

Most code needs none of them, because ``streamkit.Stream``, ``streamkit.Event`` and ``Graph`` say
what all streams, events and graphs have.
"""

from streamkit._graphs.graph import CudaGraph
from streamkit._graphs.graphed import GraphedFunction
from streamkit._streams.event import CudaEvent
from streamkit._streams.host_event import HostEvent
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import CudaStream
from streamkit.protocols import Graph
from streamkit.protocols.outcomes import Outcome

__all__ = [
    "CudaEvent",
    "CudaGraph",
    "CudaStream",
    "Graph",
    "GraphedFunction",
    "HostEvent",
    "HostStream",
    "Outcome",
]
