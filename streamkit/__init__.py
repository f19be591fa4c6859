"""StreamKit: one ordered queue for PyTorch, CuPy, Warp and CUDA Python.

Take any library's CUDA stream, convert it to every other library's own stream class, order work
between them, and make them all work on one queue:

    import streamkit as sk

    s = sk.wrap(torch.cuda.Stream())
    with sk.use(s, ordered=True):
        ...
"""

from streamkit._audit import audit
from streamkit._current import assert_one_queue, current_stream, current_streams, use
from streamkit._doctor import doctor
from streamkit._event import CudaEvent
from streamkit._handoff import handoff
from streamkit._host import HostStream
from streamkit._host_event import HostEvent
from streamkit._stream import CudaStream
from streamkit._wrap import (
    default_stream,
    from_handle,
    new_event,
    new_stream,
    per_thread_stream,
    wrap,
    wrap_event,
)
from streamkit.errors import (
    BackendNotInstalledError,
    CaptureError,
    DeviceMismatchError,
    DriverError,
    ForkedProcessError,
    NoDeviceError,
    OneQueueError,
    ScopeError,
    StreamClosedError,
    StreamKitError,
    UnsupportedStreamError,
)
from streamkit.protocols import Event, Stream, StreamLike

__version__ = "0.1.0"

__all__ = [
    "BackendNotInstalledError",
    "CaptureError",
    "CudaEvent",
    "CudaStream",
    "DeviceMismatchError",
    "DriverError",
    "Event",
    "ForkedProcessError",
    "HostEvent",
    "HostStream",
    "NoDeviceError",
    "OneQueueError",
    "ScopeError",
    "Stream",
    "StreamClosedError",
    "StreamKitError",
    "StreamLike",
    "UnsupportedStreamError",
    "assert_one_queue",
    "audit",
    "current_stream",
    "current_streams",
    "default_stream",
    "doctor",
    "from_handle",
    "handoff",
    "new_event",
    "new_stream",
    "per_thread_stream",
    "use",
    "wrap",
    "wrap_event",
]
