"""The words of errors of captures and their graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit._refusals import describe
from streamkit.errors import CaptureError, UnsupportedStreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamkit.errors import DriverError

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


def one_at_a_time(libraries: Iterable[str]) -> CaptureError:
    """Word a second capture with libraries of which the process has one."""
    return CaptureError(
        f"another capture is going on in this process, and {' and '.join(libraries)} can take part "
        "in one at a time. End that one first, or capture one after another under a lock."
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


def event_in_capture(event: object) -> CaptureError:
    """Word an event asked inside a capture."""
    return CaptureError(
        f"asking {describe(event)} inside a capture could invalidate it, so it was not tried: ask "
        "after the block."
    )


def event_of_capture(event: object) -> CaptureError:
    """Word an event asked while the stream of its last record captures."""
    return CaptureError(
        f"{describe(event)} was last recorded on a stream that captures: asking it could "
        "invalidate that capture, so it was not tried. Ask when the capture has ended."
    )


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
