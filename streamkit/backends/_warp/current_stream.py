"""Warp's current stream and default device, of which the process has one each.

Several threads can share one scope's move; the last thread to leave undoes it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import warp

from streamkit import errors
from streamkit._support.locks import new_turn_lock, wait_for_turn
from streamkit.backends._known_bodies import digest
from streamkit.protocols import Binding
from streamkit.protocols.queues import here, this_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols.queues import ThreadToken

_lock = new_turn_lock()

# Nothing is saved beforehand, because Warp's stream is all threads' and another thread could move
# it until this one has its turn. So ``enter`` saves and sets in one turn.
_save = [None].copy

# One move of Warp's current stream and default device: the thread that moved Warp, the stream, the
# object whose ``_stream`` was set, the former stream, the native arguments that set it, and the
# former default device. A plain tuple, which costs a fifth of an object.
_Level: TypeAlias = tuple["ThreadToken", Any, Any, Any, tuple[Any, ...], Any]

watched: dict[Any, object] = {}
"""The lent queues to wait for, see ``memory``. Each has a token, which a scope renews."""
_levels: list[_Level] = []  # innermost first, because the index -1 costs as much as a call
_shared: dict[int, list[ThreadToken]] = {}
"""By the id of a level that several threads share: the threads in it, one for each scope."""


class _Moves:
    """What the scopes of one stream do to Warp: they move it, or share another scope's move."""

    __slots__ = "allocators", "arguments", "device", "lent", "place", "runtime", "set", "stream"

    def __init__(self, stream: Any, lent: Any) -> None:
        self.stream, self.lent, self.device = stream, lent, stream.device
        self.place, self.runtime = _place(self.device)
        self.set, self.arguments = _native_set(), _arguments(stream)
        self.allocators = self.device if hasattr(self.device, "_custom_allocator") else _Public

    def enter(self, token: list[_Level | None]) -> None:
        lent, stream = self.lent, self.stream
        if lent is not None and self.allocators._custom_allocator is not None:
            lent.warn(self.device)
        me = here.token
        try:  # as ``new_turn_lock`` says
            _lock.insert(0, me) if _lock and _lock[:1] == [me] else _lock.append(me)
            if _lock[0] is not me:
                wait_for_turn(_lock, me)
            if not (_levels and _join(token, self, me)):
                place, runtime, device = self.place, self.runtime, self.device
                previous = place._stream
                try:
                    back = previous._streamkit_set
                except AttributeError:
                    back = _arguments(previous)
                level = me, stream, place, previous, back, runtime.default_device
                token[0] = level  # first: wherever an interrupt comes, ``leave`` undoes the rest
                _levels.insert(0, level)
                self.set(*self.arguments)
                place._stream = stream
                if runtime.default_device is not device:
                    runtime.default_device = device
        finally:
            _lock.remove(me)
        if lent is not None:
            watched[lent] = []

    def leave(self, token: list[_Level | None]) -> None:
        level = token[0]
        if level is None:
            return
        me = this_thread() if _shared else level[0]
        try:  # as above
            _lock.insert(0, me) if _lock and _lock[:1] == [me] else _lock.append(me)
            if _lock[0] is not me:
                wait_for_turn(_lock, me)
            if _shared or not _levels or _levels[0] is not level:
                if _shared and _others_stay(level, me):
                    self.set_current()  # the others expect Warp here; the body may have moved it
                    threads = _shared[id(level)]
                    index = threads.index(me)
                    # without a call: an interrupt finds both done, or neither
                    token[0] = None
                    del threads[index]
                else:
                    _end(level, self.runtime)
            else:  # ``_end`` without a call
                _, _, place, previous, back, default = level
                self.set(*back)
                place._stream = previous
                if self.runtime.default_device is not default:
                    self.runtime.default_device = default
                del _levels[0]  # last: after an interrupt the lines above run again
        finally:
            _lock.remove(me)
        if self.lent is not None and self.allocators._custom_allocator is not None:
            self.lent.warn(self.device)

    def mark_and_leave(self, token: list[_Level | None]) -> None:
        """Leave after a mark, also where there can be none."""
        try:
            self.lent.mark()
        finally:
            self.leave(token)

    def is_current(self) -> bool:
        return self.place._stream is self.stream and self.runtime.default_device is self.device

    def set_current(self) -> None:
        self.set(*self.arguments)
        self.place._stream = self.stream
        if self.runtime.default_device is not self.device:
            self.runtime.default_device = self.device


