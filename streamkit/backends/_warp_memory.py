"""Warp's memory beside non-blocking queues: freed late enough, and the host never waits.

Warp frees on the legacy stream, which waits for blocking streams only. So before Warp frees, a
blocking stream of ours, the device's companion, waits for the non-blocking queues lent to Warp.
What one native function allocates and frees itself (scan, sort, reduce) comes from a pool of its
queue's own, so that a block freed too early comes back to that queue alone.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import warp

from streamkit import _driver, _pools, errors
from streamkit._locks import new_lock
from streamkit.backends import _warp_current, _warp_uncovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Binding, Queue

_MOST = 8  # queues waited for at each free

# Warp's native functions, of all of which these frees are the last part
_FREES = re.compile(r"wp_free_device_async|wp_\w+_destroy_device")
# those that free what an earlier call of theirs allocated, and what defers frees from then on
_REPLACES = re.compile(r"wp_\w*(sort|rebuild|update|reserve)\w*_device|wp_cuda_graph_begin_capture")
# those that may allocate
_ALLOCATES = re.compile(r"wp_(?!alloc|free|memset|texture|surface|array_copy)\w+_device")

_lock = new_lock()
_companions: dict[int, int] = {}  # device -> its companion
_watched: dict[Lent, None] = {}  # the queues to wait for, the longest watched first
_spare: deque[Lent] = deque()  # of queues that are gone, for their pools
_unfreed: deque[Callable[[], Any]] = deque()  # frees that must wait for the next one


class Lent:
    """One non-blocking queue on which Warp may work, and how to wait for what it was given."""

    pool: Any = None
    event: int = 0
    unseen: bool = False
    """Whether the event was recorded since the companion last waited for it."""

    def __init__(self, stream: Any, queue: Queue) -> None:
        self.view = weakref.ref(stream)
        self.handle = queue.handle
        self.device: int = queue.device or 0
        # Nobody destroys these, for what Warp has seen is parked. Of any other, the handle is used
        # only while a scope of it is open: its owner may close it at any time after.
        self.stays = queue.permanent or queue.is_owned
        self.context = queue.context
        self.event = _driver.create_event(self.context, timing=False)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.event and not is_finalizing() and _driver.is_usable():
            with contextlib.suppress(errors.DriverError):  # a broken context, as others will report
                _driver.destroy_event(self.event)

    def stands(self) -> bool:
        """Whether a scope of it is open in some thread."""
        return _warp_current.is_level(self.view())

    def mark(self) -> bool:
        """Record the present end of the queue; False if it captures."""
        if _driver.capture_id(self.handle) is not None:
            return False
        _driver.record_event(self.event, self.handle)
        if _driver.capture_id(self.handle) is not None:  # another thread has begun it meanwhile
            # the event may be of the graph, and whoever waits for it would be captured
            self.unseen = False
            captured, self.event = self.event, _driver.create_event(self.context, timing=False)
            _driver.destroy_event(captured)
            return False
        self.unseen = True
        return True

    def settle(self) -> bool:
        """Let the companion wait for what the queue was given; False if it captures."""
        if (self.stays or self.stands()) and not self.mark():
            return False
        if self.unseen:
            self.unseen = False  # first: another thread may mark it meanwhile
            try:
                _driver.wait_event(_companions[self.device], self.event)
            except BaseException:
                self.unseen = True
                raise
        return True

    def own_pool(self, common: Any) -> Any:
        """Return the pool of which only this queue has memory, in reach of whom ``common`` is.

        What a function allocates there may stay, as a mesh's tree does, and be read from others.
        """
        for _ in range(0 if self.pool else len(_spare)):
            other = _spare.popleft()
            if other.device == self.device and _driver.event_done(other.event):
                self.pool = other.pool
                break
            _spare.append(other)
        if self.pool is None:
            self.pool = _pools.create(self.device)
        _pools.open_as(self.pool, common, self.device)
        return self.pool


# -- lending ----------------------------------------------------------------------------------


def lend(stream: Any, queue: Queue) -> None:
    """Note that Warp may work on this queue through ``stream``, its view.

    Nothing is needed for a blocking queue.
    """
    if queue.nonblocking is False or hasattr(stream, "_streamkit_lent"):
        return
    if not _install():
        _warp_uncovered.warn_of_version()
        return
    lent = Lent(stream, queue)
    with _lock:
        if lent.device not in _companions:
            companion = _driver.create_private_stream(lent.device, nonblocking=False, priority=0)
            _companions[lent.device] = companion
    watch(lent)
    weakref.finalize(stream, _end, lent).atexit = False
    stream._streamkit_lent = lent  # noqa: SLF001 - ours


def watch(lent: Lent) -> None:
    """Wait for this queue at each free, instead of for the longest watched if they are many."""
    _watched[lent] = None
    for other in _watched.copy():
        if len(_watched) <= _MOST:
            return
        with contextlib.suppress(errors.StreamKitError):  # then it stays
            if not other.stands():
                _settle(other)


def _settle(lent: Lent) -> None:
    """Wait for a queue for the last time; if its view is gone, its pool is for others."""
    is_first = lent.settle() and _watched.pop(lent, False) is None  # of the threads that come here
    if is_first and lent.view() is None and lent.pool is not None:
        _spare.append(lent)


def _end(lent: Lent) -> None:
    """Wait for the queue once more, for its view is gone; runs inside any other code.

    It stays watched if it captures now, or the wait fails.
    """
    if sys.is_finalizing() or not _driver.is_usable():
        return
    _watched[lent] = None
    with contextlib.suppress(errors.StreamKitError):
        _settle(lent)


def settle() -> bool:
    """Let the companions wait for every watched queue; False if one captures, untold to Warp."""
    for lent in [lent for lent in _watched.copy() if lent.view() is None]:
        _settle(lent)
    capturing = [lent for lent in _watched.copy() if not lent.settle()]
    if not capturing:
        return True
    told = getattr(_context().runtime, "captures", {})  # by id; until they end Warp frees nothing
    return all(_driver.capture_id(lent.handle) in told for lent in capturing)


def guarded(stream: Any, binding: Binding) -> Binding:
    """Return the scope's ways of ``stream``, which watch its queue if that is lent."""
    lent: Lent | None = getattr(stream, "_streamkit_lent", None)
    if lent is None:
        return binding
    device, enter_it, leave_it, stays = stream.device, binding.enter, binding.leave, lent.stays

    def enter() -> Any:
        if getattr(device, "_custom_allocator", None) is not None:
            _warp_uncovered.warn_of_allocator(device)
        token = enter_it()
        if lent not in _watched:
            watch(lent)
        return token

    def leave(token: Any) -> None:
        try:
            if not stays and _driver.is_usable():
                lent.mark()
        finally:
            leave_it(token)

    return binding._replace(enter=enter, leave=leave)


