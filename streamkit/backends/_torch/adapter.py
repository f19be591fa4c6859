"""PyTorch: streams, events and tensors.

A torch stream is a value: (stream id, device index, device type). torch destroys no stream, and
keeps nothing alive for a stream on a handle, so ``borrow`` attaches the Queue to the object.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from streamkit._cuda import driver
from streamkit._support import messages
from streamkit._support.locks import new_lock
from streamkit.backends._known_bodies import slow_scopes
from streamkit.backends._torch import capture
from streamkit.backends._torch.capture import explain_capture
from streamkit.backends._torch.compiler import leave_streamkit_alone
from streamkit.backends._torch.kernels import explain_kernel, pieces_of_memory
from streamkit.backends._torch.operators import host_memory, watch_operators
from streamkit.backends._torch.settings import settings
from streamkit.protocols import ArrayLayout, Binding, LibraryWork, OwnDevice, Queue, Storage, Traits
from streamkit.protocols.queues import PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import AbstractContextManager

    from streamkit.protocols import Finding

# functions of the adapter too
__all__ = ["explain_capture", "explain_kernel", "pieces_of_memory", "settings", "watch_operators"]

name = "torch"
api = 1
leave_streamkit_alone()

_Stream: Any = torch.cuda.Stream if torch.version.cuda else None  # a build for ROCm has no CUDA

traits = Traits(streams_are_fixed=True, streams_are_values=True, stream_class=_Stream)

_CUDA = 1  # c10::DeviceType::CUDA, which ROCm builds report too
_HERE = -1  # torch's index for the device that is current


# (stream id, device, device type) of torch's default streams and pools, which are never destroyed
_own: dict[tuple[int, int, int], Queue] = {}


def extract(obj: Any) -> Queue:
    """Read a torch stream, also one of the generic class."""
    try:
        value = obj.stream_id, obj.device_index, obj.device_type
    except AttributeError:
        raise messages.not_a_stream(obj) from None
    queue = _own.get(value)
    if queue is not None:
        return queue
    if type(obj) is _Stream and obj.cuda_stream == value[0] > PER_THREAD and not obj.__dict__:
        return Queue(value[0], value[1])  # an external stream, as in ``_read``
    return _read(obj, value)


def _read(obj: Any, value: tuple[int, int, int]) -> Queue:
    kind: Any = getattr(torch, "Stream", ())  # a half-imported torch has none yet
    if not isinstance(obj, kind):
        raise messages.not_a_stream(obj)
    if value[2] != _CUDA or torch.version.hip:
        raise messages.library_cannot_take(
            "streamkit.wrap",
            f"a torch stream of {obj.device}",
            "it is not a CUDA stream. On the CPU, streamkit.new_stream('cpu') makes a host stream.",
        )
    try:
        handle = obj.cuda_stream
    except AttributeError:  # the generic class
        _initialise()
        handle = _of_cuda(*value).cuda_stream
    attributes = getattr(obj, "__dict__", None)  # the generic class has none up to torch 2.11
    if attributes and "_streamkit_queue" in attributes:
        queue: Queue = attributes["_streamkit_queue"]
    elif not handle or handle != value[0]:  # an external stream's id is its handle
        queue = _own[value] = Queue(handle, value[1])
        queue.permanent = True
    else:
        # an external stream owns nothing, but its attributes may hold what owns the handle
        queue = Queue(handle, value[1], obj if attributes else None)
    return queue


def _of_cuda(stream_id: int, device_index: int, device_type: int) -> Any:
    return torch.cuda.Stream(
        stream_id=stream_id, device_index=device_index, device_type=device_type
    )


def borrow(queue: Queue) -> Any:
    """Build a ``torch.cuda.Stream`` on the queue.

    Not ``ExternalStream``, which turns handle 0 into a fresh pool stream up to torch 2.12.
    """
    if queue.handle == PER_THREAD:
        raise messages.library_cannot_take(
            name,
            "the per-thread default stream",
            "its allocator would share one free list between all threads' streams. Use a "
            "streamkit.new_stream().",
        )
    _initialise()
    if queue.is_default:
        return torch.cuda.default_stream(queue.device)
    stream = torch.cuda.get_stream_from_external(queue.handle, queue.device)
    stream._streamkit_queue = queue  # torch keeps no owner
    return stream


def _initialise() -> None:
    if not torch.cuda.is_available():
        reason = "cannot use CUDA here" if torch.version.cuda else "is built without CUDA"
        raise messages.no_device(f"torch {torch.__version__} {reason}")
    torch.cuda.init()


# -- current stream ---------------------------------------------------------------------------


def _public_get(device: int) -> tuple[int, int, int]:
    stream = torch.cuda.current_stream(None if device == _HERE else device)
    return stream.stream_id, stream.device_index, stream.device_type


def _public_set(stream_id: int, device_index: int, device_type: int) -> None:
    torch.cuda.set_stream(_of_cuda(stream_id, device_index, device_type))


_get: Any = _public_get
_set: Any = _public_set
_get_device: Any = torch.cuda.current_device
_set_device: Any = torch.cuda.set_device
_get_handle: Any = None

# What the functions above call, at a twentieth of their cost, and the stream's handle alone. The
# fourth makes no context on a device without one, as when torch itself puts devices back.
_PRIVATE = (
    "_cuda_getCurrentStream", "_cuda_setStream",
    "_cuda_getDevice", "_cuda_maybeExchangeDevice", "_cuda_getCurrentRawStream",
)  # fmt: skip


@functools.cache
def _try_private_calls() -> None:
    """Take torch's private functions if they do here and now what its own public ones do."""
    global _get, _set, _get_device, _set_device, _get_handle
    public = torch.cuda.current_stream, torch.cuda.set_stream
    if any(getattr(one, "__globals__", None) is not vars(torch.cuda) for one in public):
        return  # the program's own is called, as vLLM's, which notes each stream that is set
    device = torch.cuda.current_device()
    stream = torch.cuda.current_stream(device)  # by number: no context is made for the question
    value = stream.stream_id, stream.device_index, stream.device_type
    with contextlib.suppress(Exception):  # another torch may lack one, or want other arguments
        calls = get, move, get_device, set_device, handle = attrgetter(*_PRIVATE)(torch._C)  # noqa: SLF001
        move(*value)
        set_device(device)
        if (get(device), handle(device), get_device()) == (value, stream.cuda_stream, device):
            _get, _set, _get_device, _set_device, _get_handle = calls
            return
    torch.cuda.set_stream(stream)


