"""The words of every error, in one place: what happened, with which object, and what to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
    UnsupportedStreamError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DISTRIBUTION = "streamkit-cuda"


def describe(obj: object) -> str:
    """Name an object for a message.

    Foreign objects are named by their type: the ``repr`` of a CUDA array waits for the device.
    """
    kind = type(obj)
    if isinstance(obj, type):
        text = f"the class {obj.__module__}.{obj.__qualname__}"
    elif isinstance(obj, (tuple, list)) and kind in _PAIRS:
        text = _PAIRS[kind].format(", ".join(describe(item) for item in obj[:_ITEMS]))
    elif kind in _PLAIN or str(kind.__module__).partition(".")[0] == __package__:
        text = repr(obj)
    else:
        return f"<{kind.__module__}.{kind.__qualname__} object at {id(obj):#x}>"
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."


_PLAIN = (str, bytes, int, float, bool, type(None))
_PAIRS: dict[type, str] = {tuple: "({})", list: "[{}]"}
_ITEMS = 4
_LINE = 120


# -- what is not a stream ---------------------------------------------------------------------


def not_a_stream(obj: object) -> UnsupportedStreamError:
    """Word the refusal of an object that no adapter knows."""
    if isinstance(obj, int) and not isinstance(obj, bool):
        return UnsupportedStreamError(
            f"cannot wrap {obj!r}: a bare integer says neither device nor owner. If it is a "
            "cudaStream_t, use streamkit.from_handle(handle, owner=...)."
        )
    if obj is None:
        return UnsupportedStreamError(
            "cannot wrap None. For a default queue use streamkit.default_stream(); for what a "
            "library uses now, streamkit.current_stream(library)."
        )
    if isinstance(obj, type):
        return UnsupportedStreamError(
            f"cannot wrap the class {obj.__module__}.{obj.__qualname__}: pass an instance of it."
        )
    return UnsupportedStreamError(
        f"cannot wrap {describe(obj)}: it is no stream of a library StreamKit knows and has no "
        "__cuda_stream__() method."
    )


def not_an_event(obj: object) -> UnsupportedStreamError:
    """Word the refusal of an object that is nobody's event."""
    return UnsupportedStreamError(
        f"{describe(obj)} is no event of a library StreamKit knows. A fresh one comes from "
        "streamkit.new_event() or s.record()."
    )


def bad_protocol(obj: object, what: str) -> UnsupportedStreamError:
    """Word a ``__cuda_stream__`` that does not answer ``(0, handle)``."""
    kind = type(obj)
    return UnsupportedStreamError(
        f"{kind.__module__}.{kind.__qualname__}.__cuda_stream__ {what}; the protocol asks for a "
        "method that returns the tuple (0, handle), handle an int."
    )


def bad_handle(handle: object) -> UnsupportedStreamError | ValueError:
    """Word a stream handle of the wrong type or range."""
    if isinstance(handle, bool) or not isinstance(handle, int):
        return UnsupportedStreamError(
            f"a stream handle is an int (a cudaStream_t), not {describe(handle)}. Stream objects "
            "go to streamkit.wrap(obj)."
        )
    return ValueError(f"a stream handle lies between 0 and 2**64 - 1, not {handle}.")


def host_device() -> ValueError:
    """Word the host named as the device of a CUDA stream."""
    return ValueError("device='cpu' has no CUDA stream: use None, 'cuda', 'cuda:N' or an ordinal.")


def bad_device(device: object) -> ValueError:
    """Word a device StreamKit cannot read."""
    return ValueError(
        f"{describe(device)} is no device: use None, 'cpu', 'cuda', 'cuda:N' or an int ordinal."
    )


def unknown_library(name: object, known: Iterable[str]) -> UnsupportedStreamError:
    """Word a library name that no row and no entry point carries."""
    return UnsupportedStreamError(
        f"StreamKit has no adapter for {describe(name)}. Known: {', '.join(sorted(known))}. "
        "Others come as packages with an entry point in the group 'streamkit.backends'."
    )


def no_current_stream(library: str) -> UnsupportedStreamError:
    """Word the refusal of a current stream where the library has none."""
    return UnsupportedStreamError(
        f"{library} has no current stream: it takes a stream with each call. Pass it "
        f"s.to({library!r})."
    )


def library_cannot_take(library: str, what: str, instead: str) -> UnsupportedStreamError:
    """Word a queue that a library cannot represent."""
    return UnsupportedStreamError(f"{library} cannot take {what}: {instead}")


# -- arrays -----------------------------------------------------------------------------------


# -- what is missing --------------------------------------------------------------------------


def not_installed(library: str, extras: Iterable[str], cause: object) -> BackendNotInstalledError:
    """Word a library that cannot be imported; of several extras the CUDA version decides."""
    lines = " or ".join(f"pip install '{DISTRIBUTION}[{extra}]'" for extra in extras)
    return BackendNotInstalledError(
        f"{library} cannot be imported ({cause}). Install it with: {lines}", name=library
    )