# -- Warp's native functions ------------------------------------------------------------------


def _context() -> Any:
    return getattr(warp, "_src", warp).context


@functools.cache
def _install() -> bool:
    """Put ours before Warp's native functions that free; False if this Warp has others.

    Not by ``wp.set_device_allocator``: an array made before keeps the allocator it came from, and
    scan, mesh and hash grid have none.
    """
    core = getattr(getattr(_context(), "runtime", None), "core", None)
    if not hasattr(core, "wp_free_device_async"):
        return False
    found: dict[str, Any] = {}
    for name, native in vars(core).items():
        if _FREES.fullmatch(name):
            found[name] = _after_the_queues(native)
            continue
        ours = _in_own_pools(native) if _ALLOCATES.fullmatch(name) else native
        if _REPLACES.fullmatch(name):
            ours = _settled(ours)
        if ours is not native:
            found[name] = ours
    vars(core).update(found)
    return True


def _after_the_queues(native: Any) -> Callable[..., Any]:
    """Let a free wait for the queues; where that fails it is done with the next one."""

    def free(*arguments: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Any:
        if is_finalizing() or not _driver.is_usable() or not (_watched or _unfreed):
            return native(*arguments)
        due: list[Callable[[], Any]] = [functools.partial(native, *arguments)]
        with contextlib.suppress(IndexError):
            while True:
                due.append(_unfreed.popleft())
        waits = False
        try:
            waits = settle()
        except errors.StreamKitError:
            pass  # a destructor has nobody to tell
        finally:
            if not waits:
                _unfreed.extend(due)
        if not waits:
            return None
        results = [one() for one in due]
        return results[0]

    return free


def _settled(native: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if _watched and _driver.is_usable():
            settle()
        return native(*arguments)

    return call


def _in_own_pools(native: Any) -> Callable[..., Any]:
    """Let the function take its memory from the pool of the queue on which Warp stands."""

    def call(*arguments: Any) -> Any:
        standing = _standing() if _driver.is_usable() else []
        if not standing:
            return native(*arguments)
        # locked, for a second thread would take this one's pool for the one to put back
        with _lock, _driver.beside_captures(), contextlib.ExitStack() as back:
            for lent in standing:
                found = _pools.current(lent.device)
                pool = lent.own_pool(found)
                back.callback(_pools.set_current, lent.device, found)
                _pools.set_current(lent.device, pool)
            return native(*arguments)

    return call


def _standing() -> list[Lent]:
    """Return the lent queues on which Warp stands, but those that capture: a graph has its own.

    None of a device without pools. Whether Warp's arrays come from one, ``wp.set_mempool_enabled``,
    is another matter: its native functions ask only whether there are any.
    """
    devices = [warp.get_cuda_device(device) for device in _companions]
    streams = [device.stream for device in devices if device.is_mempool_supported]
    found = [getattr(stream, "_streamkit_lent", None) for stream in streams]
    return [lent for lent in found if lent and _driver.capture_id(lent.handle) is None]
