"""NVIDIA Warp: its streams and events.

Warp keeps one entry for each handle, without counting: when a second ``wp.Stream`` of a handle
dies, the entry goes and the first one breaks. So there is one per queue, made once.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import warp

from streamkit import errors
from streamkit.protocols import Queue

name = "warp"
api = 1

_views: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # queue id -> view
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
        stream = None if queue.id is None else _views.get(queue.id)
        if stream is None:
            stream = _registered(queue.handle, device)
        if stream is None:
            stream = warp.Stream(device, cuda_stream=queue.handle)
        if queue.id is not None:
            _views[queue.id] = stream
        _keep(stream, queue)
    return stream


def _registered(handle: int, device: Any) -> Any:
    """Return the ``wp.Stream`` that Warp or the user already has on this handle.

    Warp has no list of them, so the garbage collector is asked; it happens once for a queue.
    """
    for found in gc.get_referrers(warp.Stream):
        if type(found) is warp.Stream and found.cuda_stream == handle and found.device == device:
            return found
    return None


def _keep(stream: Any, queue: Queue) -> None:
    """Let the view hold the queue: one record for each owner, for it serves them all."""
    if queue.owner is not stream:
        stream.__dict__.setdefault("_streamkit_queues", {})[id(queue.owner)] = queue


def _device(ordinal: int) -> Any:
    warp.init()
    if not warp.is_cuda_available():
        raise errors.no_device(f"Warp {warp.__version__} cannot use CUDA here")
    return warp.get_cuda_device(ordinal)


# -- current stream: process-wide, one for each device ----------------------------------------


def current(device: int) -> Any:
    """Return the stream of that Warp device."""
    return _device(device).stream


def enter(stream: Any) -> Any:
    """Set the stream, without Warp's wait, and its device as Warp's default device."""
    device = stream.device
    token = device, device.stream, warp.get_device()
    device.set_stream(stream, sync=False)
    warp.set_device(device)
    return token


def leave(token: Any) -> None:
    """Set the previous stream and default device."""
    device, stream, default = token
    device.set_stream(stream, sync=False)
    warp.set_device(default)


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
