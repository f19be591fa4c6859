"""Every call to the CUDA driver, and every error code turned into DriverError.

Nothing here is called at import: the driver is loaded by the first call that needs it. Handles,
contexts and events are plain ints, or the bindings' own objects of them. A handle is one the driver
may see: 1 for the legacy stream, never 0, whose meaning CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM
changes.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from streamkit import _library, _refusals, errors
from streamkit._locks import new_lock
from streamkit._queue import LEGACY

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_NOT_READY = 600
_CAPTURE_IMPLICIT = 906
_NONBLOCKING_FLAG = 1
_EVENT_TIMING, _EVENT_NO_TIMING = 0, 2
_EXTERNAL = 1
_RELAXED = 2

_lock = new_lock()
_primary: dict[int, int] = {}  # device -> its primary context, retained for the process's life
_devices: dict[int, int] = {}  # the same, the other way round


def is_usable() -> bool:
    """Whether the driver may be called by a destructor: loaded, and not in a forked child."""
    return _library.is_loaded()


@functools.cache
def is_present() -> bool:
    """Whether this machine has a driver and a device; any failure but their absence raises."""
    try:
        return device_count() > 0
    except errors.NoDeviceError:
        return False


def _error(call: str, code: int) -> errors.DriverError:
    _, name = _library.cu.cuGetErrorName(code)
    return errors.DriverError(call, name.decode() if name else "unknown", int(code))


def _ask(call: str, *arguments: object) -> Any:
    """Call the driver; return its one answer, a tuple of several, or None."""
    code, *answers = getattr(_library.cu, call)(*arguments)
    if code:
        raise _error(call, code)
    return answers[0] if len(answers) == 1 else tuple(answers) or None


ask = _ask  # for the calls that have files of their own


# -- devices and contexts ---------------------------------------------------------------------


def device_count() -> int:
    """Return how many devices this process sees."""
    return int(_ask("cuDeviceGetCount"))


def device_name(device: int) -> str:
    """Return what the driver calls a device; no context is made for it."""
    name: bytes = _ask("cuDeviceGetName", 256, device)
    return name.partition(b"\0")[0].decode(errors="replace")


def current_context() -> int:
    """Return this thread's current context, 0 if it has none."""
    code, context = _library.cu.cuCtxGetCurrent()
    if code:
        raise _error("cuCtxGetCurrent", code)
    return int(context)


def context_answer(context: int) -> tuple[Any, Any]:
    """Return what ``cuCtxGetCurrent`` answers while that context is current.

    Comparing answers costs two thirds of ``current_context``, and a failure is unequal too.
    """
    return _library.cu.CUresult.CUDA_SUCCESS, _library.cu.CUcontext(context)


def set_context(context: int) -> None:
    """Make a context current in this thread; 0 for none."""
    _ask("cuCtxSetCurrent", context)


