"""What is wrong with a capture: broken, left by a fork, or missed by somebody's work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit import (
    _driver,
    _driver_graphs,
    _identity,
    _movers,
    _order,
    _refusals_capture,
    _registry,
    errors,
)
from streamkit._queue import LEGACY
from streamkit._stream import CudaStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamkit._driver_graphs import Captured
    from streamkit._movers import Mover
    from streamkit._queue import Queue


def refuse_inside_another(stream: CudaStream[Any]) -> None:
    """Raise CaptureError if the stream, or one on which a library stands here, captures."""
    if stream.is_capturing:
        raise _refusals_capture.already_capturing(stream)
    with _driver.in_context(stream.context):
        found = _capturing(_movers.movers(), stream.device_id)
    if found is not None:
        raise _refusals_capture.already_capturing(CudaStream(_identity.identify(found), None))


def a_library_captures_here() -> bool:
    """Whether a stream that is a library's current one in this thread captures, whoever began.

    What a library frees or destroys then can break that capture, or end the process.
    """
    return _capturing(_movers.found_so_far(), _driver.current_device()) is not None


def _capturing(movers: Iterable[Mover], device: int) -> Queue | None:
    """Return the first current stream that captures, with the context of the device current."""
    for mover in movers:
        found, _ = _registry.extract(mover.current(device))
        if found.handle > LEGACY and _driver_graphs.captured(found.handle) is not None:
            return found
    return None


def whole(stream: CudaStream[Any]) -> Captured:
    """Return the capture on this stream; CaptureError if it is broken or has ended."""
    found = _driver_graphs.captured(stream._live().handle)  # noqa: SLF001 - next door
    if found is None:
        raise _refusals_capture.ended_inside(stream)
    if not found.is_valid:
        raise _refusals_capture.broken(stream, blocking=is_blocking(stream))
    return found


def is_blocking(stream: CudaStream[Any]) -> bool:
    """Whether work on the legacy stream is illegal while this one captures."""
    queue = stream._live()  # noqa: SLF001 - next door
    return queue.nonblocking is False


def check_complete(stream: CudaStream[Any]) -> None:
    """Raise CaptureError if the capture is broken, empty, or has a fork that was not joined."""
    found = whole(stream)
    if not _driver_graphs.count(found.graph):
        raise _refusals_capture.empty_capture(stream, busy_elsewhere(stream))
    loose = _driver_graphs.ends(found.graph) - found.frontier
    if loose:
        forks = [
            CudaStream(queue, None)
            for queue in _others(stream)
            if (other := _driver_graphs.captured(queue.handle)) and other.frontier & loose
        ]
        raise _refusals_capture.unjoined(stream, forks)


def check_nobody_left(stream: CudaStream[Any], movers: Iterable[Mover]) -> None:
    """Raise CaptureError if one of these libraries stands on a stream outside the capture.

    The block has moved it there, and its work with it, for good: whoever comes back is not found.
    """
    own = stream._live()  # noqa: SLF001 - next door
    number = _driver.capture_id(own.handle)
    for mover in movers:
        found, _ = _registry.extract(mover.current(stream.device_id))
        is_default = found.handle <= LEGACY  # which cannot take part
        if is_default or _driver.capture_id(found.handle) != number:
            raise _refusals_capture.left_for_elsewhere(stream, mover.name, found.handle)


def busy_elsewhere(stream: CudaStream[Any]) -> list[CudaStream[Any]]:
    """Return the other streams of the device, of those known, that have work to do."""
    return [CudaStream(queue, None) for queue in _others(stream) if _is_busy(queue)]


def _others(stream: CudaStream[Any]) -> Iterator[Queue]:
    """Walk the known queues of the device whose handles must be valid."""
    own = stream._live()  # noqa: SLF001 - next door
    for queue in _identity.living():
        is_other = queue.device == own.device and queue.handle != own.handle
        if is_other and queue.thread is None and _identity.is_alive(queue):
            yield queue


def _is_busy(queue: Queue) -> bool:
    try:
        with _order.on(queue):
            return _driver.capture_id(queue.handle) is None and not _driver.stream_done(
                queue.handle
            )
    except errors.DriverError:  # its work has failed, which its own next call says
        return False
