"""The functions users call: every way to come by a stream, and what is current where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from streamkit._base import messages
from streamkit._base.adapter import traits_of
from streamkit._base.queue import LEGACY, PER_THREAD, Queue
from streamkit._base.weak_table import WeakTable
from streamkit._cuda import devices, driver
from streamkit._host import stream as stream_module
from streamkit._host.event import HostEvent
from streamkit._host.stream import HostStream
from streamkit._queues import identity, keepalive, lifetime, registry
from streamkit._queues.lifetime import OwnedEvent
from streamkit._streams import event as event_module
from streamkit._streams.event import CudaEvent
from streamkit._streams.stream import CudaStream
from streamkit.protocols import Stream

if TYPE_CHECKING:
    from streamkit.protocols import Adapter

NativeT = TypeVar("NativeT")

_MAX_HANDLE = 2**64


# -- somebody's stream ------------------------------------------------------------------------


@overload  # the object's own type decides: a HostStream is never a NativeT
def wrap(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    obj: HostStream, *, device: object = None
) -> HostStream: ...
@overload
def wrap(obj: CudaStream[NativeT], *, device: object = None) -> CudaStream[NativeT]: ...
@overload
def wrap(obj: NativeT, *, device: object = None) -> CudaStream[NativeT]: ...
def wrap(obj: Any, *, device: object = None) -> Any:
    """Return anybody's stream behind the ``Stream`` interface; it is borrowed, never destroyed.

    ``obj`` is a stream of torch, CuPy, Warp, cuda.core, cuda.bindings, numba-cuda, of a library
    with an adapter, or any object with ``__cuda_stream__()``; it is kept alive. A StreamKit
    stream comes back as itself. No library is imported. Default streams belong to the device
    their object names, else to ``device``, else to the current one.

    Raises UnsupportedStreamError (a TypeError) for anything else, integers and None included,
    StreamClosedError for a closed stream, DeviceMismatchError if the driver disagrees with
    ``device``, NoDeviceError without CUDA. Safe from any thread.
    """
    seen = _wrapped.get(id(obj))
    if seen is not None and device is None:
        stream = seen()
        if stream is not None and stream._native is obj:  # noqa: SLF001 - the hot path
            return stream
    adapter = registry.stream_types.get(type(obj))
    if adapter is not None:
        found = adapter.extract(obj)
    elif isinstance(obj, (CudaStream, HostStream)):
        if obj.closed:
            raise messages.closed(obj)
        _check_device(obj, device)
        return obj
    else:
        found, adapter = registry.recognise(obj)
    if found.permanent and found.id is not None and device is None:  # all is known, for ever
        stream = found.latest
        if stream is None or stream._native is not obj:  # noqa: SLF001 - the hot path
            stream = found.latest = CudaStream(found, obj)
            return stream  # kept the second time: then there will be a third
    else:
        stream, is_fixed = _wrap_found(found, adapter, obj, device)
        if not is_fixed:
            return stream
    _wrapped.keep(id(obj), stream)
    return stream


def _wrap_found(
    found: Queue, adapter: Adapter, obj: Any, device: object
) -> tuple[CudaStream[Any], bool]:
    """Return the stream, and whether its object will mean the same queue the next time."""
    spelled, named = found.handle, found.device
    if device is not None and not found.context and named is None:
        found.device = devices.ordinal_of(device)
    queue = identity.identify(found, adapter, obj)
    stream = CudaStream(queue, obj)
    if spelled != queue.handle:
        stream._spelled = spelled  # noqa: SLF001 - next door
    if device is not None:
        _check_device(stream, device)
    is_fixed = (
        queue.id is not None
        and queue.thread is None
        and (named is not None or not queue.is_default)
        and traits_of(adapter).streams_are_fixed
    )
    if is_fixed and queue.permanent:
        queue.latest = stream  # what is asked for again and again: a library's current stream
    return stream, is_fixed


# id of a library's stream -> its StreamKit stream, which holds it: while that lives the id is its
_wrapped: WeakTable[CudaStream[Any]] = WeakTable()


def _check_device(stream: CudaStream[Any] | HostStream, device: object) -> None:
    if device is None:
        return
    wanted = devices.parse(device)
    if wanted is None and stream.device_id is None:
        wanted = "cuda"
    if wanted is not None and wanted not in (stream.device_id, stream.device):
        raise messages.device_mismatch(
            stream, f"device={device!r}", "leave the device out: the stream knows its own."
        )


def from_handle(handle: int, *, device: object = None, owner: object = None) -> CudaStream[None]:
    """Return a stream on a raw ``cudaStream_t`` given as an int; ``owner`` is kept alive.

    The handle must be valid: CUDA cannot tell. 0 and 1 are the legacy default stream, 2 the
    per-thread one, of ``device`` or else the current device. Raises UnsupportedStreamError (a
    TypeError) if it is no int, ValueError out of range, DeviceMismatchError if the driver
    disagrees with ``device``, NoDeviceError without CUDA. Safe from any thread.
    """
    if isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < _MAX_HANDLE:
        raise messages.bad_handle(handle)
    queue = identity.identify(Queue(int(handle), devices.ordinal_of(device), owner))
    if owner is not None and queue.owner is not owner:  # a default stream, or an owned one
        queue = identity.younger(queue, owner)
    stream = CudaStream(queue, None)
    if handle != queue.handle:
        stream._spelled = int(handle)  # noqa: SLF001 - next door
    return stream


Stream.from_handle = staticmethod(from_handle)  # type: ignore[method-assign]  # the same function


# -- our own ----------------------------------------------------------------------------------


def new_stream(
    device: object = None,
    *,
    nonblocking: bool = False,
    priority: int | str | None = None,
    name: str | None = None,
) -> CudaStream[None] | HostStream:
    """Return a new stream, owned by StreamKit; on the host where there is no GPU.

    ``device``: None for the current CUDA device (or the host, if there is no driver library or
    it reports no device), an ordinal, "cuda:N", or "cpu". ``nonblocking``: without the implicit
    order with the legacy default stream, on which Warp's memory and libraries that launch on
    stream 0 rely. ``priority``: "high", "low", or an int in the device's range.

    Raises ValueError for a bad device or a priority out of range (it gives the range),
    NoDeviceError if a CUDA device is named and absent, DriverError. Safe from any thread.

    >>> sk.new_stream("cpu", name="mine")
    <streamkit.HostStream 'mine' cpu id=...>
    """
    keepalive.drain()
    if devices.on_host(device):
        _priority(priority, 0, 0)
        return HostStream(name=name, nonblocking=bool(nonblocking))
    ordinal = devices.ordinal_of(device)
    if ordinal is None:
        ordinal = driver.current_device()
    chosen = _priority(priority, *driver.priority_range(ordinal))
    queue = lifetime.create(ordinal, nonblocking=bool(nonblocking), priority=chosen)
    queue.name = name
    identity.register(queue)
    return CudaStream(queue, None, name=name)


def _priority(priority: int | str | None, least: int, greatest: int) -> int:
    if priority is None:
        return min(0, least)
    if priority in ("high", "low"):
        return greatest if priority == "high" else least
    if isinstance(priority, bool) or not isinstance(priority, int):
        message = f"priority {priority!r} is neither an int nor 'high' nor 'low'"
        raise ValueError(message)  # noqa: TRY004 - the contract's error for a bad priority
    if not greatest <= priority <= least:
        raise ValueError(
            f"priority {priority} is outside this device's range: {least} (low) to {greatest} "
            "(high). CUDA would clamp it in silence."
        )
    return priority


def default_stream(device: object = None) -> CudaStream[None] | HostStream:
    """Return the legacy default stream of a device (``device`` as in ``new_stream``)."""
    if devices.on_host(device):
        return stream_module.default()
    return CudaStream(identity.identify(Queue(LEGACY, devices.ordinal_of(device))), None)


def per_thread_stream(device: object = None) -> CudaStream[None] | HostStream:
    """Return this thread's own default stream; other threads get ScopeError from its use."""
    if devices.on_host(device):
        return stream_module.per_thread()
    return CudaStream(identity.identify(Queue(PER_THREAD, devices.ordinal_of(device))), None)


