"""What a CUDA stream is: its queue, whose it is, and the facts that the driver knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from streamkit import _driver, _identity, _order, _refusals, _registry, _scope
from streamkit._queue import LEGACY

if TYPE_CHECKING:
    from streamkit._queue import Queue

NativeT = TypeVar("NativeT")

_NONE: dict[Any, Any] = {}


class StreamFacts(_scope.Scoped, Generic[NativeT]):
    """A CUDA stream as something to look at; ``CudaStream`` adds what it does."""

    # the usual values, so that wrapping sets only what differs, but for what inner loops read:
    # see Queue
    _name: str | None = None
    _owned = False
    _spelled: int | None = None  # the handle as it came, if the queue's is another
    _last_id: int | tuple[int, int, int] | None = None  # once closed, as the next
    _last_device = 0
    _hash: int  # the same
    _kept: Queue | None = None

    def __init__(self, queue: Queue, native: NativeT, name: str | None = None) -> None:
        self._queue: Queue | None = queue  # None once closed
        self._native = native
        self._views = self._plans = _NONE
        if native is None:
            self._name = name
            self._owned = queue.is_owned

    def _live(self) -> Queue:
        """Return its queue; StreamClosedError, or ScopeError in a wrong thread."""
        queue = self._queue
        if queue is None:
            raise _refusals.closed(self)
        if queue.thread is not None:
            _order.check_thread(queue, self)
        return queue

    @property
    def native(self) -> NativeT:
        """The wrapped object, identical; None if there is none (owned, or from a handle)."""
        return self._native

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as a plain int, spelled as it came: 0 and 1 are both legacy."""
        queue = self._show()
        return queue.handle if self._spelled is None else self._spelled

    def __int__(self) -> int:
        """Return the handle."""
        return self.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, handle)``, the CUDA stream protocol. Whoever takes it holds this object."""
        self._kept = self._show()  # beyond close: who asks holds this object, not the queue
        return 0, self.handle

    @property
    def dlpack_stream(self) -> int:
        """The int for ``__dlpack__(stream=...)``: 1 for legacy, never 0; 2 for the per-thread one.

        It keeps nothing alive, as DLPack's own.
        """
        return self._show().handle

    def _show(self) -> Queue:
        """Return the queue, noting that any library may learn its handle from here."""
        queue = self._live()
        _registry.show(queue, remembers=True)
        return queue

    @property
    def device(self) -> str:
        """``"cuda:N"``, as torch and Warp accept it."""
        return f"cuda:{self.device_id}"

    @property
    def device_id(self) -> int:
        """The CUDA ordinal."""
        queue = self._queue
        return self._last_device if queue is None else queue.device or 0

    @property
    def id(self) -> int | tuple[int, int, int]:
        """The driver's id (cuStreamGetId): one for each queue, never reused.

        A stream first seen while it captured has (device, handle, capture id) until that ends.
        """
        queue = self._queue
        return self._last_id or 0 if queue is None else _identity.public_id(queue)

    @property
    def name(self) -> str | None:
        """The name given to ``new_stream``."""
        return self._name

    @property
    def owned(self) -> bool:
        """Whether StreamKit created the stream, and destroys it."""
        return self._owned

    @property
    def closed(self) -> bool:
        """Whether ``close`` has made this object unusable."""
        return self._queue is None

    @property
    def is_default(self) -> bool:
        """Whether this is the legacy or the per-thread default stream."""
        return self._live().is_default

    @property
    def is_nonblocking(self) -> bool:
        """Whether work on it ignores the implicit order with the legacy default stream.

        CaptureError if the stream was first seen while it captured, and still does.
        """
        queue = self._live()
        if queue.nonblocking is None and not _identity.settle(queue):
            raise _refusals.illegal_in_capture("reading the flags", self, "read them afterwards.")
        return bool(queue.nonblocking)

    @property
    def priority(self) -> int:
        """The effective priority: smaller is more urgent, 0 the default."""
        queue = self._live()
        if queue.handle == LEGACY:
            return 0  # asking would break a blocking stream's capture
        with _order.on(queue):
            return _driver.stream_priority(queue.handle)

    @property
    def context(self) -> int:
        """The ``CUcontext`` it belongs to, as an int."""
        return self._live().context

    @property
    def is_capturing(self) -> bool:
        """Whether a graph is being captured on it, whoever began that."""
        queue = self._live()
        if queue.handle == LEGACY:
            return False  # the legacy stream cannot be captured
        return _order.capture_of(queue) is not None

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a queue is not copied and not sent to another process."""
        raise _refusals.not_copied(self)

    def __eq__(self, other: object) -> bool:
        """Whether both are one queue; a closed stream equals only itself."""
        if self is other:
            return True
        if not isinstance(other, StreamFacts):
            return NotImplemented
        one, two = self._queue, other._queue
        return one is not None and two is not None and _identity.same(one, two)

    def __hash__(self) -> int:
        """Return a hash that all streams of one queue share."""
        queue = self._queue
        return self._hash if queue is None else hash((queue.device, queue.handle))

    def __repr__(self) -> str:
        queue = self._queue
        name = f" {self._name!r}" if self._name else ""
        if queue is None:
            return f"<streamkit.CudaStream{name} {self.device} id={self.id} closed>"
        kind = {True: " nonblocking", False: " blocking", None: ""}[queue.nonblocking]
        origin = "owned" if self._owned else _origin(self._native)
        handle = queue.handle if self._spelled is None else self._spelled
        return (
            f"<streamkit.CudaStream{name} {self.device} handle={handle:#x} "
            f"id={queue.id if queue.id is not None else 'capturing'}{kind}, {origin}>"
        )


def _origin(native: object) -> str:
    if native is None:
        return "borrowed"
    return f"from {type(native).__module__.partition('.')[0]}"
