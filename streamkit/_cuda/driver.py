"""Calls of the CUDA driver for devices, contexts and streams; each error code is a DriverError.

The driver is loaded by the first call that needs it, never at import. Handles, contexts and events
are plain ints, or the bindings' objects of them. The legacy stream's handle is 1 here, never 0,
whose meaning CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM changes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from streamkit import errors
from streamkit._cuda import loader
from streamkit._support import messages
from streamkit._support.locks import is_early_child, new_lock
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_NOT_READY = 600
_CAPTURE_IMPLICIT, _CAPTURE_BROKEN = 906, 2
_NONBLOCKING_FLAG = 1
_RELAXED = 2
_EXCHANGE = "cuThreadExchangeStreamCaptureMode"

_lock = new_lock()
_primary: dict[int, int] = {}  # device -> its primary context, retained for the process's life
device_of: dict[int, int] = {}
"""The device of each primary context in use here."""

private_streams: list[tuple[int, int]] = []
"""The context and handle of each stream that only StreamKit uses; an audit does not show these."""


def is_usable() -> bool:
    """Whether the driver may be called by a destructor: loaded, and not in a forked child."""
    return loader.is_loaded() and not is_early_child()


@functools.cache
def is_present() -> bool:
    """Whether this machine has a driver and a device; any failure but their absence raises."""
    try:
        return device_count() > 0
    except errors.NoDeviceError:
        return False


def is_available() -> bool:
    """Whether ``is_present``, and this is no child of a process that had initialised CUDA."""
    try:
        return not loader.is_forked and is_present()
    except errors.ForkedProcessError:  # another library had initialised it: only the driver knows
        return False


def error(call: str, code: int) -> errors.DriverError:
    """Return the error of a call that returned this code."""
    return loader.error(loader.cu, call, code)


def ask(call: str, *arguments: object) -> Any:
    """Call the driver; return its one result, a tuple of several, or None."""
    code, *answers = getattr(loader.cu, call)(*arguments)
    if code:
        raise error(call, code)
    return answers[0] if len(answers) == 1 else tuple(answers) or None


# -- devices and contexts ---------------------------------------------------------------------


def device_count() -> int:
    """Return how many devices this process sees."""
    return int(ask("cuDeviceGetCount"))


def device_name(device: int) -> str:
    """Return the driver's name of a device; makes no context."""
    name: bytes = ask("cuDeviceGetName", 256, device)
    return name.partition(b"\0")[0].decode(errors="replace")


def current_context() -> int:
    """Return this thread's current context, 0 if it has none."""
    code, context = loader.cu.cuCtxGetCurrent()
    if code:
        raise error("cuCtxGetCurrent", code)
    return int(context)


def context_question() -> Callable[[int], bool]:
    """Return a function, for one thread, that tells with the GIL whether a context is current."""
    _, c_void_p, byref = loader.c_types()
    found = c_void_p()
    ask = functools.partial(loader.with_gil("cuCtxGetCurrent"), byref(found))
    return lambda context: not ask() and found.value == context


def set_context(context: int) -> None:
    """Make a context current in this thread; 0 for none."""
    ask("cuCtxSetCurrent", context)


class in_context:  # noqa: N801 - used as a function
    """Make a context current for the block, then restore the previous one."""

    __slots__ = "_before", "_context"

    def __init__(self, context: int) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._before = current_context()
        if self._before == self._context:
            return
        try:
            set_context(self._context)
        except BaseException:
            loader.cu.cuCtxSetCurrent(self._before)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        (code,) = loader.cu.cuCtxSetCurrent(self._before)
        if code:
            loader.cu.cuCtxSetCurrent(self._before)  # the code can be that of earlier work
            failure = loader.error(loader.cu, "cuCtxSetCurrent", code)
            messages.raise_or_note(failure, error)


