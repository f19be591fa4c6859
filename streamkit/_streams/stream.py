"""``CudaStream``: a CUDA stream of any library, or our own; and ``wrap``, the way to one."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from streamkit import errors
from streamkit._cuda import devices, driver, events, loader
from streamkit._queues import (
    active_captures,
    identity,
    keepalive,
    lifetime,
    open_scopes,
    ordering,
    points,
    registry,
    trace,
    waits,
)
from streamkit._queues.lifetime import OwnedEvent
from streamkit._queues.scope import Scoped
from streamkit._streams.event import CudaEvent, find_event, not_an_event
from streamkit._streams.host_stream import HostStream
from streamkit._support import classes, messages, refusals
from streamkit._support.reports import Submitted
from streamkit._support.weak_table import WeakTable
from streamkit.backends import names
from streamkit.protocols import Event, Stream
from streamkit.protocols.adapters import USUAL
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import ParamSpec

    from streamkit._queues.points import Point
    from streamkit.protocols import Adapter, EventLike, ForeignStream, Queue, StreamLike, WorkLike
    from streamkit.protocols.outcomes import Outcome
    from streamkit.protocols.queues import QueueRecord

    P = ParamSpec("P")
    T = TypeVar("T")

NativeT = TypeVar("NativeT")
ForeignT = TypeVar("ForeignT", bound="ForeignStream")

_NONE: dict[Any, Any] = {}


@registry.uncompiled
@classes.answer(names.answers("stream"))
class CudaStream(Scoped, Stream, Generic[NativeT], metaclass=classes.Concrete):
    """A CUDA stream: owned (``new_stream``) or borrowed (``wrap``, ``from_handle``).

    What it promises is documented on ``Stream``. Safe to use from any thread, except that a
    per-thread default stream belongs to its own thread.
    """

    __slots__ = "__weakref__", "_closed", "_found", "_kept", "_name", "_native", "_spelled"

    _name: str | None  # unset if it wraps an object
    _found: tuple[Queue, Adapter]  # set if the queue is identified at the first use
    _kept: QueueRecord | None  # unset until another library has taken the handle
    _closed: tuple[int | tuple[int, int, int], int, int]  # once closed: the id, device and hash

    def __init__(self, queue: QueueRecord | None, native: NativeT, name: str | None = None) -> None:
        # None before it is identified, after ``close``, and where the owner can close the queue
        self._queue: QueueRecord | None = queue
        self._closable = None
        self._native = native
        self._views = self._plans = _NONE
        self._spelled: int | None = None  # the handle as given, where the queue has another
        if native is None:
            self._name = name

    def _live(self) -> QueueRecord:
        """Return the queue; StreamClosedError, or ScopeError in a wrong thread."""
        queue = self._queue
        if queue is None:
            queue = self._identified()
            if queue is None:
                raise messages.closed(self)
        if queue.thread is not None:
            ordering.check_thread(queue, self)
        return queue

    def _identified(self) -> QueueRecord | None:
        """Return the queue, which any thread may look at; None if the stream is closed."""
        queue = self._queue
        if queue is not None:
            return queue
        closable = self._closable
        if closable is not None:
            if closable.is_open():
                return closable.queue
            queue = closable.queue
            known = queue.device, queue.handle, queue.capture or 0  # the driver must not be asked
            self._closed = queue.id or known, queue.device, hash(known[:2])
            return None
        if not hasattr(self, "_found"):
            return None
        found, adapter = self._found
        queue = identity.identify(found, adapter, self._native)
        self._set_queue(queue, found.handle)
        self._views = {adapter.name: self._native}  # no owner, so the object hides none
        if queue.id is not None:
            wrapped.put(id(self._native), self)
        return queue

    def _set_queue(self, queue: QueueRecord, spelled: int) -> None:
        """Note the queue and the handle as given; a use asks first whether the owner closed it."""
        self._spelled = None if spelled == queue.handle else spelled
        self._closable = None if queue.owner is None else identity.closable(queue)
        self._queue = queue if self._closable is None else None

    @property
    def native(self) -> NativeT:
        """The wrapped object itself; None for an owned stream, or one from a handle."""
        return self._native

    @property
    def handle(self) -> int:
        queue = self._exposed()
        return queue.handle if self._spelled is None else self._spelled

    def __int__(self) -> int:
        return self.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, handle)``, the CUDA stream protocol. Whoever takes it holds this object."""
        self._kept = self._exposed()  # also after ``close``, while this object lives
        return 0, self.handle

    @property
    def dlpack_stream(self) -> int:
        """The int for ``__dlpack__(stream=...)``: 1 for legacy, never 0; 2 for the per-thread one.

        It keeps nothing alive, as DLPack's own ints.
        """
        return self._exposed().handle

    def _exposed(self) -> QueueRecord:
        """Return the queue, noting that any library may learn its handle from here."""
        queue = self._live()
        identity.expose_handle(queue, remembers=True)
        return queue

    @property
    def device(self) -> str:
        return f"cuda:{self.device_id}"

    @property
    def device_id(self) -> int:
        queue = self._identified()
        return self._closed[1] if queue is None else queue.device

    @property
    def id(self) -> int | tuple[int, int, int]:
        queue = self._identified()
        return self._closed[0] if queue is None else identity.public_id(queue)

    @property
    def name(self) -> str | None:
        """The name given to ``new_stream``."""
        return self._name if self._native is None else None

    @property
    def owned(self) -> bool:
        """Whether StreamKit created the stream, and destroys it."""
        queue = self._queue
        if self._native is not None or self._closable is not None:
            return False
        return queue is None or queue.is_owned  # only these close

    @property
    def closed(self) -> bool:
        if self._queue is not None:
            return False
        closable = self._closable
        return not (hasattr(self, "_found") if closable is None else closable.is_open())

    @property
    def is_default(self) -> bool:
        """Whether this is the legacy or the per-thread default stream."""
        return self._live().is_default

    @property
    def is_nonblocking(self) -> bool:
        """Whether its work ignores the implicit order with the legacy default stream.

        Raises:
            CaptureError: The stream was first seen while it captured, and still does.
        """
        queue = self._live()
        if queue.nonblocking is None and not identity.resolve_id(queue):
            raise messages.illegal_in_capture("reading the flags", self, "read them afterwards.")
        return bool(queue.nonblocking)

    @property
    def priority(self) -> int:
        """The effective priority: smaller is more urgent, 0 the default."""
        queue = self._live()
        if queue.handle == LEGACY:
            return 0  # asking would break a blocking stream's capture
        return int(ordering.on(queue, driver.ask, "cuStreamGetPriority", queue.handle))

    @property
    def context(self) -> int:
        """The ``CUcontext`` it belongs to, as an int."""
        return self._live().context

    @property
    def is_capturing(self) -> bool:
        """Whether the stream takes part in a capture, whoever began that."""
        queue = self._live()
        if queue.handle == LEGACY:
            return False  # the legacy stream cannot be captured
        return ordering.capture_of(queue) is not None

    def __reduce__(self) -> NoReturn:
        raise messages.not_copied(self)

    def __eq__(self, other: object) -> bool:
        """Whether both are one queue; a closed stream equals only itself."""
        if self is other:
            return True
        if not isinstance(other, CudaStream):
            return NotImplemented
        one, two = self._identified(), other._identified()
        return one is not None and two is not None and identity.same(one, two)

    def __hash__(self) -> int:
        """Return a hash that all streams of one queue share."""
        queue = self._identified()
        return self._closed[2] if queue is None else hash((queue.device, queue.handle))

    def __repr__(self) -> str:
        try:
            queue = self._identified()
        except errors.StreamKitError:  # any use of the stream raises the error
            found, _ = self._found
            place = f"cuda:{found.device} handle={found.handle:#x}"
            return f"<streamkit.CudaStream {place} unidentified, {_origin(self._native)}>"
        name = f" {self.name!r}" if self.name else ""
        if queue is None:
            return f"<streamkit.CudaStream{name} {self.device} id={self.id} closed>"
        kind = {True: " nonblocking", False: " blocking", None: ""}[queue.nonblocking]
        origin = "owned" if self.owned else _origin(self._native)
        handle = queue.handle if self._spelled is None else self._spelled
        return (
            f"<streamkit.CudaStream{name} {self.device} handle={handle:#x} "
            f"id={queue.id if queue.id is not None else 'capturing'}{kind}, {origin}>"
        )

    @property
    def done(self) -> bool:
        return self._is_done("asking whether work is done")

    def _is_done(self, operation: str) -> bool:
        queue = self._live()
        if ordering.capture_of(queue) is not None:
            raise messages.illegal_in_capture(operation, self, "end the capture first.")
        done = ordering.on(queue, driver.stream_done, queue.handle)
        if done:
            keepalive.drain()
        return done

    def sync(self, timeout: float | None = None, *, spin: bool = False) -> None:
        if timeout is not None:
            timeout = messages.in_seconds(timeout, self)
        done, mark = self._done_and_mark("a sync")
        with trace.note(self, "synchronisation", "sync"):
            waits.block(done, mark, self, timeout, spin=spin)
        keepalive.drain()

    def __await__(self) -> Generator[Any, Any, None]:
        return waits.awaited(*self._done_and_mark("an await"))

    def _done_and_mark(self, operation: str) -> tuple[Callable[[], bool], Callable[[], Point]]:
        """Return functions: one asks whether the queue is idle, one marks its present end."""
        queue = self._live()
        mark = functools.partial(points.mark, queue, self, operation)
        return functools.partial(self._is_done, operation), mark

    def then(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Have a function called when all work submitted so far has run; return its future.

        The functions of one stream are called in their order, in a thread of StreamKit's for that
        stream, with its device current; they may call CUDA and hold up no GPU work.
        Errors that no code asks the future for are reported through ``sys.unraisablehook``. The end
        of the program waits for functions whose work has run, cancels the others and reports that.

        Args:
            fn: Not called if work failed, nor once the future is cancelled.
            *args: What it is called with.
            **kwargs: The same, by name.

        Returns:
            A ``concurrent.futures.Future`` of what ``fn`` returns or raises, or of the DriverError
            of work that failed. A coroutine can ``await`` it.

        Raises:
            CaptureError: The stream captures.
            TypeError: ``fn`` cannot be called, or a call of it would only make a generator or a
                coroutine.
        """
        refusals.check(fn, self, "then")
        queue = self._live()
        what = Submitted(fn, sys._getframe().f_back)  # noqa: SLF001 - a traceback keeps more
        call = functools.partial(fn, *args, **kwargs) if args or kwargs else fn
        calls = queue.calls
        if calls is None:
            from streamkit._streams import then  # noqa: PLC0415 - slow to import, seldom needed

            calls = then.of(queue, self)
        return calls.add(queue, call, what, self)  # type: ignore[no-any-return]

    def record(  # noqa: C901 - the hot path
        self, event: EventLike | None = None, *, timing: bool = False, external: bool = False
    ) -> Event:
        queue = self._queue
        if queue is None:
            queue = self._live()
        if type(event) is CudaEvent and not timing and not external:
            # the steady state: an event of ours again, on the stream that recorded it last
            core, mark, _ = event._last  # noqa: SLF001 - no attribute for users
            if core is not queue.core:
                core, mark, _ = event._prepare(queue)  # noqa: SLF001 - no attribute for users
            if mark is not None:
                if loader.is_forked:
                    raise messages.forked()
                try:
                    core.record(mark)
                except Exception as error:
                    raise events.core_error("cuEventRecord", error) from error
                return event
        if queue.thread is not None:
            ordering.check_thread(queue, self)
        if event is None:
            owned = OwnedEvent(queue.context, timing=timing)
            target = CudaEvent(queue.device, owned, timing=timing)
        elif timing:
            raise ValueError(
                f"timing cannot be changed for {messages.describe(event)}: leave out timing, "
                "or the event."
            )
        else:
            found = find_event(event, self)
            if found is None:
                raise not_an_event(event)
            target = found
        target._record_on(self, queue, external=external)  # noqa: SLF001 - no method for users
        return target

    def wait(self, other: StreamLike | EventLike | WorkLike, *, external: bool = False) -> None:
        queue = self._queue
        if queue is None or queue.thread is not None:
            queue = self._live()
        stream: Any = other
        if type(other) is not CudaStream:
            if type(other) in registry.stream_types:
                ordering.wait_queue(queue, _queue_of(other), external)
                return
            event = find_event(other, self)
            if event is not None:
                held = event._held() if external else None  # noqa: SLF001 - no method for users
                is_near = event._device == queue.device  # noqa: SLF001 - as above
                handle = event.handle if is_near else event._handle_for(self, queue.device)  # noqa: SLF001 - as above
                ordering.wait_event(queue, handle, external=external, held=held)
                return
            library = registry.work_library(other)
            if library is not None:
                self._wait_for_work(library, other, external=external)
                return
            stream = wrap(stream)
        source = stream._queue  # noqa: SLF001 - another of this class
        if source is None or source.thread is not None:
            source = stream._live()
        ordering.wait_queue(queue, source, external)

    def _wait_for_work(self, library: Any, work: object, *, external: bool) -> None:
        """Have the library order the work before this stream, made current for the call.

        Its allocator may remember the stream. If that can die, it waits for one of ours instead.
        """
        if external:
            raise ValueError(
                f"{messages.describe(work)} is done once, and no launch of a graph can wait for it "
                "again: leave out external."
            )
        queue = mine = self._live()
        stream: CudaStream[Any] = self
        captures = ordering.capture_of(queue) is not None
        if identity.owners_of(queue):
            mine = lifetime.create(queue.device, nonblocking=True, priority=0)
            identity.register(mine)
            stream = CudaStream(mine, None)
        if captures:
            ordering.wait_queue(mine, queue)  # which takes another one into the capture
        with contextlib.ExitStack() as scope:
            stream.__enter__(scope, frozenset((library.name,)))
            scope.push(functools.partial(open_scopes.leave, scope))
            found = library.work_of(work).wait()
        ordering.wait_queue(queue, mine)  # nothing if it is this one
        if captures:
            active_captures.keep_in_graphs(work)
            return
        keepalive.keep(queue, self, (work,))
        for memory in () if stream is self else found or ():
            keepalive.keep_while_held(memory.whole, memory.is_held, queue)

    def to(self, library: str) -> Any:
        try:
            return self._views[library]
        except (KeyError, TypeError):  # not made yet, or no name at all
            return self._view(registry.adapter(library))

    def _view(self, served: Adapter, queue: QueueRecord | None = None) -> Any:
        is_here = queue is not None
        queue = queue or self._live()
        closable = self._closable
        views = self._views if closable is None else closable.views
        found = views.get(served.name)
        if found is None:
            found, may_keep = identity.view(queue, self._native, served, is_here)
            if may_keep and queue.thread is None:  # else every use is checked for its thread
                if views is _NONE:  # of two threads here, one has its view looked for again
                    views = self._views = {}
                found = views.setdefault(served.name, found)
        return found

    def submit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function now, with this stream current, so that its launches are queued here.

        On a host stream the call itself is queued. It returns no value: results travel in arrays.

        Args:
            fn: What to call. Its error passes.
            *args: What it is called with.
            **kwargs: The same, by name.

        Raises:
            TypeError: ``fn`` cannot be called, or a call of it only makes a generator or a
                coroutine, of which nothing would run.
        """
        refusals.check(fn, self, "submit")
        with self:
            refusals.check_result(fn(*args, **kwargs), fn)

    def keep(self, *objects: object) -> None:
        """Keep objects alive until all work submitted so far has run; never blocks.

        A later call of StreamKit, or a garbage collection, lets them go; of what thousands of calls
        kept, one call lets go of a part.

        Args:
            *objects: Arrays that the work uses, or anything else.

        Raises:
            CaptureError: The stream captures, and the graph needs them as long as it lives.
        """
        queue = self._queue
        if queue is None:
            queue = self._live()
        keepalive.keep(queue, self, objects)  # checks the thread

    def close(self) -> None:
        """Give up an owned stream; returns at once, also while it is busy.

        The CUDA stream goes when its last view in another library has gone; one that such a
        library's allocator may remember is kept for the next ``new_stream`` of the same kind.
        """
        queue = self._queue
        if queue is None or not self.owned:
            return
        self._closed = identity.public_id(queue), queue.device, hash(self)
        self._views, self._plans = {}, {}
        self._queue = None
        keepalive.drain()


def _origin(native: object) -> str:
    if native is None:
        return "borrowed"
    return f"from {type(native).__module__.partition('.')[0]}"


# -- any library's stream ---------------------------------------------------------------------

wrapped: WeakTable[CudaStream[Any]] = WeakTable()
"""By the id of a library's stream its StreamKit stream, which holds it: the id stays its own."""


@overload
def wrap(obj: HostStream, *, device: object = None) -> HostStream: ...
@overload  # the object's own type decides: a CudaStream is never a ForeignT
def wrap(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    obj: CudaStream[NativeT], *, device: object = None
) -> CudaStream[NativeT]: ...
@overload
def wrap(obj: Stream, *, device: object = None) -> CudaStream[Any] | HostStream: ...
@overload
def wrap(obj: ForeignT, *, device: object = None) -> CudaStream[ForeignT]: ...
def wrap(obj: Any, *, device: object = None) -> Any:  # noqa: C901 - the hot path
    """Return any library's stream behind the ``Stream`` interface; it is borrowed, never destroyed.

    No library is imported. The driver is asked which queue it is; for an external stream of torch
    at its first use, which raises the error of a wrong one. Safe from any thread.

    Args:
        obj: A stream of torch, CuPy, Warp, tvm-ffi, cuda.core, cuda.bindings, numba-cuda or a
            library with an adapter, or any object with ``__cuda_stream__()``. It is kept alive. A
            StreamKit stream comes back as itself.
        device: Where a default stream is whose object names no device; None for the current one.

    Raises:
        UnsupportedStreamError: ``obj`` is anything else, such as an int or None. It is a TypeError
            too.
        StreamClosedError: The stream was closed.
        DeviceMismatchError: The driver disagrees with ``device``.
        NoDeviceError: There is no CUDA here.
    """
    seen = wrapped.get(id(obj))
    if seen is not None and device is None:
        stream = seen()
        if stream is not None and stream._native is obj:  # noqa: SLF001 - the hot path
            return stream
    adapter = registry.stream_types.get(type(obj))
    if adapter is not None:
        found = adapter.extract(obj)
    elif isinstance(obj, (CudaStream, HostStream)):
        if obj.closed:
            raise messages.closed(obj)
        _check_device(obj, device)
        return obj
    else:
        found, adapter = registry.recognise(obj)
    queue = found.record
    if queue is not None and queue.id is not None and device is None:  # known for ever
        stream = queue.latest
        if stream is None or stream._native is not obj:  # noqa: SLF001 - the hot path
            stream = CudaStream(queue, obj)
            if found.handle != queue.handle:
                stream._spelled = found.handle  # noqa: SLF001 - the hot path
            queue.latest = stream  # last, because another thread may use it from here on
            return stream  # kept the second time: then there will be a third
    # The queue can be identified at the first use if the object names its device and owns nothing
    # that would have to be kept alive, and if no watcher waits to hear of it.
    elif (
        found.owner is None
        and device is None
        and found.device is not None
        and found.handle > PER_THREAD
        and not (found.permanent or identity.watchers)
        and (traits := getattr(adapter, "traits", USUAL)).streams_are_values
        and traits.streams_are_fixed
    ):
        stream = CudaStream(None, obj)
        stream._found = found, adapter  # noqa: SLF001 - the hot path
        return stream
    else:
        stream, is_fixed = _wrap_found(found, adapter, obj, device)
        if not is_fixed:
            return stream
    wrapped.put(id(obj), stream)
    return stream


def _queue_of(obj: object) -> QueueRecord:
    """Return the queue of a library's stream for one call, without making a StreamKit stream."""
    seen = wrapped.get(id(obj))
    stream = None if seen is None else seen()
    if stream is not None and stream._native is obj:  # noqa: SLF001 - the hot path
        return stream._live()
    return identity.queue_of(obj)


def _wrap_found(
    found: Queue, adapter: Adapter, obj: Any, device: object
) -> tuple[CudaStream[Any], bool]:
    """Return the stream, and whether its object always means the same queue."""
    is_named = found.device is not None
    if device is not None and not is_named:
        found.device = devices.ordinal_of(device)
    queue = identity.identify(found, adapter, obj)
    stream = CudaStream(None, obj)
    stream._set_queue(queue, found.handle)  # noqa: SLF001 - no method for users
    _check_device(stream, device)
    is_fixed = (
        queue.id is not None
        and queue.thread is None
        and (is_named or not queue.is_default)
        and getattr(adapter, "traits", USUAL).streams_are_fixed
    )
    if is_fixed and queue.permanent:
        queue.latest = stream  # for a library's current stream, which is wrapped again and again
    return stream, is_fixed


def _check_device(stream: CudaStream[Any] | HostStream, device: object) -> None:
    if device is None:
        return
    wanted = devices.parse(device)
    if wanted is None and stream.device_id is None:
        wanted = "cuda"
    if wanted is not None and wanted not in (stream.device_id, stream.device):
        raise messages.device_mismatch(
            stream, f"device={device!r}", "leave the device out: the stream knows its own."
        )
