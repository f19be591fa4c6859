"""NVIDIA Warp: its streams and events.

Warp keeps one entry for each handle, without counting: when a second ``wp.Stream`` of a handle
dies, the entry goes and the first one breaks. So there is one per queue, made once.
"""

from __future__ import annotations

import weakref
from typing import Any

import warp

from streamkit._base import messages
from streamkit._base.locks import new_lock
from streamkit.backends.warp import current_stream, lent_queues, memory, registered
from streamkit.backends.warp.arrays import array_device, lend, lent_by
from streamkit.backends.warp.diagnosis import diagnose
from streamkit.protocols import Binding, Queue, Traits, unbound

# the parts of the adapter from the files beside
__all__ = ["array_device", "diagnose", "lend", "lent_by"]

name = "warp"
api = 1
traits = Traits(streams_are_fixed=True, starts_on_default=False)

# By the queue's id, because the view outlives a record that it owns, and a stream wrapped anew of
# another owner has a record of its own: they would have to be looked for each time.
_views: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_lock = new_lock()


def extract(obj: Any) -> Queue:
    """Read a ``wp.Stream``; None is its spelling of the null stream."""
    kind: Any = getattr(warp, "Stream", ())  # a half-imported warp has none yet
    if not isinstance(obj, kind):
        raise messages.not_a_stream(obj)
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
        if stream is None and queue.shown:
            stream = registered.find(queue.handle, device)
            if stream is not None and queue.owner is None and not queue.is_owned:
                queue.owner = stream  # it may be what destroys the handle
        if stream is None:
            stream = warp.Stream(device, cuda_stream=queue.handle)
        if queue.id is not None:
            _views[queue.id] = stream
        _keep(stream, queue)
        memory.lend(stream, queue)
    return stream


def _keep(stream: Any, queue: Queue) -> None:
    """Let the view hold the queue, whose owner may be the view itself."""
    if queue.owner is not stream:
        stream._streamkit_queue = queue  # noqa: SLF001 - Warp keeps no owner


def _device(ordinal: int) -> Any:
    with _lock:  # Warp has a device's context before it has made its streams
        warp.init()
        if not warp.is_cuda_available():
            raise messages.no_device(f"Warp {warp.__version__} cannot use CUDA here")
        return warp.get_cuda_device(ordinal).stream.device  # asking makes the streams


# -- current stream ---------------------------------------------------------------------------


def current(device: int) -> Any:
    """Return the stream of that Warp device."""
    return _device(device).stream


def bind(stream: Any) -> Binding:
    """Prepare the stream, on which memory is freed late enough: see the files beside."""
    return memory.guarded(stream, current_stream.bind(stream))


enter, leave = unbound(bind)


# -- capture ----------------------------------------------------------------------------------


def prepare() -> None:
    """Order what Warp frees at the end of the capture, untold, after the queues lent to it."""
    lent_queues.settle()


def joins_capture(stream: Any, mode: str) -> Any:
    """Return the part of Warp in a capture that another begins."""
    from streamkit.backends.warp import capture  # noqa: PLC0415 - for captures only

    return capture.Part(stream, mode)


# -- events -----------------------------------------------------------------------------------


def event_handle(event: Any) -> int:
    """Read a ``wp.Event``."""
    if not isinstance(event, warp.Event):
        raise messages.not_a_stream(event)
    return int(event.cuda_event)


def event_device(event: Any) -> int | None:
    """Return the device it was made on."""
    return int(event.device.ordinal)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Build a ``wp.Event`` that does not own the event."""
    event = warp.Event(_device(device), cuda_event=handle)
    event._streamkit_owner = owner  # noqa: SLF001 - Warp keeps none
    return event
