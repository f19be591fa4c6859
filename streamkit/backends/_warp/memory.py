"""Warp's memory beside non-blocking queues: freed late enough, without a wait of the host.

Warp frees on the legacy stream, which waits for blocking streams only. So before Warp frees, the
legacy stream is made to wait for the non-blocking queues lent to Warp: a blocking stream of ours,
the device's companion, waits for each of them, and the legacy stream for the companion.

What one native function (scan, sort, reduce) both allocates and frees comes from a pool of its
queue's own, so that a block freed too early comes back to that queue alone.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
import weakref
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import warp

from streamkit import errors
from streamkit._cuda import driver, events, loader, memory_pools
from streamkit._support.locks import new_lock
from streamkit.backends._warp.current_stream import is_level, warp_runtime, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols.queues import QueueRecord

# Warp's native functions that free, as the last thing they do
_FREES = re.compile(r"wp_free_device_async|wp_\w+_destroy_device")
# Warp's native functions that free memory of an earlier call, such as a queue's buffer for sorts
_REPLACES = re.compile(r"wp_\w*(sort|create|rebuild|update|reserve)\w*_device")
# Warp's native functions that may allocate
_ALLOCATES = re.compile(r"wp_(?!alloc|free|memset|texture|surface|array_copy)\w+_device")
# a function of each kind: if one is missing, this Warp has other functions
_KNOWN = {
    "wp_free_device_async",
    "wp_mesh_destroy_device",
    "wp_radix_sort_pairs_int_device",
    "wp_array_scan_int_device",
    "wp_cuda_graph_begin_capture",
    "wp_cuda_stream_unregister",
}

_MOST = 8  # queues that stay watched, although they have not been used since the last free

companions: dict[int, int] = {}
"""The companion of each device."""
_lent: set[Lent] = set()  # of all views that are alive
_spare: deque[Lent] = deque()  # of queues that are gone, for their pools
_lock = new_lock()
_unfreed: dict[Callable[[], Any], None] = {}  # frees that must wait for the next one


# -- the queues -------------------------------------------------------------------------------


class _Event:
    """An event of the driver, destroyed with this object."""

    handle: Any = None  # until there is an event: an error can leave the object half made

    def __init__(self, context: int) -> None:
        self.handle = loader.cu.CUevent(events.create(context, timing=False))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.handle and not is_finalizing() and driver.is_usable():
            with contextlib.suppress(errors.DriverError):  # other calls report a broken context
                events.destroy(self.handle)


_events: defaultdict[int, deque[_Event]] = defaultdict(lambda: deque(maxlen=256))
"""By context the events that are to be used again: a wait that is queued outlasts a new record."""


class Lent(weakref.ref[Any]):
    """One non-blocking queue on which Warp may work: a reference to its view that calls ``end``."""

    __slots__ = "context", "device", "events", "handle", "late", "marks", "passed", "pool", "stays"

    context: int
    device: int
    handle: int
    stays: bool
    """Whether the handle is never destroyed. Else its owner may do so outside of scopes."""
    pool: Any
    passed: Any
    """An event behind all work for which the companion waits, once the pool can be another's."""
    late: int | None
    """The capture that Warp joined late: nothing has waited for the work before it."""
    # Destructors come here, in several threads at once. So there is no lock, and an event belongs
    # to one thread as long as it can be recorded.
    events: deque[_Event]
    marks: dict[object, _Event]
    """Where the queue's work ended earlier, by a key of its own, until the companion waits."""

    __hash__ = object.__hash__  # not the view's, whom it outlives

    def warn(self, device: Any) -> None:
        """Warn, once, of an allocator that the program has set and that may free too early."""
        allocator = warp.get_device_allocator(device)
        if isinstance(allocator, _managed):
            return
        number = id(allocator)
        if number not in _warned:
            try:
                _warned[number] = weakref.ref(allocator, lambda _: _warned.pop(number))
            except TypeError:  # an allocator that takes no weak references
                _warned[number] = allocator
            _warn(f"StreamKit leaves {allocator!r}, the allocator set for {device.alias}, alone")

    def has_scope(self) -> bool:
        return is_level(self())

    def is_gone(self) -> bool:
        """Whether the owner has closed the handle, as it may do inside a scope."""
        queue: QueueRecord | None = getattr(self(), "_streamkit_queue", None)
        return queue is not None and queue.owner is not None and not queue.is_alive()

    def _record(self) -> _Event | None:
        """Return an event recorded at the queue's end, for one use; None if the queue captures."""
        stream = loader.cu.CUstream(self.handle)  # made once, for the next three calls
        if driver.capture_id(stream) is not None:
            return None
        try:
            event = self.events.pop()
        except IndexError:
            event = _Event(self.context)
        events.record(event.handle, stream)
        if driver.capture_id(stream) is not None:  # another thread has begun it meanwhile
            return None  # the event may be the graph's, which would capture a stream that waits
        return event

    def mark(self) -> None:
        """Record where the queue's work ends, before its handle may go; not while it captures."""
        older = self.marks.copy()
        event = None if loader.is_forked or self.is_gone() else self._record()
        if event is not None:
            self.marks[object()] = event
            for mark in older:
                self._end(mark)

    def _end(self, mark: object) -> None:
        event = self.marks.pop(mark, None)
        if event is not None:  # no other thread was here first
            self.events.append(event)

    def wait(self) -> bool:
        """Have the companion wait for the queue's work so far; False if the queue captures."""
        captures = False
        if self.stays or (self.has_scope() and not self.is_gone()):
            event = self._record()
            captures = event is None
            if event is not None:
                events.wait(companions[self.device], event.handle)
                self.events.append(event)
        # last and again: a scope left meanwhile marks its end, and gives an older event back
        while self.marks:
            for mark, event in self.marks.copy().items():
                events.wait(companions[self.device], event.handle)
                self._end(mark)
        return not captures

    def own_pool(self, common: Any) -> Any:
        """Return the pool of this queue alone, which the devices that reach ``common`` can read.

        Memory from the pool may stay, as a mesh's tree does, and other devices read it.
        """
        for _ in range(0 if self.pool else len(_spare)):
            other = _spare.popleft()
            if other.pool is None:  # the queue came twice, and its pool was taken the first time
                continue
            if other.device == self.device and events.is_done(other.passed.handle):
                self.pool, other.pool = other.pool, None
                break
            _spare.append(other)
        if self.pool is None:
            self.pool = memory_pools.create(self.device)
        memory_pools.copy_access(self.pool, common, self.device)
        return self.pool


