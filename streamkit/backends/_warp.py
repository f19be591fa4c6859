"""NVIDIA Warp: its streams and events.

Warp keeps one entry for each handle, without counting: when a second ``wp.Stream`` of a handle
dies, the entry goes and the first one breaks. So there is one per queue, made once.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from functools import partial
from typing import Any

import warp

from streamkit import errors
from streamkit._queue import ThreadToken, this_thread
from streamkit.protocols import Queue

name = "warp"
api = 1
streams_are_fixed = True

_views: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # queue id -> view
_searched: dict[int, None] = {}  # ids of queues that were looked for, in order
_REMEMBERED = 10_000
_lock = threading.RLock()


def extract(obj: Any) -> Queue:
    """Read a ``wp.Stream``; None is its spelling of the null stream."""
    kind: Any = getattr(warp, "Stream", ())  # a half-imported warp has none yet
    if not isinstance(obj, kind):
        raise errors.not_a_stream(obj)
    handle = int(obj.cuda_stream or 0)
    if not obj.device.is_primary:
        return Queue(handle, None, obj)
    return Queue(handle, obj.device.ordinal, obj if handle else None)


def borrow(queue: Queue) -> Any:
    """Return the one ``wp.Stream`` of this queue."""
    device = _device(queue.device or 0)
    if queue.handle == 1:
        return device.null_stream
    with _lock:
        while queue.also is not None:  # of several records the first: it holds what it must
            queue = queue.also
        stream = None if queue.id is None else _views.get(queue.id)
        if stream is None and queue.shown and queue.id not in _searched:
            stream = _registered(queue.handle, device)
            if stream is not None and queue.owner is None and not queue.is_owned:
                queue.owner = stream  # it may be what destroys the handle
        if stream is None:
            stream = warp.Stream(device, cuda_stream=queue.handle)
        if queue.id is not None:
            _views[queue.id] = stream
            _searched[queue.id] = None
            if len(_searched) > _REMEMBERED:
                del _searched[next(iter(_searched))]
        _keep(stream, queue)
    return stream


def _registered(handle: int, device: Any) -> Any:
    """Return the ``wp.Stream`` that Warp or the user already has on this handle.

    Warp has no list of them, so the garbage collector is asked, which takes milliseconds: once for
    a queue.
    """
    for found in gc.get_referrers(warp.Stream):
        if type(found) is warp.Stream and found.cuda_stream == handle and found.device == device:
            return found
    return None


def _keep(stream: Any, queue: Queue) -> None:
    """Let the view hold the queue, whose owner may be the view itself."""
    if queue.owner is not stream:
        stream._streamkit_queue = queue  # noqa: SLF001 - Warp keeps no owner


def _device(ordinal: int) -> Any:
    warp.init()
    _take_short_cuts()
    if not warp.is_cuda_available():
        raise errors.no_device(f"Warp {warp.__version__} cannot use CUDA here")
    return warp.get_cuda_device(ordinal)


# -- current stream: one for the process, so a scope's move is one record for all threads ------


class _Level:
    """One move of Warp's current stream and default device, and who stands in it."""

    __slots__ = ("default", "device", "previous", "stream", "threads")

    def __init__(self, stream: Any, device: Any) -> None:
        self.stream = stream
        self.device = device
        self.previous = device.stream
        self.default = _default_device()
        self.threads: dict[ThreadToken, int] = {}  # thread -> how many of its scopes

    def make(self) -> None:
        """Move Warp here."""
        _set_stream(self.device, self.stream)
        if self.default is not self.device:
            warp.set_device(self.device)

    def undo(self) -> None:
        """Set the previous stream and default device."""
        _set_stream(self.device, self.previous)
        if _default_device() is not self.default:
            warp.set_device(self.default)


_levels: list[_Level] = []  # innermost last


def current(device: int) -> Any:
    """Return the stream of that Warp device."""
    return _device(device).stream