_objects: dict[tuple[int, int, int], Any] = {}  # torch's own streams: few, and never destroyed


def current(device: int) -> Any:
    """Return ``torch.cuda.current_stream(device)``, building torch's own streams only once."""
    stream = _objects.get(_get(device)) if _objects else None
    if stream is None:
        _initialise()
        _try_private_calls()
        stream = torch.cuda.current_stream(None if device == _HERE else device)
        handle = stream.cuda_stream
        if not handle or handle != stream.stream_id:
            _objects[stream.stream_id, stream.device_index, stream.device_type] = stream
    return stream


current_here = functools.partial(current, _HERE)


@functools.cache
def _has_several() -> bool:
    return bool(torch.cuda.device_count() > 1)


def bind(stream: Any) -> Binding:
    """Prepare the stream; torch leaves the stream's device current, and the scope restores that.

    The former stream is saved as torch's own triple, because a handle does not tell the pool.
    """
    device = stream.device_index
    value = stream.stream_id, device, _CUDA
    queue: Queue | None = getattr(stream, "_streamkit_queue", None)
    get: Any = _get
    mine: object = value
    if _get_handle is not None and queue is not None and queue.is_owned:
        # a handle of StreamKit's has one triple, and torch tells the handle at half the cost
        get, mine = _get_handle, queue.handle

    def move(_before: object = None) -> None:
        _set(*value)

    if _has_several():

        def save() -> Any:
            here, before = _get_device(), _get(device)  # ``_get(_HERE)`` would make a context
            return before if here == device else (before, here)

        def leave(before: Any) -> None:
            if before[1] == device:
                _set(*before)
            else:  # the context is this device's, but torch's own device is another: see below
                _set(*before[0])
                _set_device(before[1])

        def is_current() -> Any:
            return _get_device() == device and get(device) == mine  # torch's own: see below

    else:  # at half the cost
        save, leave = functools.partial(_get, device), _set_back

        def is_current() -> Any:
            return get(device) == mine

    # it keeps the device and is told outside; without names, which cost a third more
    return Binding._make((save, move, leave, is_current, move, True, True))


