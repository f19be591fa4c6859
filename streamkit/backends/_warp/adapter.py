"""NVIDIA Warp: streams, events and arrays.

Warp keeps one entry for each handle, without counting: when a second ``wp.Stream`` of a handle
dies, the entry goes and the first one breaks. So each queue has one ``wp.Stream``, made once.

Warp's native part knows the handles but has no call that lists them, and only the garbage collector
can list the objects, which takes tens of milliseconds in a large program. So from the first search
on, Warp's own functions note each handle here, and only noted ones are searched for.
"""

from __future__ import annotations

import functools
import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

import warp

from streamkit._support import messages
from streamkit._support.locks import new_lock
from streamkit._support.weak_table import WeakTable
from streamkit.backends._known_bodies import slow_scopes
from streamkit.backends._warp import capture, current_stream, memory
from streamkit.backends._warp.kernels import explain_kernel
from streamkit.protocols import ArrayLayout, Finding, Queue, Settings, Traits
from streamkit.protocols.adapters import NeedsFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from streamkit.protocols.queues import QueueRecord

__all__ = ["explain_kernel"]  # a function of the adapter too

name = "warp"
api = 1
traits = Traits(streams_are_fixed=True, starts_on_default=False)

# By the queue's id, not by its record: a view outlives a record that it owns, and a stream that is
# wrapped again with another owner has another record.
_views: WeakTable[Any] = WeakTable()
_lock = new_lock()


def extract(obj: Any) -> Queue:
    """Read a ``wp.Stream``, whose handle is None if it is the null stream."""
    kind: Any = getattr(warp, "Stream", ())  # a half-imported warp has none yet
    if not isinstance(obj, kind):
        raise messages.not_a_stream(obj)
    handle = int(obj.cuda_stream or 0)
    if not obj.device.is_primary:
        return Queue(handle, None, obj)
    if not handle:
        return Queue(handle, obj.device.ordinal)
    return Queue(handle, obj.device.ordinal, obj, dies_with_owner=obj.owner)


def borrow(queue: QueueRecord) -> Any:
    """Return the one ``wp.Stream`` of this queue; ``identity`` lets one thread at a time in."""
    device = _device(queue.device)
    if queue.handle == 1:
        return device.null_stream
    first = queue.first_record()
    seen = None if queue.id is None else _views.get(queue.id)
    stream: Any = None if seen is None else seen()
    if stream is None and queue.handle_exposed:
        stream = _find_registered(queue.handle, device)
        if stream is not None and queue.owner is None and not first.is_owned:
            queue.owner = stream  # the found stream may destroy the handle
    is_new = stream is None
    if is_new:
        stream = warp.Stream(device, cuda_stream=queue.handle)
    if queue.id is not None:
        _views.put(queue.id, stream)
    if is_new or not any(record.owner is stream for record in queue.all_records()):
        stream._streamkit_queue = queue  # Warp keeps no owner
    memory.lend(stream, first)
    return stream


current_context: Any = None
"""Warp's own call once Warp is initialised, if this Warp is known."""


@functools.cache
def _device(ordinal: int) -> Any:
    global current_context  # noqa: PLW0603 - this module is the adapter
    with _lock:  # Warp has a device's context before it has made its streams
        warp.init()
        current_context = current_stream.native_context()
        if not warp.is_cuda_available():
            raise messages.no_device(f"Warp {warp.__version__} cannot use CUDA here")
        return warp.get_cuda_device(ordinal).stream.device  # asking makes the streams


# -- the streams that Warp has -----------------------------------------------------------------

_CREATE, _DESTROY = "wp_cuda_stream_create", "wp_cuda_stream_destroy"
_REGISTER, _UNREGISTER = "wp_cuda_stream_register", "wp_cuda_stream_unregister"

_handles: set[int] = set()


def _all_streams() -> Iterator[Any]:
    """Yield every ``wp.Stream`` there is, slowly."""
    for found in gc.get_referrers(warp.Stream):
        if type(found) is warp.Stream and found.cuda_stream:
            yield found


def _find_registered(handle: int, device: Any) -> Any:
    """Return the ``wp.Stream`` that Warp or the user already has on this handle, or None."""
    if _watch_handles() and handle not in _handles:
        return None
    for found in _all_streams():
        if found.cuda_stream == handle and found.device == device:
            return found
    return None


@functools.cache
def _watch_handles() -> bool:
    """Note the handles from now on; False if this Warp has other functions."""
    core = getattr(getattr(current_stream.warp_runtime(), "core", None), "__dict__", {})
    if not {_CREATE, _DESTROY, _REGISTER, _UNREGISTER} <= core.keys():
        return False
    create = core[_CREATE]

    def created(*arguments: Any) -> Any:
        handle = create(*arguments)
        _handles.add(handle)
        return handle

    core[_CREATE] = created
    core[_REGISTER] = _noting(_handles.add, core[_REGISTER])
    core[_DESTROY] = _noting(_handles.discard, core[_DESTROY])
    core[_UNREGISTER] = _noting(_handles.discard, core[_UNREGISTER])
    _handles.update(found.cuda_stream for found in _all_streams())
    return True