def _drop(lent: Lent, token: object) -> None:
    """Wait for the queue no more; if its view is gone, other queues can have its pool.

    ``token`` is from before the last wait. If a scope has renewed it since, the queue stays.
    """
    found = watched.pop(lent, None)
    if found is None:  # another thread was first
        return
    if found is not token:
        watched.setdefault(lent, found)
    elif lent() is None and lent.pool is not None:
        passed = _Event(lent.context)
        events.record(passed.handle, companions[lent.device])
        lent.passed = passed  # only now: it can be in ``_spare`` already, from an earlier time
        _spare.append(lent)


def end(lent: Lent) -> None:
    """Wait for the queue once more, because its view is gone; this can run inside any other code.

    The queue stays watched if it captures now, or the wait fails.
    """
    _lent.discard(lent)
    if sys.is_finalizing() or not driver.is_usable():
        return
    token = watched[lent] = object()
    with contextlib.suppress(errors.StreamKitError):
        if lent.wait():
            _drop(lent, token)


def wait_for_queues() -> bool:
    """Let the companions wait for every watched queue; False if one queue cannot be waited for.

    No companion can wait for work before a capture that Warp joined late. If many queues are
    watched, the oldest are dropped: here, because entering a scope must not wait.
    """
    many = len(watched) - _MOST
    capturing = []
    for number, (lent, token) in enumerate(watched.copy().items()):
        is_last = lent() is None or (number < many and not lent.has_scope())
        if not lent.wait():
            capturing.append(lent)
        elif is_last:
            _drop(lent, token)
    if not capturing:
        return True
    joined = {*getattr(warp_runtime(), "captures", ())}  # until they end Warp frees nothing
    joined -= {lent.late for lent in capturing}
    return all(driver.capture_id(lent.handle) in joined for lent in capturing)


def prepared(stream: Any) -> None:
    """Note that the work before the stream's capture was waited for, though Warp joined it late."""
    lent: Lent | None = getattr(stream, "_streamkit_lent", None)
    if lent is not None:
        lent.late = None


# -- lending ----------------------------------------------------------------------------------


def lend(stream: Any, queue: QueueRecord) -> None:
    """Note that Warp may work on this queue through ``stream``, its view, unless it is blocking."""
    if queue.nonblocking is False or hasattr(stream, "_streamkit_lent"):
        return
    if not _install():
        warn_of_version()
        return
    if queue.device not in companions:
        companion = driver.create_private_stream(queue.device, nonblocking=False, priority=0)
        companions[queue.device] = companion
    lent = Lent(stream, end)
    lent.handle, lent.device, lent.context = queue.handle, queue.device, queue.context
    # StreamKit parks its own handles once Warp has seen them
    lent.stays = queue.permanent or queue.is_owned
    lent.pool = lent.passed = lent.late = None
    lent.events, lent.marks = _events[queue.context], {}
    watched[lent] = object()
    _lent.add(lent)
    stream._streamkit_lent = lent