def bind(stream: Any) -> Binding:
    """Return the binding of a stream, whose scopes watch its queue if that is ``lent``."""
    lent = getattr(stream, "_streamkit_lent", None)
    queue = getattr(stream, "_streamkit_queue", None)
    if lent is not None and queue is not None and queue.permanent:
        lent.stays = True  # a library may have said so after the view was made
    moves = _Moves(stream, lent)
    leave = moves.leave if lent is None or lent.stays else moves.mark_and_leave
    calls = _save, moves.enter, leave, moves.is_current, moves.set_current
    # without names, which cost a third more
    return Binding._make((*calls, moves.place is moves.device, False))


def _others_stay(level: _Level, me: ThreadToken) -> bool:
    """Whether some scope stays in the level when this thread has left one."""
    threads = _threads(level)
    return threads.count(me) > 1 or any(one.is_alive for one in threads if one is not me)


def _threads(level: _Level) -> list[ThreadToken]:
    """Return the thread of each scope that is open in a level."""
    threads = _shared.get(id(level))
    return [level[0]] if threads is None else threads


def _end(level: _Level, runtime: Any) -> None:
    """Set the stream and default device from before a level, unless the level has ended."""
    if _shared:
        _shared.pop(id(level), None)
    index = next((i for i, other in enumerate(_levels) if other is level), None)
    if index is None:
        return
    _, _, place, previous, back, default = level
    _native_set()(*back)
    place._stream = previous
    if runtime.default_device is not default:
        runtime.default_device = default
    del _levels[index]  # last: after an interrupt the lines above run again


def _join(token: list[_Level | None], moves: _Moves, thread: ThreadToken) -> bool:
    """Share the innermost level if it is this stream's; False if the scope needs a new level.

    ScopeError if another thread has moved Warp elsewhere.
    """
    level, stream = _levels[0], moves.stream
    joined = level[1] is stream and moves.is_current()
    if not joined or len(_levels) > 1:  # the end of a lower level would move the other thread too
        _check_alone(thread, stream)
    if not joined or not any(level is other for other in _levels):
        return False
    threads = _shared.setdefault(id(level), [level[0]])
    threads += (thread,)
    token[0] = level  # no call comes between these two: an interrupt finds both done, or neither
    return True


def _check_alone(thread: ThreadToken, stream: Any) -> None:
    """Raise ScopeError if another thread is in a level; undo the levels of ended threads."""
    for level in tuple(_levels):
        threads = _threads(level)
        if level[1] is stream and thread in threads:
            continue  # the threads that share it expect Warp on this stream
        for other in threads:
            if other is not thread and other.is_alive:
                raise _held_by(other, level[1], stream)
        if thread not in threads:  # all threads of the level have ended
            _end(level, _place(level[1].device)[1])


def _held_by(other: ThreadToken, held: Any, stream: Any) -> errors.ScopeError:
    """Say where another thread holds Warp's one current stream, and what to do about it."""
    place, runtime = _place(stream.device)
    since, device, share = "", "", ""
    if held is not stream:
        if held.device is stream.device:
            share = ", or share one stream"
        else:  # on two devices they cannot share one
            device = f"device={stream.device.alias!r}, "
    else:  # why they cannot share the scope although it is of their stream
        share = ", or share it while Warp is moved nowhere else"
        if place._stream is not stream:
            since = f", but a block has moved it to {_text(place._stream)} since"
        elif (default := runtime.default_device) is not stream.device:
            since = f", but a block has made {default.alias} the default device since"
        else:
            since = ", but inside a scope that will put it elsewhere"
    return errors.ScopeError(
        f"warp has one current stream for the whole process, and thread {other} holds it on "
        f"{_text(held)}{since}; thread {threading.current_thread().name} asks for {_text(stream)}. "
        "Leave warp out of one scope with streamkit.use(stream, libraries=[...]) and name it at "
        f"each launch: wp.launch(..., {device}stream=s.to('warp')){share}."
    )