def _set_back(before: tuple[int, int, int]) -> None:
    _set(*before)


# When torch puts back a device without a context, torch makes none, but remembers the device until
# a call needs it. Meanwhile another device's context stays current, and setting a stream of that
# other device makes torch forget the remembered one.
# If the device has a context by now, that becomes current, as when torch needs the device.
def own_device() -> OwnDevice:
    return OwnDevice(_get_device, lambda device: _get_device() == device or _set_device(device))


# -- capture ----------------------------------------------------------------------------------


def prepare(*, empties_cache: bool) -> None:
    if empties_cache:
        with contextlib.suppress(RuntimeError):  # of torch, while it captures in another thread
            driver.call_beside_captures(torch.cuda.empty_cache)
    with torch.cuda.device(driver.current_device()):  # torch's own device can be another: see above
        torch.cuda.current_blas_handle()


begins_capture = functools.partial(capture.Part, bind=bind)


def detached(array: Any) -> Any:
    """Return the tensor without autograd's graph."""
    return array if array.grad_fn is None else array.detach()


def around_capture(*, captures: bool) -> AbstractContextManager[object]:
    """Run backward passes in the calling thread, not in autograd's."""
    block: AbstractContextManager[object] = torch.autograd.set_multithreading_enabled(False)
    return block


# -- events -----------------------------------------------------------------------------------


def event_handle(event: Any) -> int:
    """Read a ``torch.cuda.Event``; 0 until its first record creates it."""
    if isinstance(event, torch.cuda.Event):
        return int(event.cuda_event)
    if not isinstance(event, torch.Event):
        raise messages.not_a_stream(event)
    if event.device is not None and event.device.type != "cuda":
        raise messages.library_cannot_take(
            "streamkit.wrap_event", f"a torch event of {event.device}", "use a CUDA one"
        )
    return int(event.event_id)


def event_device(event: Any) -> int | None:
    device = event.device
    return None if device is None else device.index


def record_event(event: Any, stream: Any) -> None:
    event.record(stream)


# -- collective operations --------------------------------------------------------------------

_LOOK = 0.0005  # seconds between two looks at whether a GPU has done its part


def work_of(obj: Any) -> LibraryWork:
    """Read a ``torch.distributed.Work``, or a future as its ``get_future`` gives."""
    # a half-imported torch has no such class yet, and a build can lack torch.distributed
    work: Any = getattr(getattr(torch, "distributed", None), "Work", ())
    future: Any = getattr(torch, "Future", ())
    if not isinstance(obj, (work, future)):
        raise messages.not_a_stream(obj)
    return LibraryWork(functools.partial(_wait_for, obj), functools.partial(_finish, obj))


def _wait_for(work: Any) -> list[Storage]:
    """Order the work before torch's current stream: with NCCL by an event, as ``work.wait()`` does.

    With gloo torch holds the stream by a kernel that spins until the host is done. gloo's result is
    then still to be copied to the GPU, so here the kernel spins until the copy has run too.
    """
    if isinstance(work, torch.Future):
        if not work.done():
            raise messages.library_cannot_take(
                "a CUDA stream",
                f"{messages.describe(work)}, which is not done",
                "to wait for it would block the host. Wait for the work itself, or give the stream "
                "what follows when it is done: future.add_done_callback(launch).",
            )
        return _memory_of(work.wait())
    future = _future(work)
    # while the stream captures, even a question whether NCCL is done fails
    captures = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if not captures and work.is_completed():
        if future is None:
            work.synchronize()
        else:
            work.wait()  # does not block now, raises the work's error, and orders gloo's copies
    # NCCL's future is done once a GPU has the work, so ``block_current_stream`` would do nothing
    elif future is not None and future.done():
        work.synchronize()  # not ``wait``, which can be configured to block the host
    else:
        try:
            (work if future is None else _copied(work, future)).block_current_stream()
        except RuntimeError as error:
            raise messages.library_cannot_take(
                "torch",
                f"{messages.describe(work)} into a stream ({error})",
                "call its wait(), which blocks the host, before you give the stream what follows.",
            ) from error
        return []
    if future is not None and _has_several():
        # torch has ordered the work before the current stream of the result's device alone
        stream = torch.cuda.current_stream()
        for device in _devices_of(future.value()) - {stream.device_index}:
            with _after(work, device) as other:
                stream.wait_stream(other)
    return [] if future is None else _memory_of(future.value())