# -- Warp's native functions ------------------------------------------------------------------


@functools.cache
def _install() -> bool:
    """Replace Warp's native functions that free by ours; False if this Warp has other functions.

    ``wp.set_device_allocator`` is not enough, because an array made before keeps its own allocator,
    and scan, mesh and hash grid use none.
    """
    core = getattr(warp_runtime(), "core", None)
    if _KNOWN.difference(getattr(core, "__dict__", ())):
        return False
    found: dict[str, Any] = {}
    for name, native in vars(core).items():
        if _FREES.fullmatch(name):
            found[name] = _after_the_queues(native)
        elif name == "wp_cuda_graph_begin_capture":
            found[name] = _before_capture(native)
        elif name == "wp_cuda_stream_unregister":
            found[name] = _waiting_first(native, errors.StreamKitError)  # a destructor cannot raise
        else:
            ours = _in_own_pools(native) if _ALLOCATES.fullmatch(name) else native
            found[name] = _waiting_first(ours) if _REPLACES.fullmatch(name) else ours
    vars(core).update(found)
    return True


def _after_the_queues(native: Any) -> Callable[..., Any]:
    """Return a free that waits for the queues; the next free does what this one could not."""
    done = object()

    def free(*arguments: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Any:
        if is_finalizing() or not driver.is_usable() or not (watched or _unfreed):
            return native(*arguments)
        _unfreed[functools.partial(native, *arguments)] = None
        due = _unfreed.copy()  # without the frees that another thread adds after the wait
        try:
            waits = wait_for_queues()
        except errors.StreamKitError:  # a destructor cannot raise
            waits = False
        for one in due if waits else ():
            if _unfreed.pop(one, done) is not done:  # no other thread has freed it meanwhile
                one()
        return None

    return free


def _waiting_first(native: Any, *suppressed: type[Exception]) -> Callable[..., Any]:
    """Return a function whose own frees come after a wait for the queues, where one is possible.

    Ordering the memory that the function works on is the caller's part.
    """

    def call(*arguments: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Any:
        if not is_finalizing() and watched and driver.is_usable():
            with contextlib.suppress(*suppressed):
                wait_for_queues()
        return native(*arguments)

    return call


def _before_capture(native: Any) -> Callable[..., Any]:
    """Return a function that begins a capture after a wait, as Warp defers its frees to the end."""

    def begin(context: Any, stream: Any, external: Any, *options: Any) -> Any:
        if watched and driver.is_usable():
            wait_for_queues()
            for lent in watched.copy() if external else ():
                if lent.handle == stream:
                    lent.late = driver.capture_id(stream)
        return native(context, stream, external, *options)

    return begin


def _in_own_pools(native: Any) -> Callable[..., Any]:
    """Return a function that allocates from the pool of Warp's current queue."""

    def call(*arguments: Any) -> Any:
        queues = _current_queues() if driver.is_usable() else []
        if not queues:
            return native(*arguments)
        # locked, because a second thread would take this thread's pool for the one to set again
        with _lock, driver.beside_captures(), contextlib.ExitStack() as back:
            for lent in queues:
                found = driver.ask("cuDeviceGetMemPool", lent.device)
                pool = lent.own_pool(found)
                back.callback(driver.ask, "cuDeviceSetMemPool", lent.device, found)
                driver.ask("cuDeviceSetMemPool", lent.device, pool)
            return native(*arguments)

    return call


def _current_queues() -> list[Lent]:
    """Return the lent queues that are current in Warp and do not capture: a graph has its own pool.

    Devices without pools are left out. ``wp.set_mempool_enabled`` does not matter, because it is
    about arrays, and Warp's native functions ask only whether the device has pools.
    """
    devices = [warp.get_cuda_device(device) for device in [*companions]]
    streams = [device.stream for device in devices if device.is_mempool_supported]
    found = [getattr(stream, "_streamkit_lent", None) for stream in streams]
    return [lent for lent in found if lent and driver.capture_id(lent.handle) is None]


_managed: Any = getattr(warp, "CudaManagedAllocator", ())  # frees by cudaFree, which waits
_warned: dict[int, Any] = {}  # by the allocators' ids: references to them, or themselves


@functools.cache
def warn_of_version() -> None:
    _warn(f"StreamKit does not know how Warp {warp.__version__} frees memory")


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, so an array used on a non-blocking stream may be freed before its work is done. "
        "Keep it with s.keep(array), or use a blocking stream: streamkit.new_stream().",
        RuntimeWarning,
        stacklevel=2,
    )
