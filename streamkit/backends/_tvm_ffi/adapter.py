"""tvm-ffi: environment streams, a handle for each device in each thread.

tvm-ffi has no class of streams. ``tvm_ffi.StreamContext`` stands for a stream: the context manager
that sets an environment stream.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import tvm_ffi

from streamkit._support import messages
from streamkit.backends._managed_tensor import CUDA, ON_CUDA, DescribedMemory, layout_of, owner_at
from streamkit.protocols import Binding, Queue, Traits
from streamkit.protocols.queues import LEGACY

if TYPE_CHECKING:
    from typing import Self

name = "tvm_ffi"
api = 1
traits = Traits(
    streams_are_fixed=True,
    streams_are_values=True,
    remembers_handles=False,  # tvm-ffi allocates nothing of its own
)


def _public_get(_kind: int, device: int) -> int:
    return int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device)))


def _public_set(_kind: int, device: int, handle: int) -> int:
    context = tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device), handle)
    context.__enter__()
    return int(context.prev_stream)


# the functions behind the public ones, at a quarter of the cost
_get: Any = getattr(tvm_ffi.core, "_env_get_current_stream", _public_get)
_set: Any = getattr(tvm_ffi.core, "_env_set_current_stream", _public_set)


class _Before(threading.local):
    """The handles that ``EnvironmentStream`` has replaced in this thread, innermost last."""

    def __init__(self) -> None:
        self.handles: list[int] = []


_before = _Before()


class EnvironmentStream(tvm_ffi.StreamContext):  # type: ignore[misc]  # its base is Any
    """A stream as tvm-ffi takes it: an argument of its functions, and a block that sets it.

    One object serves nested blocks and several threads at once, which its base does not.
    """

    def __init__(self, handle: int, device: int) -> None:
        super().__init__(tvm_ffi.device("cuda", device), handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream

    def __enter__(self) -> Self:
        _before.handles.append(_set(CUDA, self.device_id, self.stream))
        return self

    def __exit__(self, *error: object) -> None:
        _set(CUDA, self.device_id, _before.handles.pop())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tvm_ffi.StreamContext):
            return NotImplemented
        return _value(self) == _value(other)

    def __hash__(self) -> int:
        return hash(_value(self))


def _value(stream: Any) -> tuple[int, int, int]:
    handle = stream.stream  # an integer, or ctypes.c_void_p
    return stream.device_type, stream.device_id, getattr(handle, "value", handle) or 0


def extract(obj: Any) -> Queue:
    """Read the stream that a ``StreamContext`` sets; 0 is the legacy one, as for CUDA itself.

    Neither the object nor tvm-ffi owns the stream.
    """
    if not isinstance(obj, tvm_ffi.StreamContext):
        raise messages.not_a_stream(obj)
    kind, device, handle = _value(obj)
    if kind != CUDA:
        raise messages.library_cannot_take(
            "streamkit.wrap", f"tvm-ffi's stream of device type {kind}", "only CUDA has them"
        )
    queue: Queue | None = getattr(obj, "_streamkit_queue", None)
    return Queue(handle, device) if queue is None else queue


def borrow(queue: Queue) -> Any:
    stream = EnvironmentStream(queue.handle, queue.device or 0)
    stream._streamkit_queue = queue
    return stream


# -- current stream ---------------------------------------------------------------------------


_never_set: dict[int, EnvironmentStream] = {}  # one object a device, for one StreamKit stream


def current(device: int) -> Any:
    """Return the environment stream of the device, in this thread; 0 where it was never set."""
    handle = _get(CUDA, device)
    if handle:
        return EnvironmentStream(handle, device)
    return _never_set.get(device) or _never_set.setdefault(device, EnvironmentStream(0, device))


def bind(stream: Any) -> Binding:
    """Prepare the stream; scopes save and restore the bare handle."""
    _, device, handle = _value(stream)
    set_current = functools.partial(_set, CUDA, device, handle)
    leave = functools.partial(_set, CUDA, device)
    save = functools.partial(_get, CUDA, device)
    same = (0, LEGACY) if handle <= LEGACY else (handle,)  # both are handles of the legacy stream
    return Binding(
        save,
        lambda _former: set_current(),
        leave,
        lambda: save() in same,
        set_current,
        told_outside=True,
    )


# -- tensors ----------------------------------------------------------------------------------

_HOST = 1, 3  # DLPack's device types of host memory, the second of pinned memory


def array_device(array: Any) -> int | None:
    if isinstance(array, tvm_ffi.Tensor):
        kind, device = array.__dlpack_device__()
        if kind in ON_CUDA:
            return int(device)
        if kind in _HOST:
            return None
    raise messages.not_an_array(array)


def lend(array: Any, owner: object) -> Any:
    kind, device = array.__dlpack_device__()
    memory = DescribedMemory(layout_of(array), int(device), owner, int(kind))
    return memory.adopted(tvm_ffi.from_dlpack)


def lent_by(array: Any) -> Any:
    return owner_at(layout_of(array).address)


def adopt(memory: Any) -> Any:
    return tvm_ffi.from_dlpack(memory)