def _copied(work: Any, future: Any) -> Any:
    """Return a work that is done when gloo's is, and gloo's copies to the GPU have run."""

    def finish(future: Any) -> None:
        with contextlib.suppress(RuntimeError):  # of failed work, whose waits raise the error
            _finish_copies(work, future)

    copied = _class_of_copied()()
    copied.future = future.then(finish)  # in gloo's thread, which has begun the copies
    return copied


@functools.cache
def _class_of_copied() -> Any:
    # ``get_future`` is the one question of ``block_current_stream``
    return type("Copied", (torch.distributed.Work,), {"get_future": lambda self: self.future})


def _finish_copies(work: Any, future: Any) -> None:
    for device in _devices_of(future.value()):
        with driver.beside_captures(), _after(work, device) as stream:
            stream.synchronize()


_spare: defaultdict[int, list[int]] = defaultdict(list)  # the streams of ``_after``, by device


@contextlib.contextmanager
def _after(work: Any, device: int) -> Generator[Any]:
    """Give an idle stream of the device that torch has ordered after the work.

    One stream for all works would also wait for other works, which may need this stream. None is
    destroyed, because torch's allocator may remember it.
    """
    handle = next((one for one in _spare[device].copy() if driver.stream_done(one)), 0)
    try:
        _spare[device].remove(handle)
    except ValueError:  # none is idle, or another thread was here first
        handle = driver.create_stream(device, nonblocking=True, priority=0)
    try:
        stream = borrow(Queue(handle, device))
        with torch.cuda.stream(stream):
            work.synchronize()
        yield stream
    finally:
        _spare[device].append(handle)


def _tensors_of(result: Any) -> list[Any]:
    """Return the tensors on GPUs in the result of a collective, which can be lists of lists."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_cuda and result.layout is torch.strided else []
    parts = result if isinstance(result, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors_of(part)]


def _devices_of(result: Any) -> set[int]:
    return {tensor.get_device() for tensor in _tensors_of(result)}


def _memory_of(result: Any) -> list[Storage]:
    found = [storage_of(tensor) for tensor in _tensors_of(result)]
    return [memory for memory in found if memory.is_own and memory.is_held is not None]


def _future(work: Any) -> Any:
    """Return the work's future; None for a message of gloo's, on which nobody may wait twice."""
    try:
        return work.get_future()
    except RuntimeError:
        return None


_messages: WeakKeyDictionary[Any, tuple[Any, list[RuntimeError]]] = WeakKeyDictionary()
"""For each message, a lock for the waiting threads, and the error of a message that failed."""
_lock = new_lock()


def _finish(work: Any) -> None:
    """Block until the work is done; NCCL's own ``wait`` only orders streams."""
    if isinstance(work, torch.Future):
        work.wait()
    elif (future := _future(work)) is None:
        _finish_message(work)
    else:
        work.wait()
        while torch.cuda.is_initialized() and not work.is_completed():
            time.sleep(_LOOK)
        _finish_copies(work, future)


def _finish_message(work: Any) -> None:
    with _lock:
        turn, errors = _messages.setdefault(work, (new_lock(), []))
    with turn:
        if not errors and not work.is_completed():
            try:
                work.wait()
            except RuntimeError as error:
                errors.append(error)
    if errors:
        raise errors[0]


