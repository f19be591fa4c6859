"""CuPy: streams, events and arrays.

``from_external`` forgets the device and, with some objects, the owner, so ``borrow`` attaches both.
"""

from __future__ import annotations

import os
import sys
from itertools import repeat
from sys import getrefcount
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import ref

import cupy

from streamkit._support import messages
from streamkit.backends._cupy.capture import around_capture, explain_capture
from streamkit.backends._cupy.kernels import explain_kernel
from streamkit.backends._protocol import Source
from streamkit.protocols import ArrayLayout, Binding, Finding, Queue, Traits
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Iterator

# functions of the adapter too
__all__ = ["around_capture", "explain_capture", "explain_kernel"]

name = "cupy"
api = 1
_build = cupy.cuda.driver.get_build_version() // 1000
_cuda = None if cupy.cuda.runtime.is_hip else str(_build)
_get = cupy.cuda.get_current_stream
_new = [None, None].copy  # makes a scope's token

# CUDA's errors: initialisation error, driver too old, no device, not supported, system mismatch,
# and compatibility mismatch
_NO_CUDA = (3, 35, 100, 801, 803, 804)

# With CuPy's switch its kernels for handle 0 run on the per-thread stream. CuPy has read the switch
# as it was imported, and a program may have changed the variable since.
_default = getattr(sys.modules.get("cupy_backends.cuda.stream"), "get_default_stream_ptr", None)
_switch = os.environ.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0") or 0
_PER_THREAD = bool(int(_switch)) if _default is None else _default() == PER_THREAD
traits = Traits(streams_are_fixed=True, built_for=_cuda, handle_0=LEGACY + _PER_THREAD)

# the second is deprecated, and many programs still use it
_KINDS = cupy.cuda.Stream, getattr(cupy.cuda, "ExternalStream", cupy.cuda.Stream)


def extract(obj: Any) -> Queue:
    """Read a CuPy stream, of which the device -1 means unknown."""
    if not isinstance(obj, _KINDS):
        raise messages.not_a_stream(obj)
    handle, device = obj.ptr, obj.device_id
    if device < 0:
        device = None
    if not handle and _PER_THREAD:
        handle = PER_THREAD
    if handle <= PER_THREAD:
        return Queue(handle, device)
    # an ExternalStream does not destroy the handle, but holds the object it was made from
    return Queue(handle, device, obj, dies_with_owner=type(obj) is cupy.cuda.Stream)


def borrow(queue: Queue) -> Any:
    """Build a ``cupy.cuda.Stream`` on the queue, which checks the device as CuPy's own do."""
    if queue.handle == PER_THREAD:
        return cupy.cuda.Stream.ptds
    if queue.handle <= PER_THREAD and not _PER_THREAD:
        return cupy.cuda.Stream.null
    release()
    stream = cupy.cuda.Stream.from_external(Source(queue))
    stream.device_id = queue.device
    stream._streamkit_queue = queue  # keeps the queue's owner alive
    return stream


# -- current stream ---------------------------------------------------------------------------


def current(device: int) -> Any:
    try:
        return cupy.cuda.get_current_stream(device)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status not in _NO_CUDA:
            raise
        what = f"CuPy {cupy.__version__} cannot use CUDA here: {error}"
        raise messages.no_device(what) from error


current_context: Any = getattr(cupy.cuda.driver, "ctxGetCurrent", None)
"""CuPy's own call, at half the cost of the one in cuda.bindings."""


def bind(stream: Any) -> Binding:
    """Prepare the stream: a scope pushes it, and remembers the stream that the push may hide.

    CuPy's pop returns to the stream that was pushed before, not to one that ``.use()`` set
    (https://github.com/cupy/cupy/pull/7866), so the former stream is set again if the pop lost it.
    """
    device = stream.device_id
    kind, again = type(stream), repeat(stream)
    pushes, pops = map(kind.__enter__, again), map(kind.__exit__, again)
    queue: Queue | None = getattr(stream, "_streamkit_queue", None)
    may_die = queue is not None and not queue.permanent  # only objects of ours can die early

    # The token's items are the former stream, and this one from the push to the pop. An interrupt
    # comes after a call, and these loops make none, so every push and pop is noted, and noted once.
    def enter(token: list[Any]) -> None:
        token[0] = _get(device)
        for token[1] in pushes:
            break

    def leave(token: list[Any]) -> None:
        if token[1] is not None:
            for token[1] in pops:
                break
        previous = token[0]
        if previous is not None and _get(device) is not previous:
            previous.use()
        if may_die and getrefcount(ref(stream)) != NOTED:
            keep(stream)

    # Set again by ``use``, because the outer scope has pushed it;
    # it keeps the device and is told outside; without names, which cost a third more
    return Binding._make(
        (_new, enter, leave, lambda: _get(device) is stream, stream.use, True, True)
    )


