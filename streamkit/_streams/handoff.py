"""``handoff``: an array goes on to another queue in order, and lives until its work has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from streamkit._queues import identity, keepalive, ordering, registry
from streamkit._queues.arrays import place_of
from streamkit._queues.open_scopes import innermost
from streamkit._streams.current import current_on
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support import messages
from streamkit.protocols.queues import LEGACY

if TYPE_CHECKING:
    from streamkit._queues.arrays import ArrayLibrary
    from streamkit.protocols import ArrayLike, StreamLike
    from streamkit.protocols.queues import QueueRecord

ArrayT = TypeVar("ArrayT", bound="ArrayLike")


@registry.uncompiled
def handoff(array: ArrayT, stream: StreamLike, *, after: StreamLike | None = None) -> ArrayT:
    """Pass an array on to another stream: in order, and with its memory kept.

    The memory is not reused while the returned array, or a view of it, lives. After that it is not
    reused before all work has run that ``stream`` had by then. If the two streams are one queue,
    nothing is done. Never blocks, except inside ``with s:`` of a host stream. Safe from any thread.

    Args:
        array: Of any library, of the stream's device.
        stream: Any library's, where it is used next; errors as those of ``wrap``.
        after: The stream that ``stream`` waits for, on the device. None: the current one of the
            array's library; for an array of the host, the stream of the scope around the call.

    Returns:
        The array itself, or another of its class on the same memory. Use this one, and drop the
        other.

    Raises:
        TypeError: ``array`` is not an array; or ``after`` is None, and the array's library has no
            current stream, or it is of the host outside of all host scopes.
        DeviceMismatchError: The array is of another device than the stream.
        CaptureError: One of the two streams captures.
    """
    target: Any = _wrapped(stream)
    library, device = place_of(array)
    queue = target._queue if isinstance(target, CudaStream) else None  # noqa: SLF001 - the hot path
    if device != (target.device_id if queue is None else queue.device):
        place = "the host" if device is None else f"cuda:{device}"
        instead = f"the array is on {place}. Copy it, or keep it for a copy with s.keep(array)."
        raise messages.device_mismatch(array, target, instead)
    source: Any = current_of_array(array, library, device) if after is None else _wrapped(after)
    if not (isinstance(source, CudaStream) and isinstance(target, CudaStream)):
        return _handoff_on_host(array, source, target)
    before = source._queue  # noqa: SLF001 - the hot path
    if before is None or queue is None:
        before, queue = source._live(), target._live()
    if before.handle == queue.handle and identity.same(before, queue):
        return array
    keepalive.drain()
    for side, what in ((before, source), (queue, target)):
        if side.thread is not None:
            ordering.check_thread(side, what)
        # the legacy stream cannot be captured
        if side.handle != LEGACY and ordering.capture_of(side) is not None:
            raise messages.kept_in_capture(what)
    lent: ArrayT = lend(array, cast("ArrayLibrary", library), target, queue)
    ordering.wait_queue(queue, before)
    return lent


def _wrapped(stream: StreamLike) -> Any:
    """Return the wrapped stream; an open stream of StreamKit costs no call."""
    if type(stream) is CudaStream and stream._queue is not None:  # noqa: SLF001 - the hot path
        return stream
    return wrap(stream)


def _handoff_on_host(array: ArrayT, source: Any, target: Any) -> ArrayT:
    """Hand the array over where one of the streams is of the host."""
    if source != target:
        keepalive.drain()
        for side in (source, target):
            if side.is_capturing:
                raise messages.kept_in_capture(side)
        target.wait(source)  # refuses a stream of the other kind
        target.keep(array)
    return array


def current_of_array(
    array: object, library: ArrayLibrary | None, device: int | None
) -> CudaStream[Any] | HostStream:
    """Return the current stream of the array's library, or of the host's scope around the call."""
    if library is not None and device is not None and library.current is not None:
        return current_on(library.current, device)
    scope = innermost()
    if device is None and isinstance(scope, HostStream):
        return scope
    raise TypeError(
        f"{messages.describe(array)} does not say on which stream it was used: its library has no "
        "current stream there. Name the stream: streamkit.handoff(array, stream, after=...)."
    )


def lend(array: Any, library: ArrayLibrary, target: CudaStream[Any], queue: QueueRecord) -> Any:
    """Return the array, or another on its memory, so that the memory outlives the stream's work."""
    if queue.owner is None or not identity.owners_of(queue):
        record_stream = library.record_stream
        if record_stream is not None and record_stream(array, target.to(library.name)):
            return array
    elif library.storage_of is not None:  # an allocator would use the handle after the stream's end
        whole, is_own, is_held = library.storage_of(array)
        if is_own and is_held is not None:
            keepalive.keep_while_held(whole, is_held, queue)
            return array
    held = None if library.lent_by is None else library.lent_by(array)
    # of a lent array the one that was lent, or arrays handed to and fro would hold one another
    lent = held.array if isinstance(held, keepalive.ArrayLoan) else array
    return library.lend(array, keepalive.ArrayLoan(lent, queue))