def is_held() -> bool:
    """Whether a scope of a living thread has moved Warp."""
    return any(thread.is_alive for level in tuple(_levels) for thread in tuple(_threads(level)))


def native_stream(device: Any) -> int | None:
    """Return the handle on which Warp's native part launches; None for an unknown Warp."""
    if _native() is None:
        return None
    return int(warp_runtime().core.wp_cuda_context_get_stream(device.context) or 0)


def _text(stream: Any) -> str:
    return f"the stream {int(stream.cuda_stream or 0):#x} of {stream.device.alias}"


def is_level(stream: object) -> bool:
    """Whether some thread's scope has moved Warp to this stream."""
    return any(level[1] is stream for level in tuple(_levels))


# -- Warp's own state, directly where its functions are known, else through the public ones -------


_KNOWN = {"c091ef5101c34427"}  # the digests of Warp's functions for it: Warp 1.14 to 1.19


class _Public:
    """A device's ``_stream`` and the runtime's ``default_device``, by the public functions."""

    _custom_allocator = None

    def __init__(self, device: Any) -> None:
        self._device = device

    _stream = property(
        lambda self: self._device.stream,
        lambda self, stream: self._device.set_stream(stream, sync=False),
    )
    default_device = property(
        lambda _: warp.get_device(), lambda _, device: warp.set_device(device)
    )


def _place(device: Any) -> tuple[Any, Any]:
    """Return the objects with ``_stream`` and ``default_device``: Warp's own ones if it is known.

    Setting ``_stream`` is the Python half of ``device.set_stream(stream, sync=False)``, at a
    quarter of its cost; ``_native_set`` gives the other half.
    """
    if _native() is None:
        public = _Public(device)
        return public, public
    return device, device.runtime


def warp_runtime() -> Any:
    """Return Warp's own runtime object, which has its native functions.

    None before ``wp.init``, and where a later Warp has it elsewhere.
    """
    return getattr(getattr(getattr(warp, "_src", warp), "context", None), "runtime", None)


@functools.cache
def _native() -> Any:
    """Return Warp's native functions, for calls that never block; None for an unknown Warp.

    The functions are called with the GIL held, because where threads enter scopes at once, each
    call that frees the GIL costs a change of threads.
    """
    warp.init()
    try:
        device, runtime = warp.Device, type(warp_runtime())
        streams = device.set_stream, device.stream.fget
        devices = warp.get_device, runtime.get_device, warp.set_device, runtime.set_default_device
        if digest(*streams, *devices) not in _KNOWN:
            return None
        native = ctypes.PyDLL(warp_runtime().core._name)
        native.wp_cuda_context_set_stream.restype = None
        native.wp_cuda_context_get_current.restype = ctypes.c_size_t  # 0 for none
    except (AttributeError, OSError):
        return None
    return native


def native_context() -> Callable[[], int] | None:
    """Return Warp's function that returns the current context; None for an unknown Warp."""
    return getattr(_native(), "wp_cuda_context_get_current", None)


def _native_set() -> Callable[..., None]:
    """Return Warp's native function that sets a stream; for an unknown Warp one that does nothing.

    There ``_Public`` sets the native stream too.
    """
    native = _native()
    return (lambda *_: None) if native is None else native.wp_cuda_context_set_stream


def _arguments(stream: Any) -> tuple[Any, ...]:
    """Return the arguments with which ``_native_set()`` sets the stream, converted once."""
    found: tuple[Any, ...] = getattr(stream, "_streamkit_set", ())
    if not found and _native() is not None:
        pointer = ctypes.c_void_p.from_param  # as an argument is passed: twice as fast to call
        found = pointer(stream.device.context), pointer(stream.cuda_stream), 0
        stream._streamkit_set = found
    return found
