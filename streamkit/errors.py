"""Every error that StreamKit raises.

Errors hold text and numbers, never streams, so an error kept in a log or sent to another process
keeps nothing alive.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BackendNotInstalledError", "CaptureError", "DeviceMismatchError", "DriverError",
    "ForkedProcessError", "NoDeviceError", "OneQueueError", "RaceError", "ScopeError",
    "StreamClosedError", "StreamKitError", "UnsupportedStreamError",
]  # fmt: skip

_LOOK_BEFORE = (
    "An error of earlier GPU work can surface here: look at what ran on this device before."
)
_ADVICE = {  # by CUDA's numbers of errors, from 900 on of captures
    400: "There is no such stream or event, it was destroyed, or the two are of different devices.",
    900: "It is illegal while a stream captures: do it before the capture, or after it.",
    901: "An earlier call has broken the capture, perhaps without an error of its own.",
    902: "Two captures cannot be joined.",
    903: "A capture has to end on the stream on which it began.",
    904: "Each stream that joined a capture has to be waited for by the one that began it.",
    905: (
        "A stream that captures cannot wait for work outside its capture: wait before the capture, "
        "or take the other stream in first, by letting that one wait for the capturing one."
    ),
    906: (
        "The legacy default stream can take no part in a capture, and must not be used while a "
        "blocking stream captures: use another stream."
    ),
    907: "The event was last recorded in a capture: use it when that capture has ended.",
    908: "A capture has to end in the thread that began it.",
}


class StreamKitError(Exception):
    """Root of every error that StreamKit raises."""


class UnsupportedStreamError(StreamKitError, TypeError):
    """StreamKit cannot use the object as a stream here, or a library cannot take the stream."""


class BackendNotInstalledError(StreamKitError, ImportError):
    """The library asked for cannot be imported; the message says what installs it."""


class NoDeviceError(StreamKitError, RuntimeError):
    """CUDA was asked for on a machine without a usable driver or device."""


class DriverError(StreamKitError, RuntimeError):
    """A CUDA driver call failed.

    Args:
        call: The function of the driver. It is an attribute too, as the next two are.
        name: CUDA's name of the error.
        code: CUDA's number of the error.
        advice: The remedy in the message; None for the advice that fits the code.
    """

    def __init__(self, call: str, name: str, code: int, advice: str | None = None) -> None:
        self.call: str = call
        self.name: str = name
        self.code: int = code
        self._advice = advice or _ADVICE.get(code, _LOOK_BEFORE)
        super().__init__(call, name, code)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the advice too."""
        return type(self), (self.call, self.name, self.code, self._advice), self.__dict__

    def __str__(self) -> str:
        return f"{self.call} failed with {self.name} ({self.code}). {self._advice}"


class StreamClosedError(StreamKitError, ValueError):
    """The stream, event or lease was closed, here or by the library or process that owns it."""


class DeviceMismatchError(StreamKitError, ValueError):
    """Two objects of different devices met in an operation that needs one device."""


class ScopeError(StreamKitError, RuntimeError):
    """A scope or a thread-bound stream was used where its order or thread does not allow it."""


class OneQueueError(StreamKitError, AssertionError):
    """The loaded libraries, or their work, are not on one queue; the message lists them."""


class RaceError(StreamKitError, AssertionError):
    """Work on the same memory has no order; the message lists it, and what to add."""


class CaptureError(StreamKitError, RuntimeError):
    """The operation is illegal on a capturing stream; the capture is still valid."""


class ForkedProcessError(StreamKitError, RuntimeError):
    """An object was used that belongs to the process from which this one was forked.

    Such an object is CUDA, if it was initialised before the fork; a host stream of the parent, or
    an event of one; or a future of ``then`` that was pending at the fork.
    """