def _noting(note: Callable[[Any], None], native: Callable[..., Any]) -> Callable[..., Any]:
    # in destructors too, also when this module has come to its end
    def call(context: Any, handle: Any) -> Any:
        note(handle)  # first: another thread may be given the handle as soon as it is free
        return native(context, handle)

    return call


# -- current stream ---------------------------------------------------------------------------


def current(device: int) -> Any:
    return _device(device).stream


bind = current_stream.bind


# -- capture ----------------------------------------------------------------------------------


def prepare(*, empties_cache: bool) -> None:
    """Order Warp's frees at the end of the capture after the queues lent to Warp."""
    memory.wait_for_queues()


joins_capture = capture.WarpPart


def settings() -> Settings:
    warp.init()
    runtime = current_stream.warp_runtime()

    def read() -> tuple[Hashable, ...]:
        tape = getattr(runtime, "tape", None)
        # by name, because Warp's comparison of devices asks CUDA
        return warp.get_device().alias, None if tape is None else NeedsFunction()

    return Settings(("default device", "tape"), read)


# -- events -----------------------------------------------------------------------------------


def event_handle(event: Any) -> int:
    if not isinstance(event, warp.Event):
        raise messages.not_a_stream(event)
    return int(event.cuda_event)


def event_device(event: Any) -> int | None:
    return int(event.device.ordinal)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Build a ``wp.Event`` that does not own the event."""
    event = warp.Event(_device(device), cuda_event=handle)
    event._streamkit_owner = owner
    return event


# -- arrays, whose memory Warp frees on the legacy stream -----------------------------------------


def array_device(array: Any) -> int | None:
    """Return the device of a ``wp.array``; Warp's other classes of arrays consist of several."""
    kind: Any = getattr(warp, "array", ())  # a half-imported warp has none yet
    if not isinstance(array, kind) or array.device is None:
        raise messages.not_an_array(array)
    return int(array.device.ordinal) if array.device.is_cuda else None


def lend(array: Any, owner: object) -> Any:
    """Build a view that holds the owner instead of the array, and so do the view's own views.

    The gradient is an array by itself, so it needs the owner too.
    """
    lent = array.view(array.dtype)
    for part, whole in ((lent, array), (lent.grad, array.grad)):
        if part is not None:
            for attribute, value in [*vars(part).items()]:
                if value is whole:  # the array behind the view, under whatever name
                    setattr(part, attribute, None)
            part._streamkit_loan = owner
    return lent


def lent_by(array: Any) -> Any:
    return getattr(array, "_streamkit_loan", None)


def adopt(memory: Any) -> Any:
    return warp.from_dlpack(memory)


def array_layout(array: Any) -> ArrayLayout:
    size = warp.types.type_size_in_bytes(array.dtype)
    return ArrayLayout(
        array.ptr or 0, array.shape, array.strides, array.dtype, size, array.requires_grad
    )


def array_like(array: Any, device: int) -> Any:
    return warp.empty(array.shape, array.dtype, device=_device(device))


def copy_array(to: Any, source: Any, stream: Any) -> None:
    warp.copy(to, source, stream=stream)


# -- faults in Warp that raise nothing ------------------------------------------------------------


def diagnose() -> Iterator[Finding]:
    """Read Warp's own tables and the objects that the garbage collector knows."""
    if current_stream.native_context() is None:
        yield slow_scopes(name, warp.__version__)
    yield from _two_views()
    for device in warp.get_cuda_devices():
        if device.has_stream:
            yield from _lost(device)
            yield from _left(device)


def _two_views() -> Iterator[Finding]:
    """Yield each handle with several ``wp.Stream``: when one dies, Warp forgets the handle."""
    views = Counter((found.device.alias, found.cuda_stream) for found in _all_streams())
    for (device, handle), count in views.items():
        if count > 1:
            yield Finding(
                "two-views",
                f"Warp has {count} wp.Stream objects on the stream {handle:#x} of {device}: when "
                "one of them dies, the others break",
                "Make one for each stream and keep it: streamkit.wrap(stream).to('warp').",
                name,
            )


def _lost(device: Any) -> Iterator[Finding]:
    """Yield a native current stream that is not the one which Python shows."""
    native = current_stream.native_stream(device)
    shown = int(device.stream.cuda_stream or 0)
    if native is not None and native != shown:
        yield Finding(
            "lost-stream",
            f"Warp shows the stream {shown:#x} of {device.alias} as its current one, and launches "
            f"on {native:#x}: another wp.Stream of that handle has died",
            "Set it again: device.set_stream(device.stream, sync=False).",
            name,
        )


def _left(device: Any) -> Iterator[Finding]:
    """Yield a current stream that no scope will restore."""
    stream = device.stream
    if stream.owner or stream is device.null_stream or current_stream.is_held():
        return
    yield Finding(
        "left-redirected",
        f"Warp is on the stream {int(stream.cuda_stream):#x} of {device.alias}, which is not "
        "its own, and no scope of a living thread put it there",
        "Leave the block, or undo the call, that moved it. Where a thread has ended inside a "
        "scope, the next scope in any thread puts Warp back.",
        name,
    )
