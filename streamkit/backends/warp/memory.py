"""Warp's memory beside non-blocking queues: freed late enough, and the host never waits.

Warp frees on the legacy stream, which waits for blocking streams only. So before Warp frees, that
is made to wait for the non-blocking queues lent to Warp, of which the file beside keeps the list.
What one native function allocates and frees itself (scan, sort, reduce) comes from a pool of its
queue's own, so that a block freed too early comes back to that queue alone.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import warp

from streamkit import errors
from streamkit._base.locks import new_lock
from streamkit._cuda import driver, memory_pools
from streamkit.backends.warp import lent_queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Binding, Queue

# Warp's native functions, of all of which these frees are the last part
_FREES = re.compile(r"wp_free_device_async|wp_\w+_destroy_device")
# those that free what an earlier call allocated, be it a queue's buffer for sorts
_REPLACES = re.compile(r"wp_\w*(sort|create|rebuild|update|reserve)\w*_device")
# those that may allocate
_ALLOCATES = re.compile(r"wp_(?!alloc|free|memset|texture|surface|array_copy)\w+_device")
# one of each kind that must be found, or this is a Warp of other functions
_KNOWN = {
    "wp_free_device_async",
    "wp_mesh_destroy_device",
    "wp_radix_sort_pairs_int_device",
    "wp_array_scan_int_device",
    "wp_cuda_graph_begin_capture",
    "wp_cuda_stream_unregister",
}

_lock = new_lock()
_unfreed: dict[Callable[[], Any], None] = {}  # frees that must wait for the next one


# -- lending ----------------------------------------------------------------------------------


def lend(stream: Any, queue: Queue) -> None:
    """Note that Warp may work on this queue through ``stream``, its view.

    Nothing is needed for a blocking queue.
    """
    if queue.nonblocking is False or hasattr(stream, "_streamkit_lent"):
        return
    if not _install():
        warn_of_version()
        return
    lent = lent_queues.Lent(stream, queue)
    with _lock:
        if lent.device not in lent_queues.companions:
            companion = driver.create_private_stream(lent.device, nonblocking=False, priority=0)
            lent_queues.companions[lent.device] = companion
    lent_queues.watch(lent)
    weakref.finalize(stream, lent_queues.end, lent).atexit = False
    stream._streamkit_lent = lent  # noqa: SLF001 - ours


def guarded(stream: Any, binding: Binding) -> Binding:
    """Return the scope's ways of ``stream``, which watch its queue if that is lent."""
    lent: lent_queues.Lent | None = getattr(stream, "_streamkit_lent", None)
    if lent is None:
        return binding
    device, enter_it, leave_it, stays = stream.device, binding.enter, binding.leave, lent.stays

    def look() -> None:
        if getattr(device, "_custom_allocator", None) is not None:
            warn_of_allocator(device)

    def enter() -> Any:
        look()
        token = enter_it()
        lent_queues.watch(lent)
        return token

    def leave(token: Any) -> None:
        try:
            if not stays and driver.is_usable():
                lent.mark()
            look()
        finally:
            leave_it(token)

    return binding._replace(enter=enter, leave=leave)


# -- Warp's native functions ------------------------------------------------------------------


@functools.cache
def _install() -> bool:
    """Put ours before Warp's native functions that free; False if this Warp has others.

    Not by ``wp.set_device_allocator``: an array made before keeps the allocator it came from, and
    scan, mesh and hash grid have none.
    """
    core = getattr(getattr(lent_queues.context(), "runtime", None), "core", None)
    if _KNOWN.difference(getattr(core, "__dict__", ())):
        return False
    found: dict[str, Any] = {}
    for name, native in vars(core).items():
        if _FREES.fullmatch(name):
            found[name] = _after_the_queues(native)
            continue
        ours = _in_own_pools(native) if _ALLOCATES.fullmatch(name) else native
        if name == "wp_cuda_graph_begin_capture":
            ours = _told(native)
        elif name == "wp_cuda_stream_unregister":
            ours = _settled(native, errors.StreamKitError)  # a destructor has nobody to tell
        elif _REPLACES.fullmatch(name):
            ours = _settled(ours)
        if ours is not native:
            found[name] = ours
    vars(core).update(found)
    return True