def call_in(context: int, call: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Make a call inside ``in_context``, and return its result."""
    with in_context(context):
        return call(*arguments, **options)


def ensure_in(context: int, call: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Make a call as ``call_in`` does, if the call changes no context that is current already."""
    if current_context() == context:
        return call(*arguments, **options)
    return call_in(context, call, *arguments, **options)


def create_in(context: int, make: Callable[[], Any], destroy: Callable[[int], None]) -> int:
    """Make something in a context; destroy it if the previous context cannot be restored."""
    if current_context() == context:
        return int(make())
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
    return int(ask("cuCtxGetDevice")) if current_context() else 0


def primary_context(device: int) -> int:
    """Return the device's primary context, which every library here uses."""
    context = _primary.get(device)
    if context is None:
        count = device_count()
        if not 0 <= device < count:
            raise errors.NoDeviceError(
                f"there is no cuda:{device}: this process sees {count} CUDA device(s)."
            )
        with _lock:
            if device not in _primary:
                context = int(ask("cuDevicePrimaryCtxRetain", device))
                device_of[context], _primary[device] = device, context
            context = _primary[device]
    return context


def primary_is_active(device: int) -> bool:
    """Whether the device's primary context is in use, by any library."""
    return bool(ask("cuDevicePrimaryCtxGetState", device)[1])


def default_context() -> int:
    """Return the context to restore in a thread that had none: device 0's; 0 until it is used.

    CuPy launches on the current context, and makes one current only once in a thread.
    """
    return primary_context(0) if primary_is_active(0) else 0


def sync_context(context: int) -> None:
    """Block until all work of a context has run, without the GIL; breaks a capture in it."""
    call_in(context, ask, "cuCtxSynchronize")


# -- streams ----------------------------------------------------------------------------------


def create_stream(device: int, *, nonblocking: bool, priority: int) -> int:
    """Create a stream in the device's primary context."""
    flags = _NONBLOCKING_FLAG if nonblocking else 0
    call = functools.partial(ask, "cuStreamCreateWithPriority", flags, priority)
    return create_in(primary_context(device), call, destroy_stream)


def create_private_stream(device: int, *, nonblocking: bool, priority: int) -> int:
    """Create a stream for StreamKit alone: no library sees it, and it is never destroyed."""
    stream = create_stream(device, nonblocking=nonblocking, priority=priority)
    private_streams.append((primary_context(device), stream))
    return stream


def destroy_stream(stream: int) -> None:
    """Destroy a stream; the driver lets its pending work run first."""
    ask("cuStreamDestroy", stream)


def stream_context(stream: int) -> tuple[int, int, bool]:
    """Return (context, device, whether that is its primary context) of a created stream."""
    answer = loader.cu.cuStreamGetCtx(stream)
    if answer[0]:
        raise error("cuStreamGetCtx", answer[0])
    context = int(answer[1])
    known = device_of.get(context)
    if known is not None:
        return context, known, True
    device = call_in(context, current_device)
    return context, device, primary_context(device) == context


def stream_id(stream: int) -> int:
    """Return the id, which is never reused. Ask first if the stream captures: this ends that."""
    return int(ask("cuStreamGetId", stream))


def id_outside_capture(stream: Any) -> int | None:
    """Return ``stream_id``; None, without asking for it, if the stream captures."""
    cu = loader.cu
    code, status = cu.cuStreamIsCapturing(stream)
    if code:
        raise error("cuStreamIsCapturing", code)
    if status:
        return None
    code, number = cu.cuStreamGetId(stream)  # ``stream_id``, without a call
    if code:
        raise error("cuStreamGetId", code)
    return number  # type: ignore[no-any-return]  # an int


def legacy_id() -> int:
    """Return the id of the legacy stream of the current context.

    CaptureError while any blocking stream captures, because asking would invalidate that capture.
    """
    if capture_id(LEGACY) is not None:
        raise errors.CaptureError(
            "the legacy default stream cannot be looked at while a blocking stream captures, and "
            "work on it would invalidate that capture. Call streamkit.default_stream() once before "
            "it, or capture on a nonblocking stream."
        )
    return stream_id(LEGACY)


@functools.cache
def null_stream(context: int) -> int:
    """Return 0 if a handle 0 is the legacy stream to the bindings, 2 if the per-thread one.

    The bindings read a variable with their first call, and those before 12.9.7 and 13.3 take a "0"
    in it for yes. So StreamKit asks the driver through the bindings, which ends no capture.
    """
    with in_context(context):
        if capture_id(LEGACY) is None:
            is_legacy = stream_id(0) == stream_id(LEGACY)
        else:
            is_legacy = capture_id(0) == 0
    return 0 if is_legacy else PER_THREAD


def stream_is_nonblocking(stream: int) -> bool:
    """Return the stream's flag. Ask first if the stream captures: this would end the capture."""
    code, flags = loader.cu.cuStreamGetFlags(stream)  # not by ``ask``: in each first ``wrap``
    if code:
        raise error("cuStreamGetFlags", code)
    return bool(int(flags) & _NONBLOCKING_FLAG)


def capture_id(stream: Any, told: tuple[int, object] | None = None) -> int | None:
    """Return the id of the capture on this stream, None if it does not capture.

    For the legacy stream, which cannot capture itself: 0 while a blocking stream captures and
    makes every question about the legacy stream illegal. ``told`` is what ``capture_question`` has
    told: an error's code, and the answer.
    """
    code, status = told or loader.cu.cuStreamIsCapturing(stream)
    if code == _CAPTURE_IMPLICIT and stream in (0, LEGACY):
        return 0
    if code:
        raise error("cuStreamIsCapturing", code)
    return int(ask("cuStreamGetCaptureInfo", stream)[1]) if status else None


def capture_question(stream: int, *, is_checked: bool = True) -> tuple[Callable[[], Any], Any]:
    """Return a call that asks whether a stream captures, and what is true if it does.

    The call returns an error's code; unless it ``is_checked`` nothing, which costs less. The
    bindings need as long again to make members of enumerations; here ctypes has converted the
    arguments, and ``partial`` has packed them.
    """
    c_int, c_void_p, byref = loader.c_types()
    answer = c_int()  # whose truth costs less than its value
    places = c_void_p.from_param(stream), byref(answer)
    call = loader.with_gil("cuStreamIsCapturing", is_checked=is_checked)
    return functools.partial(call, *places), answer


def end_broken_capture(stream: int) -> None:
    """End the capture that began on this stream if it is broken; leave a fork and a whole one.

    Legal in any thread. To end a whole capture on its fork would break the capture.
    """
    if int(ask("cuStreamIsCapturing", stream)) == _CAPTURE_BROKEN:
        loader.cu.cuStreamEndCapture(stream)  # returns that it was broken, or began elsewhere


class beside_captures:  # noqa: N801 - used as a function
    """Allow this thread to query and wait although it, or another, captures some other stream."""

    __slots__ = "_exchange", "_mode"

    def __init__(self) -> None:
        loader.cu.cuThreadExchangeStreamCaptureMode  # noqa: B018 - loads, or refuses a forked child
        self._exchange, kind = _exchange()
        self._mode = kind(_RELAXED)  # the call exchanges this with the thread's mode

    def __enter__(self) -> None:
        code = self._exchange(self._mode)
        if code:
            if self._mode[0] != _RELAXED:  # exchanged all the same: the code is of earlier work
                self._exchange(self._mode)
            raise error(_EXCHANGE, code)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        code = self._exchange(self._mode)
        if code:
            self._exchange(self._mode)  # the code can be that of earlier work
            messages.raise_or_note(loader.error(loader.cu, _EXCHANGE, code), error)


def call_beside_captures(call: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Make a call inside ``beside_captures``, and return its result."""
    with beside_captures():
        return call(*arguments, **options)


def relax() -> None:
    """Allow a thread of StreamKit's for ever what ``beside_captures`` allows for a block."""
    beside_captures().__enter__()  # and never leave the block


@functools.cache
def _exchange() -> tuple[Callable[[Any], int], Any]:
    return loader.with_gil("cuThreadExchangeStreamCaptureMode"), loader.c_types()[0] * 1


def stream_done(stream: int) -> bool:
    """Whether the stream is idle; an error of its work raises."""
    return call_beside_captures(query, stream)


def query(stream: int) -> bool:
    """Return the answer of ``stream_done``; the thread must be inside ``beside_captures``."""
    (code,) = loader.cu.cuStreamQuery(stream)
    if code and code != _NOT_READY:
        raise error("cuStreamQuery", code)
    return not code


def handle_bytes(handle: Any) -> bytes:
    """Return the bytes of a handle for other processes, which bindings since 13.4 do not show."""
    import ctypes  # noqa: PLC0415 - slow to import, and few programs send handles to others

    return ctypes.string_at(handle.getPtr(), 64)