# -- tensors ----------------------------------------------------------------------------------

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def array_device(array: Any) -> int | None:
    kind: Any = getattr(torch, "Tensor", ())  # a half-imported torch has none yet
    if isinstance(array, kind):
        if array.is_cuda:  # torch builds a string for ``array.device.type`` each time
            return array.get_device()  # type: ignore[no-any-return]  # an int
        if array.is_cpu:
            return None
    raise messages.not_an_array(array)


def record_stream(array: Any, stream: Any) -> bool:
    """Have torch's allocator wait for the stream, if the memory is its own.

    torch remembers the stream's handle only, until the memory is free and no capture goes on.
    """
    if _own_storage(array) is None:
        return False
    array.record_stream(stream)
    return True


def _own_storage(array: Any) -> Any:
    """Return the storage, None if its memory is not from torch's allocator of a GPU."""
    _refuse_parts(array)
    storage = array.untyped_storage()
    # torch itself asks so; without an answer the array is lent, which suits any memory
    is_own = getattr(torch._C, "_has_Standard_Deleter", None)  # noqa: SLF001
    address = getattr(storage, "_cdata", None)
    return storage if address is not None and is_own is not None and is_own(address) else None


_holders: Any = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001 - as torch calls it


def storage_of(array: Any) -> Storage:
    own = _own_storage(array)
    if own is not None:
        return Storage(own, is_own=True, is_held=None if _holders is None else _is_held)
    found = host_memory(array)
    if found is None:
        raise messages.no_memory_of_its_own(array)
    return Storage(*found) if array.is_cpu else Storage(found[0], is_own=False)


def _is_held(storage: Any) -> bool:
    """Whether a tensor holds the storage, whose Python object counts as one holder."""
    return bool(_holders(storage._cdata) > 1)  # noqa: SLF001 - as torch calls it


def _refuse_parts(array: Any) -> None:
    if array.layout is not torch.strided or array.is_nested:
        what = "nested" if array.is_nested else array.layout
        raise messages.cannot_lend(array, f"it is {what}, of several tensors")


def lend(array: Any, owner: object) -> Any:
    """Build a tensor on memory that is not torch's; the tensor's storage holds the owner."""
    if array.requires_grad or array.is_conj() or array.is_neg() or array.is_quantized:
        raise messages.cannot_lend(
            array, "its memory is not torch's, and it has a gradient, a lazy sign or a scale"
        )
    # as numbers of that size, because DLPack does not know every type
    bits = array.view(_BITS[array.element_size()])
    lent = torch.from_dlpack(torch.utils.dlpack.to_dlpack(bits)).view(array.dtype)
    # all views have this storage, whose Python object, once made, lives as long as it does
    lent.untyped_storage()._streamkit_loan = owner  # for lent_by
    return lent if type(array) is torch.Tensor else lent.as_subclass(type(array))


def lent_by(array: Any) -> Any:
    return getattr(array.untyped_storage(), "_streamkit_loan", None)


def adopt(memory: Any) -> Any:
    return torch.from_dlpack(memory)


def array_layout(array: Any) -> ArrayLayout:
    _refuse_parts(array)
    size = array.element_size()
    strides = tuple(size * stride for stride in array.stride())
    how = array.dtype, array.is_conj(), array.is_neg()
    return ArrayLayout(
        array.data_ptr(), tuple(array.shape), strides, how, size, array.requires_grad
    )


def array_like(array: Any, device: int) -> Any:
    """Return a tensor of the same strides, but with memory for each element."""
    place, strides = torch.device("cuda", device), array.stride()
    if any(not step and size > 1 for size, step in zip(array.shape, strides, strict=True)):
        return torch.empty(array.shape, dtype=array.dtype, device=place)
    return torch.empty_strided(array.shape, strides, dtype=array.dtype, device=place)


def copy_array(to: Any, source: Any, stream: Any) -> None:
    to.copy_(source)


# -- what doctor says --------------------------------------------------------------------------


def diagnose() -> Iterator[Finding]:
    """Try torch's private functions, if torch has begun to use CUDA."""
    if torch.cuda.is_initialized():
        _try_private_calls()
        if _get is _public_get:
            yield slow_scopes(name, torch.__version__)