def no_device(what: str) -> NoDeviceError:
    """Word a machine without CUDA."""
    return NoDeviceError(
        f"no CUDA device: {what}. Without a GPU, streamkit.new_stream(device='cpu') gives the "
        "same interface on the host."
    )


def old_driver(version: int) -> DriverError:
    """Word a driver from before CUDA 12."""
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    return DriverError(
        "cuDriverGetVersion",
        "cudaErrorInsufficientDriver",
        35,
        f"This driver serves {cuda}, and StreamKit needs one of CUDA 12 or newer: update the "
        "NVIDIA driver. streamkit.new_stream(device='cpu') works without one.",
    )


def no_such_device(ordinal: int, count: int) -> NoDeviceError:
    """Word an ordinal beyond the devices there are."""
    return NoDeviceError(f"there is no cuda:{ordinal}: this process sees {count} CUDA device(s).")


def forked() -> ForkedProcessError:
    """Word CUDA used in a forked child."""
    return ForkedProcessError(
        "this process was forked after CUDA was initialised, and CUDA does not survive a fork. "
        "Start workers with multiprocessing's 'spawn' or 'forkserver' method."
    )


# -- wrong moment, wrong place ----------------------------------------------------------------


def closed(obj: object) -> StreamClosedError:
    """Word the use of a closed object."""
    return StreamClosedError(f"{describe(obj)} is closed. Make a new one.")


def illegal_in_capture(operation: str, obj: object, instead: str) -> CaptureError:
    """Word an operation that would invalidate the capture on this stream."""
    return CaptureError(
        f"{operation} of {describe(obj)} while it captures would invalidate the capture, so it "
        f"was not tried: {instead}"
    )


def kept_in_capture(stream: object) -> CaptureError:
    """Word something to be kept for work that a capture only notes down."""
    return CaptureError(
        f"{describe(stream)} captures: what its work uses must live as long as the graph, for that "
        "work runs with each launch. Keep the objects beside the graph."
    )


def legacy_unknown_in_capture() -> CaptureError:
    """Word the legacy stream first met while a blocking stream captures."""
    return CaptureError(
        "the legacy default stream cannot be looked at while a blocking stream captures, and work "
        "on it would invalidate that capture. Call streamkit.default_stream() once before it, or "
        "capture on a nonblocking stream."
    )


def device_mismatch(first: object, second: object, instead: str) -> DeviceMismatchError:
    """Word two devices that met."""
    return DeviceMismatchError(f"{describe(first)} and {describe(second)} differ: {instead}")


def not_copied(obj: object) -> TypeError:
    """Word a copy or a pickle of something that only this process has, once."""
    return TypeError(
        f"{describe(obj)} cannot be copied or pickled: it is of this process alone. Make a stream "
        "in each process; within one, share this object."
    )


def wrong_thread(what: object, home: object, here: object) -> ScopeError:
    """Word a per-thread default stream used from another thread."""
    return ScopeError(
        f"{describe(what)} is the per-thread default stream of thread {home}; thread {here} has "
        "another one. Call streamkit.per_thread_stream() in the thread that uses it, or share a "
        "streamkit.new_stream()."
    )


def process_wide(library: str, here: str, there: str, thread: str, ways: str) -> ScopeError:
    """Word a process-wide current stream that another thread's scope has moved elsewhere.

    ``ways`` says how to do without it.
    """
    return ScopeError(
        f"{library} has one current stream for the whole process, and thread {thread} holds it on "
        f"{there}; thread {threading.current_thread().name} asks for {here}. "
        f"Leave {library} out of one scope with streamkit.use(stream, libraries=[...]) and {ways}."
    )


def left_out_of_order(what: str, lost: Iterable[str] = ()) -> ScopeError:
    """Word a scope that was not left in last-in, first-out order by the thread that entered it."""
    text = (
        f"{what}. Scopes end in reverse order, in the thread and task that entered them; do not "
        "hold one across an await or a yield."
    )
    missing = list(lost)
    return ScopeError(text + (f" Not restored: {'; '.join(missing)}." if missing else ""))


def not_restored(lost: Iterable[str]) -> ScopeError:
    """Word libraries whose previous stream could not be set again."""
    return ScopeError(f"the scope was left, but not everything is restored: {'; '.join(lost)}.")


def _standing(where: Mapping[str, object]) -> str:
    return "; ".join(f"{library} on {describe(stream)}" for library, stream in where.items())


def no_single_current(where: Mapping[str, object]) -> ScopeError:
    """Word libraries that stand on different queues when one current stream is asked for."""
    return ScopeError(
        f"there is no one current stream: {_standing(where)}. Name the library, as in "
        "streamkit.current_stream('...'), or enter streamkit.use(stream)."
    )


def not_one_queue(where: Mapping[str, object]) -> OneQueueError:
    """Word libraries that stand on different queues when one was asserted."""
    return OneQueueError(
        f"the libraries are not on one queue: {_standing(where)}. Put the work inside "
        "'with streamkit.use(stream):', after every import."
    )
