"""The functions users call: every way to come by a stream, and what is current where."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar, overload

from streamkit import _driver, _event, _host, _identity, _lifetime, _registry, _scope, errors
from streamkit import _stream as _cuda
from streamkit._event import CudaEvent
from streamkit._host import HostEvent, HostStream
from streamkit._lifetime import OwnedEvent
from streamkit._queue import LEGACY, PER_THREAD, Queue
from streamkit._stream import CudaStream
from streamkit.protocols import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from streamkit.protocols import CurrentStream, StreamLike

NativeT = TypeVar("NativeT")

_CUDA_DEVICE = re.compile(r"cuda(?::(\d+))?")
_MAX_HANDLE = 2**64


def _parse(device: object) -> int | str | None:
    """Return the ordinal, "cpu", or None for the current device."""
    if device is None or device == "cuda":
        return None
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    if device == "cpu":
        return "cpu"
    text = device if isinstance(device, str) else str(device) if _names_device(device) else ""
    match = _CUDA_DEVICE.fullmatch(text)
    if text == "cpu":
        return "cpu"
    if match is None:
        raise errors.bad_device(device)
    return int(match[1]) if match[1] else None


def _names_device(device: object) -> bool:
    # torch.device and wp.Device print themselves in this form; a tensor's text would wait for it
    return type(device).__name__.lower() == "device"


def _on_host(device: object) -> bool:
    """Whether a new or default stream belongs to the host: asked for, or nothing else there."""
    parsed = _parse(device)
    if parsed == "cpu":
        return True
    return parsed is None and device is None and not _driver.is_present()


def _ordinal(device: object) -> int | None:
    parsed = _parse(device)
    if parsed == "cpu":
        raise errors.bad_device(device)
    return parsed if isinstance(parsed, int) else None


# -- somebody's stream ------------------------------------------------------------------------


@overload
def wrap(obj: HostStream, *, device: object = None) -> HostStream: ...
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
    if isinstance(obj, (CudaStream, HostStream)):
        if obj.closed:
            raise errors.closed(obj)
        _check_device(obj, device)
        return obj
    found, adapter = _registry.extract(obj)
    spelled = found.handle
    ordinal = None if device is None else _ordinal(device)
    if found.device is None and ordinal is not None:
        found.device = ordinal
    stream = CudaStream(_identity.identify(found, adapter.name, obj), obj, handle=spelled)
    _check_device(stream, device)
    return stream


def _check_device(stream: CudaStream[Any] | HostStream, device: object) -> None:
    if device is None:
        return
    wanted = _parse(device)
    if wanted is not None and wanted not in (stream.device_id, stream.device):
        raise errors.device_mismatch(
            stream, f"device={device!r}", "leave the device out: the stream knows its own."
        )


def from_handle(
    handle: int, *, device: object = None, owner: object = None
) -> CudaStream[None]:
    """Return a stream on a raw ``cudaStream_t`` given as an int; ``owner`` is kept alive.

    The handle must be valid: CUDA cannot tell. 0 and 1 are the legacy default stream, 2 the
    per-thread one, of ``device`` or else the current device. Raises UnsupportedStreamError (a
    TypeError) if it is no int, ValueError out of range, DeviceMismatchError if the driver
    disagrees with ``device``, NoDeviceError without CUDA. Safe from any thread.
    """
    if isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < _MAX_HANDLE:
        raise errors.bad_handle(handle)
    found = Queue(int(handle), _ordinal(device), owner)
    queue = _identity.identify(found)
    if owner is not None and queue.owner is not owner:  # a default stream, or an owned one
        return CudaStream(_identity.younger(queue, owner), None, handle=int(handle))
    return CudaStream(queue, None, handle=int(handle))


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
    """
    if _on_host(device):
        _priority(priority, 0, 0)
        return HostStream(name=name, nonblocking=bool(nonblocking))
    ordinal = _ordinal(device)
    if ordinal is None:
        ordinal = _driver.current_device()
    chosen = _priority(priority, *_driver.priority_range(ordinal))
    queue = _lifetime.create(ordinal, nonblocking=bool(nonblocking), priority=chosen)
    _identity.register(queue)
    return CudaStream(queue, None, name=name)


def _priority(priority: int | str | None, least: int, greatest: int) -> int:
    if priority is None:
        return min(0, least)
    if priority in ("high", "low"):
        return greatest if priority == "high" else least
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError(f"priority {priority!r} is neither an int nor 'high' nor 'low'")
    if not greatest <= priority <= least:
        raise ValueError(
            f"priority {priority} is outside this device's range: {least} (low) to {greatest} "
            "(high). CUDA would clamp it in silence."
        )
    return priority


def default_stream(device: object = None) -> CudaStream[None] | HostStream:
    """Return the legacy default stream of a device (``device`` as in ``new_stream``)."""
    if _on_host(device):
        return _host.default()
    return CudaStream(_identity.identify(Queue(LEGACY, _ordinal(device))), None)


def per_thread_stream(device: object = None) -> CudaStream[None] | HostStream:
    """Return this thread's own default stream; other threads get ScopeError from its use."""
    if _on_host(device):
        return _host.per_thread()
    return CudaStream(_identity.identify(Queue(PER_THREAD, _ordinal(device))), None)


