"""``CudaStream``: a CUDA stream of any library, or our own, behind the ``Stream`` interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from streamkit import (
    _driver,
    _edges,
    _event,
    _identity,
    _library,
    _order,
    _registry,
    _scope,
    errors,
)
from streamkit._event import CudaEvent
from streamkit._lifetime import OwnedEvent
from streamkit._queue import LEGACY
from streamkit.protocols import Concrete, Event, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    from streamkit._queue import Queue

    P = ParamSpec("P")

NativeT = TypeVar("NativeT")


class CudaStream(_scope.Scoped, Stream, Generic[NativeT], metaclass=Concrete):
    """A CUDA stream: owned (``new_stream``) or borrowed (``wrap``, ``from_handle``).

    What it promises is documented on ``Stream``. Safe to use from any thread, except that a
    per-thread default stream belongs to its own thread.
    """

    # the usual values, so that wrapping sets only what differs
    _name: str | None = None
    _owned = False
    _spelled: int | None = None  # the handle as it came, if the queue's is another
    _last_id: int | tuple[int, int, int] | None = None  # once closed, as the next
    _last_device = 0
    _kept: Queue | None = None
    _views: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    def __init__(self, queue: Queue, native: NativeT, name: str | None = None) -> None:
        self._queue: Queue | None = queue  # None once closed
        self._native = native
        if native is None:
            self._name = name
            self._owned = queue.is_owned

    def _live(self) -> Queue:
        """Return its queue; StreamClosedError, or ScopeError in a wrong thread."""
        queue = self._queue
        if queue is None:
            raise errors.closed(self)
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
            raise errors.illegal_in_capture("reading the flags", self, "read them afterwards.")
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
        with _order.on(queue):
            return _driver.capture_id(queue.handle) is not None

    def record(
        self, event: object = None, *, timing: bool = False, external: bool = False
    ) -> Event:
        """Mark this point of the queue and return the event; never blocks. See ``Stream``."""
        queue = self._queue
        if type(event) is CudaEvent and queue is not None and not timing and not external:
            # the steady state: an event of ours again, on a stream that has recorded before
            owned = event._owned  # noqa: SLF001 - next door
            core = queue.core
            if core is not None and owned is not None and owned.serves == queue.context:
                if _library.is_forked:
                    raise errors.forked()
                try:
                    core.record(owned.core)
                except Exception as error:
                    raise _edges.failed("cuEventRecord", error) from error
                return event
        queue = self._live()
        if event is None:
            owned = OwnedEvent(queue.context, timing=timing)
            _order.record(owned.handle, queue, external=external)
            if queue.core is None and not queue.is_default:
                queue.core = _edges.stream(queue.handle)
            return CudaEvent(self.device_id, owned, timing=timing)
        if timing:
            raise ValueError(f"{errors.describe(event)} is given, and timing is fixed when made")
        target = _event.any_event(event, self)
        if target.device_known and target.device_id != self.device_id:
            raise errors.device_mismatch(
                target, self, "an event is recorded on streams of its own device only."
            )
        if not target.record_by_library(self, external=external):
            _order.record(target.handle, queue, external=external)
        return target

    def wait(self, other: object, *, external: bool = False) -> None:
        """Let later work run after anybody's stream or event; never blocks. See ``Stream``."""
        queue = self._queue
        if queue is None or queue.thread is not None:
            queue = self._live()
        if isinstance(other, CudaStream):
            source = other._queue  # noqa: SLF001 - another of this class
            if source is None or source.thread is not None:
                source = other._live()  # noqa: SLF001 - another of this class
            _order.wait_queue(queue, source, external)
        elif type(other) not in _registry.stream_types and _event.is_event(other):
            _order.wait_event(queue, _event.any_event(other, self).handle, external=external)
        else:
            _event.refuse_host(other, self)
            found, adapter = _registry.extract(other)
            source = _identity.identify(found, adapter, other)
            _order.check_thread(source, other)
            _order.wait_queue(queue, source, external)

    @property
    def done(self) -> bool:
        """Whether all work submitted so far has run.

        DriverError if any of it failed; CaptureError while a capture makes the question illegal.
        """
        queue = self._live()
        with _order.on(queue):
            _order.check_capture(queue, self, "asking whether work is done")
            return _driver.stream_done(queue.handle)

    def sync(self, timeout: float | None = None) -> None:
        """Block until all work submitted so far has run, at most ``timeout`` seconds.

        The GIL is released. TimeoutError names the stream, whose work goes on; DriverError if any
        of it failed; CaptureError while a capture makes waiting illegal.
        """
        queue = self._live()
        if timeout is not None:
            _event.poll(lambda: self.done, self, timeout)
            return
        with _order.on(queue):
            _order.check_capture(queue, self, "a sync")
            _driver.sync_stream(queue.handle)

    def to(self, library: str) -> Any:
        """Return that library's own stream object on this queue. See ``Stream``."""
        try:
            return self._views[library]
        except KeyError:
            queue = self._live()
            view, may_keep = _registry.view(queue, self._native, library)
            if may_keep and queue.thread is None:  # else every use is checked for its thread
                with _identity.lock:  # another thread may have been first
                    view = self._views.get(library, view)
                    self._views = {**self._views, library: view}
            return view

    def submit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``fn`` now, with this stream current: what it launches is queued here.

        It returns no value: results travel in arrays. On a host stream the call itself is queued.
        """
        with self:
            fn(*args, **kwargs)

    def close(self) -> None:
        """Give up an owned stream; returns at once, also while it is busy. See ``Stream``.

        The CUDA stream goes when its last view in another library has gone; one that such a
        library's allocator may remember is kept for the next ``new_stream`` of the same kind.
        """
        queue = self._queue
        if not self._owned or queue is None:
            return
        self._last_id = _identity.public_id(queue)
        self._last_device = self.device_id
        self._hash = hash(self)
        self._views, self._plans = {}, {}
        self._queue = None

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a queue is not copied and not sent to another process."""
        raise errors.not_copied(self)

    def __eq__(self, other: object) -> bool:
        """Whether both are one queue; a closed stream equals only itself."""
        if self is other:
            return True
        if not isinstance(other, CudaStream):
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