def _after_the_queues(native: Any) -> Callable[..., Any]:
    """Let a free wait for the queues; where that fails it is done with the next one."""
    done = object()

    def free(*arguments: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Any:
        if is_finalizing() or not driver.is_usable() or not (lent_queues.watched or _unfreed):
            return native(*arguments)
        _unfreed[functools.partial(native, *arguments)] = None
        due = _unfreed.copy()  # not those that another thread adds after the wait
        try:
            waits = lent_queues.settle()
        except errors.StreamKitError:  # a destructor has nobody to tell
            waits = False
        for one in due if waits else ():
            if _unfreed.pop(one, done) is not done:  # by another thread, meanwhile
                one()
        return None

    return free


def _settled(native: Any, *suppressed: type[Exception]) -> Callable[..., Any]:
    """Let the function's own frees wait for the queues, but those whose work is out of reach.

    What the function works on, its caller has ordered after all who used it.
    """

    def call(*arguments: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Any:
        if not is_finalizing() and lent_queues.watched and driver.is_usable():
            with contextlib.suppress(*suppressed):
                lent_queues.settle()
        return native(*arguments)

    return call


def _told(native: Any) -> Callable[..., Any]:
    """Let what Warp defers from then on wait for the queues."""

    def begin(context: Any, stream: Any, external: Any, *options: Any) -> Any:
        if lent_queues.watched and driver.is_usable():
            lent_queues.settle()
            for lent in lent_queues.watched.copy() if external else ():
                if lent.handle == stream:
                    lent.late = driver.capture_id(stream)
        return native(context, stream, external, *options)

    return begin


def _in_own_pools(native: Any) -> Callable[..., Any]:
    """Let the function take its memory from the pool of the queue on which Warp stands."""

    def call(*arguments: Any) -> Any:
        standing = _standing() if driver.is_usable() else []
        if not standing:
            return native(*arguments)
        # locked, for a second thread would take this one's pool for the one to put back
        with _lock, driver.beside_captures(), contextlib.ExitStack() as back:
            for lent in standing:
                found = memory_pools.current(lent.device)
                pool = lent.own_pool(found)
                back.callback(memory_pools.set_current, lent.device, found)
                memory_pools.set_current(lent.device, pool)
            return native(*arguments)

    return call


def _standing() -> list[lent_queues.Lent]:
    """Return the lent queues on which Warp stands, but those that capture: a graph has its own.

    None of a device without pools. Whether Warp's arrays come from one, ``wp.set_mempool_enabled``,
    is another matter: its native functions ask only whether there are any.
    """
    devices = [warp.get_cuda_device(device) for device in [*lent_queues.companions]]
    streams = [device.stream for device in devices if device.is_mempool_supported]
    found = [getattr(stream, "_streamkit_lent", None) for stream in streams]
    return [lent for lent in found if lent and driver.capture_id(lent.handle) is None]


_managed: Any = getattr(warp, "CudaManagedAllocator", ())  # frees by cudaFree, which waits
_warned: dict[int, Any] = {}  # by the allocators' ids: references to them, or themselves


@functools.cache
def warn_of_version() -> None:
    """Warn of a Warp whose native functions are not those that are known."""
    _warn(f"StreamKit does not know how Warp {warp.__version__} frees memory")


def warn_of_allocator(device: Any) -> None:
    """Warn, once, of an allocator that somebody set, and that may free at once."""
    allocator = warp.get_device_allocator(device)
    if isinstance(allocator, _managed):
        return
    number = id(allocator)
    if number not in _warned:
        try:
            _warned[number] = weakref.ref(allocator, lambda _: _warned.pop(number))
        except TypeError:  # it knows no weak references
            _warned[number] = allocator
        _warn(f"StreamKit leaves {allocator!r}, the allocator set for {device.alias}, alone")


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, so an array used on a non-blocking stream may be freed before its work is done. "
        "Keep it with s.keep(array), or use a blocking stream: streamkit.new_stream().",
        RuntimeWarning,
        stacklevel=2,
    )
