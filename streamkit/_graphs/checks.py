"""Checks of a capture: it may be broken, a fork not joined, or work may have missed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import driver, graphs
from streamkit._queues import identity, loaded_libraries, ordering, registry
from streamkit._streams.stream import CudaStream
from streamkit._support.messages import describe
from streamkit.protocols.queues import LEGACY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamkit._cuda.graphs import Captured
    from streamkit._queues.loaded_libraries import LoadedLibrary
    from streamkit.protocols.queues import Queue, QueueRecord

FIRST_USE = (
    "Run the block once before it is captured: what a library makes at its first use is illegal "
    "inside."
)


def refuse_inside_another(stream: CudaStream[Any]) -> None:
    """Raise CaptureError if the stream captures, or a library's current one in this thread."""
    capturing = stream if stream.is_capturing else None
    if capturing is None:
        with driver.in_context(stream.context):
            found = _capturing(loaded_libraries.libraries(), stream.device_id)
        if found is None:
            return
        capturing = CudaStream(identity.identify(found), None)
    raise errors.CaptureError(
        f"{describe(capturing)} captures already, so another capture was not begun here. End that "
        "one first."
    )


def a_library_captures_here() -> bool:
    """Whether a library's current stream in this thread captures, whoever began the capture.

    If a library frees or destroys something then, that can break the capture, or end the process.
    """
    return _capturing(loaded_libraries.found_so_far(), driver.current_device()) is not None


def _capturing(libraries: Iterable[LoadedLibrary], device: int) -> Queue | None:
    """Return the first current stream that captures, with the context of the device current."""
    for library in libraries:
        found, _ = registry.extract(library.current(device))
        if found.handle > LEGACY and graphs.captured(found.handle) is not None:
            return found
    return None


def whole(stream: CudaStream[Any]) -> Captured:
    """Return the capture on this stream; CaptureError if it is broken or has ended."""
    queue = stream._live()
    found = graphs.captured(queue.handle)
    if found is None:
        raise errors.CaptureError(
            f"the capture on {describe(stream)} was ended inside its block: leave that to "
            "streamkit."
        )
    if not found.is_valid:
        raise errors.CaptureError(
            f"something illegal broke the capture on {describe(stream)}: a wait for the GPU, or "
            "for a stream outside the capture, a copy to the host, memory allocated or freed by "
            f"CUDA itself, or a question about a stream that captures.{of_blocking(queue)} "
            f"{FIRST_USE}"
        )
    return found


def of_blocking(queue: QueueRecord) -> str:
    """Word the further limits while a blocking stream captures; "" for a nonblocking stream."""
    if queue.nonblocking is not False:
        return ""
    return (
        " This stream is a blocking one: work on the legacy default stream, of any thread, is "
        "illegal while it captures. A nonblocking one allows it."
    )


def check_complete(stream: CudaStream[Any]) -> None:
    """Raise CaptureError if the capture is broken, empty, or has a fork that was not joined."""
    found = whole(stream)
    if not graphs.count(found.graph):
        raise no_work(f"nothing was captured on {describe(stream)}: the block", stream)
    loose = graphs.ends(found.graph) - found.frontier
    if loose:
        forks = [
            CudaStream(queue, None)
            for queue in known_queues(stream._live().device)
            # asking the legacy stream is illegal while a blocking stream captures
            if queue.handle != LEGACY
            and (other := graphs.captured(queue.handle))
            and other.frontier & loose
        ]
        who = ", ".join(map(describe, forks)) if forks else "another stream"
        raise errors.CaptureError(
            f"{who} took part in the capture on {describe(stream)} and was not joined again, so "
            "the capture was dropped. End what it does with g.stream.wait(that stream)."
        )


def no_work(what: str, stream: CudaStream[Any]) -> errors.CaptureError:
    """Word a part of the program that added nothing to the capture on this stream."""
    known = known_queues(stream._live().device)
    busy = [CudaStream(queue, None) for queue in known if _is_busy(queue)]
    pending = f" Work is pending on {', '.join(map(describe, busy))}." if busy else ""
    return errors.CaptureError(
        f"{what} did no GPU work, or did it on a stream outside the capture.{pending} Use the "
        "library's current stream, or pass g.stream. Another stream joins by t.wait(g.stream)."
    )


def check_nobody_left(stream: CudaStream[Any], libraries: Iterable[LoadedLibrary]) -> None:
    """Raise CaptureError if a library's current stream is outside the capture at its end.

    The block has moved the library there, and so its work. A move away and back is not found.
    """
    own = stream._live()
    number = driver.capture_id(own.handle)
    for library in libraries:
        found, _ = registry.extract(library.current(stream.device_id))
        if driver.capture_id(found.handle) != number:
            name = library.name
            raise errors.CaptureError(
                f"the block has left {name} on another stream, {found.handle:#x}, which takes no "
                f"part in the capture on {describe(stream)}: what {name} was given there is not in "
                "the graph. Move it in a with block, whose stream joins by t.wait(g.stream)."
            )


def known_queues(device: int) -> Iterator[QueueRecord]:
    """Yield the known queues of a device whose handles are sure to be valid here."""
    for queue in identity.living():
        if queue.device == device and queue.thread is None and identity.is_alive(queue):
            yield queue


def _is_busy(queue: QueueRecord) -> bool:
    try:
        captures = ordering.capture_of(queue) is not None
        return not captures and not ordering.on(queue, driver.stream_done, queue.handle)
    except errors.DriverError:  # the queue's work has failed, as its next call reports
        return False