@contextlib.contextmanager
def in_context(context: int) -> Generator[None]:
    """Hold a context current for the block, then have the previous one back."""
    _ask("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        _ask("cuCtxPopCurrent")


def _create(context: int, make: Callable[[], Any], destroy: Callable[[int], None]) -> int:
    """Make something in a context; it goes if the context before cannot be had back."""
    made = 0
    try:
        with in_context(context):
            made = int(make())
    except errors.DriverError:
        if made:
            destroy(made)
        raise
    return made


def current_device() -> int:
    """Return the device of this thread's current context, 0 if it has none (as the runtime)."""
    return int(_ask("cuCtxGetDevice")) if current_context() else 0


def primary_device(context: int) -> int | None:
    """Return the device whose primary context this is, None if it is no device's."""
    return _devices.get(context)


def primary_context(device: int) -> int:
    """Return the device's primary context, which every library here uses."""
    context = _primary.get(device)
    if context is None:
        count = device_count()
        if not 0 <= device < count:
            raise _refusals.no_such_device(device, count)
        with _lock:
            if device not in _primary:
                context = int(_ask("cuDevicePrimaryCtxRetain", device))
                _devices[context], _primary[device] = device, context
            context = _primary[device]
    return context


def priority_range(device: int) -> tuple[int, int]:
    """Return (lowest, highest) stream priority; the highest is the smaller number."""
    with in_context(primary_context(device)):
        least, greatest = _ask("cuCtxGetStreamPriorityRange")
    return int(least), int(greatest)


def primary_is_active(device: int) -> bool:
    """Whether anybody has used the device's primary context."""
    return bool(_ask("cuDevicePrimaryCtxGetState", device)[1])


def default_context() -> int:
    """Return what is to be current in a thread that had no context: among devices, device 0's.

    With none, a runtime that has been on another device says that it still is, and launches on
    device 0. But none, 0, while nobody uses device 0, whose context costs memory.
    """
    return primary_context(0) if device_count() > 1 and primary_is_active(0) else 0


def sync_context(context: int) -> None:
    """Block until all work of a context has run, without the GIL; breaks a capture in it."""
    with in_context(context):
        _ask("cuCtxSynchronize")


# -- streams ----------------------------------------------------------------------------------


def create_stream(device: int, *, nonblocking: bool, priority: int) -> int:
    """Create a stream in the device's primary context."""
    flags = _NONBLOCKING_FLAG if nonblocking else 0
    call = functools.partial(_ask, "cuStreamCreateWithPriority", flags, priority)
    return _create(primary_context(device), call, destroy_stream)


private_streams: list[tuple[int, int]] = []
"""The contexts and handles of streams that only StreamKit uses, and that no audit shows."""


def create_private_stream(device: int, *, nonblocking: bool, priority: int) -> int:
    """Create a stream for StreamKit alone, which is never destroyed."""
    stream = create_stream(device, nonblocking=nonblocking, priority=priority)
    private_streams.append((primary_context(device), stream))
    return stream


def destroy_stream(stream: int) -> None:
    """Destroy a stream; the driver lets its pending work run first."""
    _ask("cuStreamDestroy", stream)


def stream_context(stream: int) -> tuple[int, int, bool]:
    """Return (context, device, whether that is its primary context) of a created stream."""
    answer = _library.cu.cuStreamGetCtx(stream)
    if answer[0]:
        raise _error("cuStreamGetCtx", answer[0])
    context = int(answer[1])
    known = _devices.get(context)
    if known is not None:
        return context, known, True
    with in_context(context):
        device = current_device()
    return context, device, primary_context(device) == context


def stream_id(stream: int) -> int:
    """Return the id that is never reused. Invalidates a capture on ``stream``: ask that first."""
    code, number = _library.cu.cuStreamGetId(stream)
    if code:
        raise _error("cuStreamGetId", code)
    return int(number)


def id_outside_capture(stream: Any) -> int | None:
    """Return ``stream_id``, or None, unasked, if the stream captures."""
    cu = _library.cu
    code, status = cu.cuStreamIsCapturing(stream)
    if code:
        raise _error("cuStreamIsCapturing", code)
    if status:
        return None
    code, number = cu.cuStreamGetId(stream)  # ``stream_id``, without a call
    if code:
        raise _error("cuStreamGetId", code)
    return number  # type: ignore[no-any-return]  # an int


def legacy_id() -> int:
    """Return the id of the legacy stream of the current context.

    Refused while any blocking stream captures, for asking would invalidate that capture.
    """
    if capture_id(LEGACY) is not None:
        raise _refusals.legacy_unknown_in_capture()
    return stream_id(LEGACY)


def stream_is_nonblocking(stream: int) -> bool:
    """Return the stream's flag. Invalidates a capture on ``stream``: ask that first."""
    code, flags = _library.cu.cuStreamGetFlags(stream)
    if code:
        raise _error("cuStreamGetFlags", code)
    return bool(int(flags) & _NONBLOCKING_FLAG)


def stream_priority(stream: int) -> int:
    """Return the stream's effective priority."""
    return int(_ask("cuStreamGetPriority", stream))


def capture_id(stream: int) -> int | None:
    """Return the id of the capture on this stream, None if it does not capture.

    For the legacy stream, which cannot capture itself: 0 while a blocking stream captures and
    makes every question about the legacy stream illegal.
    """
    code, status = _library.cu.cuStreamIsCapturing(stream)
    if code == _CAPTURE_IMPLICIT and stream == LEGACY:
        return 0
    if code:
        raise _error("cuStreamIsCapturing", code)
    return int(_ask("cuStreamGetCaptureInfo", stream)[1]) if status else None


class beside_captures:  # noqa: N801 - used as a function
    """Allow this thread to query and wait although it, or another, captures some other stream."""

    def __enter__(self) -> None:
        self._before = _exchange_mode(_relaxed())

    def __exit__(self, *_: object) -> None:
        _exchange_mode(self._before)


def _exchange_mode(mode: Any) -> Any:
    code, previous = _library.cu.cuThreadExchangeStreamCaptureMode(mode)
    if code:
        raise _error("cuThreadExchangeStreamCaptureMode", code)
    return previous


@functools.cache
def _relaxed() -> Any:
    return _library.cu.CUstreamCaptureMode(_RELAXED)


def _is_done(call: str, handle: int) -> bool:
    (code,) = getattr(_library.cu, call)(handle)
    if code and code != _NOT_READY:
        raise _error(call, code)
    return not code


def stream_done(stream: int) -> bool:
    """Return whether the stream is idle; an error on it raises."""
    with beside_captures():
        return _is_done("cuStreamQuery", stream)


def call_host(stream: int, function: int, argument: int) -> None:
    """Call a C function, which must not be Python, when the stream gets there without an error."""
    code = _launch_host()(stream, function, argument)
    if code:
        raise _error("cuLaunchHostFunc", _library.cu.CUresult(code))


@functools.cache
def _launch_host() -> Callable[[int, int, int], int]:
    # not the bindings' function: some of them (13.3) take the GIL in the driver's thread
    import ctypes  # noqa: PLC0415 - slow to import, and not needed until somebody waits

    address, _ = _ask("cuGetProcAddress", b"cuLaunchHostFunc", 10000, 0)
    return ctypes.CFUNCTYPE(ctypes.c_int, *3 * [ctypes.c_void_p])(address)  # releases the GIL


# -- events -----------------------------------------------------------------------------------


def create_event(context: int, *, timing: bool) -> int:
    """Create an event in a context: it can be recorded only on streams of that context."""
    flags = _EVENT_TIMING if timing else _EVENT_NO_TIMING
    return _create(context, functools.partial(_ask, "cuEventCreate", flags), destroy_event)


def destroy_event(event: int) -> None:
    """Destroy an event; waits already queued on it still hold."""
    _ask("cuEventDestroy", event)


def record_event(event: int, stream: int, *, external: bool = False) -> None:
    """Mark the present end of the stream; ``external`` makes it a node of the captured graph."""
    if external:
        _ask("cuEventRecordWithFlags", event, stream, _EXTERNAL)
    else:
        _ask("cuEventRecord", event, stream)


def wait_event(stream: int, event: int, *, external: bool = False) -> None:
    """Hold later work of the stream until the event's last record was reached."""
    _ask("cuStreamWaitEvent", stream, event, _EXTERNAL if external else 0)


def event_done(event: int) -> bool:
    """Return whether the event's last record was reached; an error on its stream raises."""
    with beside_captures():
        return event_reached(event)


def event_reached(event: int) -> bool:
    """Return the same in a thread that is ``beside_captures`` already."""
    return _is_done("cuEventQuery", event)


def elapsed_ms(start: int, end: int) -> float:
    """Return the milliseconds between two reached events made with timing."""
    return float(_ask("cuEventElapsedTime", start, end))