# -- events -----------------------------------------------------------------------------------


def wrap_event(obj: Any) -> CudaEvent | HostEvent:
    """Return anybody's event behind the ``Event`` interface; it is borrowed, never destroyed.

    Its handle is read at each use, because torch creates an event at its first record. Raises
    UnsupportedStreamError (a TypeError) for anything else. Safe from any thread.
    """
    if isinstance(obj, (CudaEvent, HostEvent)):
        if obj.closed:
            raise messages.closed(obj)
        return obj
    event = None if isinstance(obj, type) else event_module.borrowed(obj)
    if event is None:
        raise messages.not_an_event(obj)
    return event


def new_event(*, device: object = None, timing: bool = False) -> CudaEvent | HostEvent:
    """Return a fresh event, never recorded; ``timing`` lets ``end - start`` measure.

    ``device`` as in ``new_stream``: the event can be recorded on that device's streams.

    >>> s, start = sk.new_stream("cpu"), sk.new_event(device="cpu", timing=True)
    >>> _ = s.record(start)
    >>> end = s.record(timing=True)
    >>> s.sync()
    >>> end - start < 1000
    True
    """
    if devices.on_host(device):
        return HostEvent(timing=bool(timing))
    ordinal = devices.ordinal_of(device)
    if ordinal is None:
        ordinal = driver.current_device()
    context = driver.primary_context(ordinal)
    owned = OwnedEvent(context, timing=bool(timing))
    return CudaEvent(ordinal, owned, timing=bool(timing))