# -- the stream to which stream-ordered memory goes back -----------------------------------------

# ``MemoryAsync`` (of ``malloc_async`` and ``MemoryAsyncPool``) holds only a weak reference to the
# stream object that was current. Once that object is gone, the memory is freed on whatever stream
# is then current, so an object with such memory is kept. The default pool needs no care: it gives a
# block back to the handle it came from, and a handle that CuPy has seen is parked, never given to
# another stream.
_kept: dict[int, Any] = {}


def holders(stream: Any) -> int:
    """Return a number that grows with each holder of the stream's one plain weak reference."""
    return getrefcount(ref(stream))


_example: set[Any] = set()  # any object that takes weak references
_NONE = holders(_example)
_reference = ref(_example)
NOTED = holders(_example)
"""The number for an object whose only holder is StreamKit's own table."""


def keep(stream: Any) -> None:
    """Keep a stream object as long as CuPy's memory refers to it."""
    _kept[id(stream)] = stream
    release()


def release() -> None:
    """Drop the stream objects to which no memory refers any more."""
    for number, stream in _kept.copy().items():
        queue = stream._streamkit_queue
        noted = queue.views.get("cupy") is ref(stream)
        if holders(stream) == (NOTED if noted else _NONE):
            _kept.pop(number, None)


# -- events -----------------------------------------------------------------------------------


def event_handle(event: Any) -> int:
    if not isinstance(event, cupy.cuda.Event):
        raise messages.not_a_stream(event)
    return int(event.ptr)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Return an object with ``ptr``: CuPy's methods read nothing else.

    Not a ``cupy.cuda.Event``, whose end would destroy the event.
    """
    return SimpleNamespace(ptr=handle, owner=owner)


# -- arrays, of whose streams CuPy's pools know only that of the allocation -----------------------


def array_device(array: Any) -> int | None:
    if not isinstance(array, cupy.ndarray):
        raise messages.not_an_array(array)
    device: int = array.data.device_id
    return device


def lend(array: Any, owner: object) -> Any:
    """Build an array on the whole memory, because a view can begin at the end of it."""
    owned = array.data.mem
    whole = cupy.cuda.UnownedMemory(owned.ptr, owned.size, owner, array.data.device_id)
    pointer = cupy.cuda.MemoryPointer(whole, array.data.ptr - owned.ptr)
    lent = cupy.ndarray(array.shape, array.dtype, pointer, array.strides)
    return lent if type(array) is cupy.ndarray else lent.view(type(array))


def lent_by(array: Any) -> Any:
    return getattr(array.data.mem, "_owner", None)


def adopt(memory: Any) -> Any:
    return cupy.from_dlpack(memory)


def array_layout(array: Any) -> ArrayLayout:
    return ArrayLayout(array.data.ptr, array.shape, array.strides, array.dtype, array.itemsize)


def array_like(array: Any, device: int) -> Any:
    """Return an array of the same order, as far as CuPy keeps the order."""
    with cupy.cuda.Device(device):
        return cupy.empty_like(array)


def copy_array(to: Any, source: Any, stream: Any) -> None:
    cupy.copyto(to, source)


# -- which CUDA it compiles for -------------------------------------------------------------------


def diagnose() -> Iterator[Finding]:
    """Ask NVRTC, which CuPy loads for its first kernel, whether it is that of CuPy's own CUDA."""
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception:  # noqa: BLE001 - another finding says that it cannot be found
        return
    if major != _build:
        yield Finding(
            "other-nvrtc",
            f"CuPy is built for CUDA {_build}, and compiles its kernels with the NVRTC of CUDA "
            f"{major}.{minor}, which was found first",
            "Install builds of one major of CUDA; or, before CuPy is imported: import ctypes; "
            f'ctypes.CDLL("libnvrtc.so.{_build}")',
            name,
        )