# -- events -----------------------------------------------------------------------------------


def wrap_event(obj: Any) -> CudaEvent | HostEvent:
    """Return anybody's event behind the ``Event`` interface; it is borrowed, never destroyed.

    Its handle is read at each use, because torch creates an event at its first record. Raises
    UnsupportedStreamError (a TypeError) for anything else. Safe from any thread.
    """
    if isinstance(obj, (CudaEvent, HostEvent)):
        if obj.closed:
            raise errors.closed(obj)
        return obj
    event = None if isinstance(obj, type) else _event.borrowed(obj)
    if event is None:
        raise errors.not_an_event(obj)
    return event


def new_event(*, device: object = None, timing: bool = False) -> CudaEvent | HostEvent:
    """Return a fresh event, never recorded; ``timing`` lets ``end - start`` measure.

    ``device`` as in ``new_stream``: the event can be recorded on that device's streams.
    """
    if _on_host(device):
        return HostEvent(timing=bool(timing))
    ordinal = _ordinal(device)
    if ordinal is None:
        ordinal = _driver.current_device()
    owned = OwnedEvent(_driver.primary_context(ordinal), timing=bool(timing))
    return CudaEvent(ordinal, owned, timing=bool(timing))


# -- what is current --------------------------------------------------------------------------


def current_stream(
    library: str | None = None, *, device: object = None
) -> CudaStream[Any] | HostStream:
    """Return the stream on which a library's next work in this thread would run.

    Without ``library``: the stream of this thread's innermost scope, else the one queue on which
    all loaded libraries stand, else the default stream if none is loaded. ScopeError if they
    differ; UnsupportedStreamError for a library without a current stream.
    """
    if library is not None:
        adapter = _registry.adapter(library)
        return _current(adapter.name, _registry.current_of(adapter), _device_or_current(device))
    scope = _scope.innermost()
    if scope is not None and (device is None or _parse(device) in (scope.device_id, scope.device)):
        stream: CudaStream[Any] | HostStream = scope
        return stream
    if _on_host(device):
        return _host.default()
    streams = current_streams(device=device)
    if not streams:
        return default_stream(device)
    if len(set(streams.values())) > 1:
        raise errors.no_single_current(streams)
    return next(iter(streams.values()))


def current_streams(*, device: object = None) -> dict[str, CudaStream[Any]]:
    """Return each loaded library's current stream; libraries without CUDA here are left out."""
    if _on_host(device):
        return {}
    ordinal = _device_or_current(device)
    streams = {}
    for name, adapter in _registry.with_current_stream():
        try:
            streams[name] = _current(name, adapter, ordinal)
        except errors.NoDeviceError:
            continue
    return streams


def _device_or_current(device: object) -> int:
    ordinal = _ordinal(device)
    return _driver.current_device() if ordinal is None else ordinal


def _current(name: str, adapter: CurrentStream, ordinal: int) -> CudaStream[Any]:
    context = _driver.primary_context(ordinal)
    if _driver.current_context() == context:
        return wrap(adapter.current(ordinal), device=ordinal)
    with _driver.in_context(context):
        return wrap(adapter.current(ordinal), device=ordinal)


def assert_one_queue(*, libraries: Iterable[str] | None = None) -> None:
    """Raise OneQueueError, listing each one's stream, unless the libraries share one queue.

    Checks every loaded library with a current stream, or those named.
    """
    chosen = _chosen(libraries)
    streams = current_streams()
    if chosen is not None:
        streams = {name: stream for name, stream in streams.items() if name in chosen}
    if len(set(streams.values())) > 1:
        raise errors.not_one_queue(streams)


def _chosen(libraries: Iterable[str] | None) -> frozenset[str] | None:
    if libraries is None:
        return None
    names = [libraries] if isinstance(libraries, str) else list(libraries)
    return frozenset(_registry.with_current_named(name) for name in names)


# -- the scope --------------------------------------------------------------------------------


class use:  # noqa: N801 - used as a function
    """Make a stream current in every loaded library for the block; ``with s:`` is ``use(s)``.

    ``stream`` is anybody's. The libraries are those already imported that have a current stream
    (torch, CuPy, Warp and plugins), or the named ``libraries`` among them; numba-cuda and
    cuda.core have none: pass them ``s.to(...)``. The current device moves to the stream's. All of
    it is restored exactly, in reverse order, however the block ends. No wait is added, unless
    ``ordered``: then the stream first waits for each moved library's previous stream, and those
    wait for it at the end, on the device.

    Raises what ``wrap`` raises, and ScopeError if it is left out of order or in another thread.
    Do not hold it across an ``await`` or a ``yield``. On a host stream, entering waits for the
    queue's turn and the body runs as its next item.
    """

    def __init__(
        self,
        stream: StreamLike,
        *,
        libraries: Iterable[str] | None = None,
        ordered: bool = False,
    ) -> None:
        self.stream: CudaStream[Any] | HostStream = wrap(stream)
        self._libraries = _chosen(libraries)
        self._ordered = ordered

    def __enter__(self) -> CudaStream[Any] | HostStream:
        if isinstance(self.stream, HostStream):
            _host.enter(self.stream, self)
        else:
            _cuda.enter(self.stream, self, self._libraries, ordered=self._ordered)
        return self.stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _scope.leave(self)
