"""Warp in a capture that another library or the driver began.

If Warp joins a capture, the graph holds the memory that Warp allocates inside. If Warp does not
join, Warp's frees break the capture.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

import warp

from streamkit._cuda import driver
from streamkit._support import garbage
from streamkit._support.locks import new_lock
from streamkit.backends._warp import memory
from streamkit.backends._warp.current_stream import warp_runtime

_lock = new_lock()


def free_deferred() -> None:
    """Do Warp's deferred frees, unless work that may use the memory cannot be waited for.

    Warp does them where it waits for the device, and when a capture ends that Warp itself began. So
    an empty capture begins and ends here. ``wp.capture_begin`` does not serve, because until its
    end other threads' ``wp.synchronize`` would raise.
    """
    core: Any = getattr(warp_runtime(), "core", None)
    if not hasattr(core, "wp_cuda_graph_begin_capture"):  # in another Warp
        warp.synchronize()
        return
    graph = ctypes.c_void_p()
    with _lock, garbage.held_back():
        if not memory.wait_for_queues():
            return
        stream = _private_stream()
        context, handle = stream.device.context, stream.cuda_stream
        try:
            core.wp_cuda_graph_begin_capture(context, handle, 0, int(warp.CaptureMode.RELAXED))
        finally:  # an interrupt can come when it has begun; without a capture this does nothing
            core.wp_cuda_graph_end_capture(context, handle, ctypes.byref(graph))
        if graph:
            core.wp_cuda_graph_destroy(context, graph)


class WarpPart:
    def __init__(self, stream: Any, mode: str) -> None:
        self._stream = stream
        self._mode = warp.CaptureMode[mode.upper()]

    def begin(self) -> None:
        warp.capture_begin(stream=self._stream, external=True, capture_mode=self._mode)
        memory.prepared(self._stream)

    def end(self) -> Any:
        """End the part; return Warp's own object, which keeps the kernels loaded."""
        return warp.capture_end(stream=self._stream)

    def abandon(self) -> None:
        """End the part, which Warp does before it says that the capture is broken."""
        if self._stream in self._stream.device.captures:
            with contextlib.suppress(RuntimeError):
                self.end()

    free_deferred = staticmethod(free_deferred)


@functools.cache
def _private_stream() -> Any:
    """Return a stream that is known to Warp and never gets work: one for all devices."""
    device = warp.get_cuda_device(driver.current_device())
    handle = driver.create_private_stream(device.ordinal, nonblocking=True, priority=0)
    return warp.Stream(device, cuda_stream=handle)
