"""Warp in a capture that another library or the driver began.

If Warp is told of a capture, the graph holds what Warp allocates in it. If it is not told, what it
frees breaks the capture.
"""

from __future__ import annotations

import contextlib
from typing import Any

import warp

from streamkit.backends._warp import memory


class Part:
    """The part of Warp in a capture."""

    def __init__(self, stream: Any, mode: str) -> None:
        self._stream = stream
        modes: Any = getattr(warp, "CaptureMode", None)
        self._options = {} if modes is None else {"capture_mode": modes[mode.upper()]}

    def begin(self) -> None:
        """Join it."""
        warp.capture_begin(stream=self._stream, external=True, **self._options)
        memory.prepared(self._stream)

    def end(self) -> Any:
        """End the part; what Warp returns keeps the kernels loaded."""
        return warp.capture_end(stream=self._stream)

    def abandon(self) -> None:
        """End the part, which Warp does before it says that the capture is broken."""
        if self._stream in self._stream.device.captures:
            with contextlib.suppress(RuntimeError):
                self.end()
