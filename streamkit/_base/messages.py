"""The words of every error, in one place: what happened, with which object, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from streamkit.errors import (
    BackendNotInstalledError,
    CaptureError,
    DeviceMismatchError,
    DriverError,
    ForkedProcessError,
    NoDeviceError,
    ScopeError,
    StreamClosedError,
    UnsupportedStreamError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    elif kind in _PLAIN or str(kind.__module__).partition(".")[0] == "streamkit":
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


def bad_protocol(obj: object, what: str) -> UnsupportedStreamError:
    """Word a ``__cuda_stream__`` that does not answer ``(0, handle)``."""
    kind = type(obj)
    return UnsupportedStreamError(
        f"{kind.__module__}.{kind.__qualname__}.__cuda_stream__ {what}; the protocol asks for a "
        "method that returns the tuple (0, handle), handle an int."
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


def not_an_array(obj: object) -> TypeError:
    """Word something to be handed over that is no array of a library that can lend it."""
    return TypeError(
        f"{describe(obj)} is no array that can be handed over. For the order use s.wait(stream); "
        "keep anything alive for the work submitted so far with s.keep(obj)."
    )


def cannot_lend(array: object, why: str) -> TypeError:
    """Word an array whose memory cannot be given to a second one."""
    return TypeError(
        f"{describe(array)} cannot be handed over: {why}. Order the streams with s.wait(stream), "
        "and keep it with s.keep(array) after its last use."
    )


_FIRST_USE = (
    "Run the block once before it is captured: what a library makes at its first use is illegal "
    "inside."
)


# -- what cannot begin ------------------------------------------------------------------------


def bad_mode(mode: object, modes: Iterable[str]) -> ValueError:
    """Word a capture mode that CUDA does not have."""
    return ValueError(f"{describe(mode)} is no capture mode: use one of {', '.join(modes)}.")


def host_capture(stream: object) -> UnsupportedStreamError:
    """Word a capture of host work."""
    return UnsupportedStreamError(
        f"{describe(stream)} has no graphs: host work is not captured. Without a GPU call the "
        "block's code again instead of launching a graph."
    )


def legacy_capture(stream: object) -> CaptureError:
    """Word a capture on the legacy default stream."""
    return CaptureError(
        f"{describe(stream)} is the legacy default stream, which CUDA cannot capture. Capture on a "
        "stream of its own: streamkit.capture() makes one."
    )


def already_capturing(stream: object) -> CaptureError:
    """Word a capture inside another one."""
    return CaptureError(
        f"{describe(stream)} captures already, so another capture was not begun here. End that one "
        "first."
    )


# -- what goes wrong inside -------------------------------------------------------------------


def not_capturing(graph: object) -> CaptureError:
    """Word what only a graph that is being captured can do."""
    return CaptureError(
        f"{describe(graph)} is not being captured: sections are for inside the capture's block."
    )


def still_capturing(graph: object) -> CaptureError:
    """Word the use of a graph inside its own block."""
    return CaptureError(f"{describe(graph)} is still being captured: use it after the block.")


def launch_in_capture(graph: object, stream: object) -> CaptureError:
    """Word a launch on a stream that captures."""
    return CaptureError(
        f"{describe(graph)} was not launched on {describe(stream)}, which captures: that would "
        "invalidate the capture. Launch it outside, or run its work again inside."
    )


def _pending(busy: Sequence[object]) -> str:
    if not busy:
        return ""
    return f" Work is pending on {', '.join(map(describe, busy))}."


def empty_section(name: str, stream: object, busy: Sequence[object]) -> CaptureError:
    """Word a section that added nothing to the graph."""
    return CaptureError(
        f"the section {name!r} added no node to the graph of {describe(stream)}: it did no GPU "
        f"work, or on a stream outside the capture.{_pending(busy)} Let the work take its "
        "library's current stream, or pass it g.stream; a stream joins by t.wait(g.stream)."
    )


def empty_capture(stream: object, busy: Sequence[object]) -> CaptureError:
    """Word a capture of nothing."""
    return CaptureError(
        f"nothing was captured on {describe(stream)}: the block did no GPU work, or on a stream "
        f"outside the capture.{_pending(busy)} Let the work take its library's current stream, or "
        "pass it g.stream; a stream joins by t.wait(g.stream)."
    )


def unjoined(stream: object, forks: Sequence[object]) -> CaptureError:
    """Word streams that joined a capture and never came back to it."""
    who = ", ".join(map(describe, forks)) if forks else "another stream"
    return CaptureError(
        f"{who} took part in the capture on {describe(stream)} and was not joined again, so the "
        "capture was dropped. End what it does with g.stream.wait(that stream)."
    )


def left_for_elsewhere(stream: object, library: str, handle: int) -> CaptureError:
    """Word a library that the block has moved out of the capture."""
    return CaptureError(
        f"the block has left {library} on another stream, {handle:#x}, which takes no part in the "
        f"capture on {describe(stream)}: what {library} was given there is not in the graph. Move "
        "it in a with block, whose stream joins by t.wait(g.stream)."
    )


def ended_inside(stream: object) -> CaptureError:
    """Word a capture that somebody else has ended."""
    return CaptureError(
        f"the capture on {describe(stream)} was ended inside its block: leave that to streamkit."
    )


def not_ended(stream: object, error: Exception) -> str:
    """Word what failed after the error of a capture."""
    return (
        f"and after that the capture on {describe(stream)} could not be ended: "
        f"{type(error).__name__}: {error}"
    )


def broken(stream: object, *, blocking: bool) -> CaptureError:
    """Word a capture that CUDA has invalidated."""
    return CaptureError(
        f"something illegal broke the capture on {describe(stream)}: a wait for the GPU, a copy to "
        "the host, memory allocated or freed by CUDA itself, or a question about a stream that "
        f"captures.{_of_blocking(blocking=blocking)} {_FIRST_USE}"
    )


def illegal_inside(stream: object, error: DriverError) -> CaptureError:
    """Word an error of the driver that is about the capture itself."""
    return CaptureError(f"the capture on {describe(stream)} was dropped: {error}")


def failed(
    stream: object, error: BaseException, advice: str | None, *, blocking: bool
) -> CaptureError:
    """Word another library's error inside a capture."""
    said = str(error).partition("\n")[0]
    return CaptureError(
        f"{type(error).__name__} inside the capture on {describe(stream)}, which was dropped: "
        f"{said}.{_of_blocking(blocking=blocking)} {advice or _FIRST_USE}"
    )


def _of_blocking(*, blocking: bool) -> str:
    if not blocking:
        return ""
    return (
        " This stream is a blocking one: work on the legacy default stream, of any thread, is "
        "illegal while it captures. A nonblocking one allows it."
    )


def cannot_watch() -> RuntimeError:
    """Word an ``await`` or ``then`` without the thread that would wait for the queue."""
    return RuntimeError(
        "no thread can be started that waits for the queue: the interpreter is ending, or there "
        "are too many. Call sync() instead."
    )


def raise_timeout(what: object, timeout: float) -> NoReturn:
    """Raise the built-in TimeoutError, naming what is still pending and after how many seconds."""
    message = f"{describe(what)} is still busy after {timeout} s. Its work goes on."
    raise TimeoutError(message)