def enter(stream: Any) -> Any:
    """Move Warp to the stream and its device, or join the thread that has.

    ScopeError if another thread's scope has moved it elsewhere.
    """
    thread = this_thread()
    device = stream.device
    with _lock:
        if _levels:
            level = _levels[-1]
            if level.stream is stream and device.stream is stream:
                if len(_levels) > 1:  # a lower level would come back under the other thread
                    _check_alone(thread, stream)
                level.threads[thread] = level.threads.get(thread, 0) + 1
                return level, thread
            _check_alone(thread, stream)
        level = _Level(stream, device)
        try:
            level.make()
            level.threads[thread] = 1
            _levels.append(level)
        except BaseException:  # an interrupt: without this, nobody could ever undo the move
            if level in _levels:
                _levels.remove(level)
            level.undo()
            raise
    return level, thread


def _check_alone(thread: ThreadToken, stream: Any) -> None:
    """Raise ScopeError if another thread stands in a level; those of ended threads are undone."""
    for level in reversed(tuple(_levels)):
        for other in tuple(level.threads):
            if other is thread:
                continue
            if other.is_alive:
                raise errors.process_wide(
                    name,
                    _text(stream),
                    _text(level.stream),
                    str(other),
                    "name it at each launch: wp.launch(..., stream=s.to('warp'))",
                )
            del level.threads[other]
        if not level.threads:
            _levels.remove(level)
            level.undo()


def _text(stream: Any) -> str:
    return f"the stream {int(stream.cuda_stream or 0):#x} of {stream.device.alias}"


def leave(token: Any) -> None:
    """Leave the move; the last one out sets the previous stream and default device."""
    level, thread = token
    with _lock:
        threads = level.threads
        if threads.get(thread, 0) > 1:
            threads[thread] -= 1
            return
        if len(threads) <= 1:
            level.undo()
            if level in _levels:
                _levels.remove(level)
        threads.pop(thread, None)


def is_current(stream: Any) -> bool:
    """Whether a scope of this thread has moved Warp to the stream, and it is there now."""
    for level in _levels[-1:]:  # another thread may leave meanwhile
        device = level.device
        return (
            level.stream is stream
            and this_thread() in level.threads
            and device.stream is stream
            and _default_device() is device
        )
    return False


def set_current(stream: Any) -> None:
    """Set the stream and its device."""
    device = stream.device
    with _lock:
        _set_stream(device, stream)
        if _default_device() is not device:
            warp.set_device(device)


def _public_set_stream(device: Any, stream: Any) -> None:
    device.set_stream(stream, sync=False)


# What Warp's own functions do, at a third of their cost, once Warp is initialised: see below.
_set_stream: Any = _public_set_stream
_default_device: Any = warp.get_device


def _take_short_cuts() -> None:
    """Set the stream as ``device.set_stream(stream, sync=False)`` does in Warp 1.14 to 1.19.

    That compares devices and looks the runtime up each time. The native call stores one pointer
    and never blocks, so it keeps the GIL. Any other version goes the public way.
    """
    global _set_stream, _default_device  # noqa: PLW0603 - chosen once
    if _set_stream is not _public_set_stream:
        return
    version = tuple(int(part) for part in warp.__version__.split(".")[:2])
    runtime = getattr(getattr(warp, "_src", warp).context, "runtime", None)
    if not (1, 14) <= version <= (1, 19) or runtime is None:
        return
    native = ctypes.PyDLL(runtime.core._name).wp_cuda_context_set_stream  # noqa: SLF001 - its path
    native.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    native.restype = None

    def set_stream(device: Any, stream: Any) -> None:
        native(device.context, stream.cuda_stream, 0)
        device._stream = stream  # noqa: SLF001 - as it does

    _set_stream = set_stream
    _default_device = partial(getattr, runtime, "default_device")


# -- events -----------------------------------------------------------------------------------


def event_handle(event: Any) -> int:
    """Read a ``wp.Event``."""
    if not isinstance(event, warp.Event):
        raise errors.not_a_stream(event)
    return int(event.cuda_event)


def event_device(event: Any) -> int | None:
    """Return the device it was made on."""
    return int(event.device.ordinal)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Build a ``wp.Event`` that does not own the event."""
    event = warp.Event(_device(device), cuda_event=handle)
    event._streamkit_owner = owner  # noqa: SLF001 - Warp keeps none
    return event
