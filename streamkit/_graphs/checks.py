"""What is wrong with a capture: broken, left by a fork, or missed by somebody's work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._base import messages
from streamkit._base.queue import LEGACY
from streamkit._cuda import driver, graphs
from streamkit._queues import identity, ordering, registry
from streamkit._scopes import loaded_libraries
from streamkit._streams.stream import CudaStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamkit._base.queue import Queue, QueueRecord
    from streamkit._cuda.graphs import Captured
    from streamkit._scopes.loaded_libraries import LoadedLibrary


def refuse_inside_another(stream: CudaStream[Any]) -> None:
    """Raise CaptureError if the stream, or one on which a library stands here, captures."""
    if stream.is_capturing:
        raise messages.already_capturing(stream)
    with driver.in_context(stream.context):
        found = _capturing(loaded_libraries.libraries(), stream.device_id)
    if found is not None:
        raise messages.already_capturing(CudaStream(identity.identify(found), None))


def a_library_captures_here() -> bool:
    """Whether a stream that is a library's current one in this thread captures, whoever began.

    What a library frees or destroys then can break that capture, or end the process.
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
    found = graphs.captured(stream._live().handle)  # noqa: SLF001 - next door
    if found is None:
        raise messages.ended_inside(stream)
    if not found.is_valid:
        raise messages.broken(stream, blocking=is_blocking(stream))
    return found


def is_blocking(stream: CudaStream[Any]) -> bool:
    """Whether work on the legacy stream is illegal while this one captures."""
    queue = stream._live()  # noqa: SLF001 - next door
    return queue.nonblocking is False


def check_complete(stream: CudaStream[Any]) -> None:
    """Raise CaptureError if the capture is broken, empty, or has a fork that was not joined."""
    found = whole(stream)
    if not graphs.count(found.graph):
        raise messages.empty_capture(stream, busy_elsewhere(stream))
    loose = graphs.ends(found.graph) - found.frontier
    if loose:
        forks = [
            CudaStream(queue, None)
            for queue in _others(stream)
            if (other := graphs.captured(queue.handle)) and other.frontier & loose
        ]
        raise messages.unjoined(stream, forks)


def check_nobody_left(stream: CudaStream[Any], libraries: Iterable[LoadedLibrary]) -> None:
    """Raise CaptureError if one of these libraries stands on a stream outside the capture.

    The block has moved it there, and its work with it, for good: whoever comes back is not found.
    """
    own = stream._live()  # noqa: SLF001 - next door
    number = driver.capture_id(own.handle)
    for library in libraries:
        found, _ = registry.extract(library.current(stream.device_id))
        is_default = found.handle <= LEGACY  # which cannot take part
        if is_default or driver.capture_id(found.handle) != number:
            raise messages.left_for_elsewhere(stream, library.name, found.handle)


def busy_elsewhere(stream: CudaStream[Any]) -> list[CudaStream[Any]]:
    """Return the other streams of the device, of those known, that have work to do."""
    return [CudaStream(queue, None) for queue in _others(stream) if _is_busy(queue)]


def _others(stream: CudaStream[Any]) -> Iterator[QueueRecord]:
    """Walk the known queues of the device whose handles must be valid."""
    own = stream._live()  # noqa: SLF001 - next door
    for queue in identity.living():
        is_other = queue.device == own.device and queue.handle != own.handle
        if is_other and queue.thread is None and identity.is_alive(queue):
            yield queue


def _is_busy(queue: QueueRecord) -> bool:
    try:
        with ordering.on(queue):
            return driver.capture_id(queue.handle) is None and not driver.stream_done(queue.handle)
    except errors.DriverError:  # its work has failed, which its own next call says
        return False
