"""``CudaEvent``: a CUDA event of any library, or our own, and how users come by one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, overload

from streamkit import errors
from streamkit._cuda import devices, driver, events
from streamkit._queues import active_captures, identity, ordering, registry, trace, waits
from streamkit._queues.lifetime import InterprocessEvent, OpenedEvent, OwnedEvent
from streamkit._queues.points import Point
from streamkit._streams.host_event import HostEvent
from streamkit._streams.host_stream import HostStream
from streamkit._support import classes, messages
from streamkit.backends import names
from streamkit.protocols import Event, Events
from streamkit.protocols.adapters import offered
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from streamkit._queues.registry import EventLibrary
    from streamkit._support.tokens import EventToken
    from streamkit.protocols import EventLike, Stream
    from streamkit.protocols.queues import QueueRecord


_INVALID_HANDLE = 400
_NOT_FOR_OTHERS = 1, 400  # CUDA's refusals to export an event that was not made for others

_Last: TypeAlias = "tuple[Any, Any, Callable[[], QueueRecord | None] | None]"
_NEVER: _Last = (None, None, None)


@classes.answer(names.answers("event"))
class CudaEvent(Event, metaclass=classes.Concrete):
    """A CUDA event: owned (``new_event``, ``record``) or borrowed (``wrap_event``).

    Safe to use from any thread. The handle of a borrowed event is read at each use, because
    torch creates its events at their first record.
    """

    __slots__ = (
        "__weakref__", "_device", "_device_known", "_last", "_library", "_native", "_owned",
        "_queue_id", "_timing",
    )  # fmt: skip

    def __init__(
        self,
        device: int | None,
        owned: OwnedEvent | None,
        native: Any = None,
        library: EventLibrary | None = None,
        *,
        timing: bool = False,
    ) -> None:
        self._device_known = device is not None  # else only the driver can refuse a wrong device
        self._device = driver.current_device() if device is None else device
        self._owned = owned  # None if the event is borrowed or closed
        self._native = native
        self._library = library
        self._timing = timing
        # of the last record: the two objects of cuda.core that can repeat it, if any; a function
        # that gives the queue, if the record may be part of a capture
        self._last: _Last = _NEVER
        self._queue_id: int | None = None  # of the last record, unless others can record the event

    @property
    def native(self) -> Any:
        """The wrapped event object, identical; None if StreamKit owns the event."""
        return self._native

    @property
    def handle(self) -> int:
        if self._owned is not None:
            return self._owned.handle
        if self._library is None:
            raise messages.closed(self)
        return self._library.handle(self._native)

    def __cuda_event__(self) -> tuple[int, int]:
        """Return ``(0, handle)``: proposed beside ``__cuda_stream__``, to take any event."""
        return 0, self.handle

    @property
    def device(self) -> str:
        """``"cuda:N"``; where the wrapped library does not say, the device current at wrap."""
        return f"cuda:{self._device}"

    @property
    def device_id(self) -> int:
        """The CUDA ordinal."""
        return self._device

    @property
    def closed(self) -> bool:
        """Whether ``close`` has made this object unusable."""
        return self._owned is None and self._native is None

    @property
    def done(self) -> bool:
        """Whether the last recorded point was reached; True if it was never recorded.

        Raises:
            CaptureError: Inside ``streamkit.capture``, and while the stream captures on which
                StreamKit last recorded the event: asking could break that capture. Other
                libraries' records are not known.
            DriverError: Work before the point failed.
        """
        handle = self.handle
        self._refuse_in_capture()
        return not handle or events.is_done(handle)

    def sync(self, timeout: float | None = None, *, spin: bool = False) -> None:
        if timeout is not None:
            timeout = messages.in_seconds(timeout, self)
        with trace.note(self._queue_id, "synchronisation", "event sync"):
            waits.block(lambda: self.done, self._mark, self, timeout, spin=spin)

    def __await__(self) -> Generator[Any, Any, None]:
        return waits.awaited(lambda: self.done, self._mark)

    def _mark(self) -> Point:
        return Point(self.handle, self._held(), None)  # ``close`` does not end the wait

    def _refuse_in_capture(self) -> None:
        if active_captures.one_goes_on_here():
            raise errors.CaptureError(
                f"asking {self!r} inside a capture could invalidate it, so it was not tried: ask "
                "after the block."
            )
        find = self._last[2]
        queue = None if find is None else find()
        if queue is not None and queue.owner is not None and not identity.is_alive(queue):
            queue = None  # the owner has closed the queue, whose handle may be another stream's
        if queue is not None and ordering.capture_of(queue) is not None:
            raise errors.CaptureError(
                f"{self!r} was last recorded on a stream that captures: asking it could "
                "invalidate that capture, so it was not tried. Ask when the capture has ended."
            )

    def __sub__(self, start: object) -> float:
        if not isinstance(start, CudaEvent):
            return NotImplemented
        for event in (start, self):
            if event._owned is not None and not event._timing:
                raise ValueError(f"{event!r} measures no time: record it with timing=True")
            if not event.done:
                raise ValueError(f"{event!r} was not reached yet: call its sync() first")
        try:
            return float(driver.ask("cuEventElapsedTime", start.handle, self.handle))
        except errors.DriverError as error:
            if error.code != _INVALID_HANDLE:
                raise
            raise ValueError(
                f"{start!r} and {self!r} cannot be compared: both must have been recorded, on "
                "streams of one device, with timing=True"
            ) from error

    def to(self, library: str) -> Any:
        handle = self.handle
        adapter = registry.adapter(library)
        if self._library is not None and adapter is self._library.adapter:
            return self._native
        borrow_event = offered(adapter, Events.borrow_event)
        if borrow_event is None:
            raise messages.library_cannot_take(
                adapter.name, "an event made elsewhere", "let the stream wait: s.wait(event)"
            )
        # the library's object holds the owner of the event, as this object can be closed before
        return borrow_event(handle, self._device, self._held())

    def export(self) -> EventToken:
        """Return the token for ``streamkit.processes.open_event`` in another process.

        One record, one message: a wait holds for the last record that was made when the wait was
        queued. So record the event first, then tell the other process, and record it again only
        when that process has queued its wait. The token stays valid while this event lives.

        Raises:
            ValueError: The event was not made for others, by ``new_event(interprocess=True)`` or
                by its library's like, or a library's event was never recorded.
            StreamClosedError: The event was closed.
        """
        # for few programs
        from streamkit._support import living_processes, tokens  # noqa: PLC0415

        handle, sent = self.handle, b""
        try:
            if handle:
                sent = events.exported(driver.primary_context(self._device), handle)
        except errors.DriverError as error:
            if error.code not in _NOT_FOR_OTHERS:
                raise
        if not sent:
            raise ValueError(
                f"{self!r} cannot be opened in another process: make one with "
                "streamkit.new_event(interprocess=True). A library's own may have to be recorded "
                "first."
            )
        exported[sent] = self
        uuid = devices.uuid_of(self._device)
        return tokens.EventToken(living_processes.own_name(), uuid, sent).sealed()

    def close(self) -> None:
        self._owned = None
        self._last = None, None, self._last[2]

    def _prepare(self, queue: QueueRecord) -> _Last:
        """Note the queue, and return the objects of cuda.core for a quick record on it.

        None and None without such objects. To ask whether the queue captures would take longer.
        """
        owned, core = self._owned, queue.core
        is_default = queue.handle <= PER_THREAD  # such a handle needs its context
        if core is None or owned is None or owned.serves != queue.context or is_default:
            return _NEVER
        self._queue_id = queue.id
        self._last = last = core, owned.core, queue.seen_by_events or seen_by_events(queue)
        if self._owned is None:  # another thread has closed it meanwhile
            self.close()
        return last

    def _record_on(self, stream: Stream, queue: QueueRecord, *, external: bool) -> None:
        if self._device_known and self._device != queue.device:
            raise messages.device_mismatch(
                self, stream, "an event is recorded on streams of its own device only."
            )
        library = self._library
        if library is not None and library.record is not None:
            name = library.adapter.name
            if external:
                raise ValueError(
                    f"{self.native!r} is recorded by {name}, which has no external "
                    "records. Give an event of StreamKit's: s.record(external=True)"
                )
            library.record(self._native, stream.to(name))
        elif self._owned is not None and not external:
            ordering.mark(self._owned, queue)
        else:
            ordering.record(self.handle, queue, external=external)
        if external:
            active_captures.keep_in_graphs(self._held())
            self._queue_id = None
            return  # a launch of the graph makes that record, so the last record is as before
        self._queue_id = queue.id if self._owned is not None else None
        captures = queue.handle != LEGACY and ordering.capture_of(queue) is not None
        self._last = None, None, weakref.ref(queue) if captures else None

    def _handle_for(self, stream: Stream, device: int) -> int:
        """Return the handle for a stream of another device; an opened event has one for each.

        DeviceMismatchError for an event that this process made for others: a wait by another
        device's stream would end the process, in CUDA's driver.
        """
        owned = self._owned
        if isinstance(owned, OpenedEvent):
            return owned.handle_on(device)
        if isinstance(owned, InterprocessEvent):
            raise messages.device_mismatch(
                self,
                stream,
                "in the process that made it for others, only streams of its own device can wait "
                "for an interprocess event. Let one of them wait for it, and then wait for that "
                "stream.",
            )
        return self.handle

    def _held(self) -> object:
        """Return the object with which the handle dies."""
        return self._owned or self._native

    def __reduce__(self) -> NoReturn:
        raise messages.not_copied(self)

    def __repr__(self) -> str:
        kind = "closed" if self.closed else "owned" if self._owned else type(self._native).__name__
        timing = " timing" if self._timing else ""
        return f"<streamkit.CudaEvent cuda:{self._device} {kind}{timing}>"


exported: weakref.WeakValueDictionary[bytes, CudaEvent] = weakref.WeakValueDictionary()
"""The events that other processes can open, by the exported bytes in their tokens."""


def seen_by_events(queue: QueueRecord) -> Callable[[], QueueRecord | None]:
    """Return a function that gives the queue of a quick record, which may have been captured.

    The function gives None if no one keeps the handle valid.
    """
    is_valid = queue.owner is not None or queue.is_owned or queue.permanent
    found = queue.seen_by_events = weakref.ref(queue) if is_valid else lambda: None
    return found


def find_event(obj: object, stream: object) -> CudaEvent | None:
    """Return any library's event for an operation of ``stream``; None for any other object.

    DeviceMismatchError if ``obj`` is a stream or an event of the host.
    """
    if isinstance(obj, CudaEvent):
        return obj
    if isinstance(obj, (HostStream, HostEvent)):
        raise messages.device_mismatch(
            stream, obj, "a CUDA stream cannot wait for the host. Sync the host stream first."
        )
    library = registry.event_library(obj)
    if library is None:
        return None
    device = None if library.device is None else library.device(obj)
    return CudaEvent(device, None, obj, library)


def not_an_event(obj: object) -> errors.UnsupportedStreamError:
    """Return the error for an object that is no library's event."""
    return errors.UnsupportedStreamError(
        f"{messages.describe(obj)} is not an event of a library that StreamKit knows. A fresh one "
        "comes from streamkit.new_event() or s.record()."
    )


# -- the functions users call -----------------------------------------------------------------


def wrap_event(obj: EventLike) -> CudaEvent | HostEvent:
    """Return any library's event behind the ``Event`` interface; it is borrowed, never destroyed.

    Safe from any thread.

    Args:
        obj: The event. Its handle is read at each use, because torch creates an event at its first
            record.

    Raises:
        UnsupportedStreamError: ``obj`` is not an event. It is a TypeError too.
        StreamClosedError: It is an event of StreamKit's that was closed.
    """
    if isinstance(obj, (CudaEvent, HostEvent)):
        if obj.closed:
            raise messages.closed(obj)
        return obj
    event = None if isinstance(obj, (type, HostStream)) else find_event(obj, obj)
    if event is None:
        raise not_an_event(obj)
    return event


@overload
def new_event(*, interprocess: Literal[True], device: object = None) -> CudaEvent: ...
@overload
def new_event(
    *, device: object = None, timing: bool = False, interprocess: bool = False
) -> CudaEvent | HostEvent: ...
def new_event(
    *, device: object = None, timing: bool = False, interprocess: bool = False
) -> CudaEvent | HostEvent:
    """Return a fresh event, never recorded.

    Args:
        device: As in ``new_stream``: the event can be recorded on that device's streams.
        timing: Let it measure time, for ``end - start``.
        interprocess: Let other processes open it, with ``event.export()``.

    Raises:
        ValueError: ``device`` is not a device; or both ``timing`` and ``interprocess``, which CUDA
            does not have in one event.
        NoDeviceError: A CUDA device is named and absent.
        UnsupportedStreamError: ``interprocess`` on the host, whose events are this process's.

    >>> s, start = sk.new_stream("cpu"), sk.new_event(device="cpu", timing=True)
    >>> _ = s.record(start)
    >>> end = s.record(timing=True)
    >>> s.sync()
    >>> end - start < 1000
    True
    """
    if timing and interprocess:
        raise ValueError("an interprocess event measures no time: leave out timing.")
    if devices.on_host(device):
        if interprocess:
            raise errors.UnsupportedStreamError(
                "an event of the host belongs to its process: other processes open CUDA events "
                "only. Sync the stream, then send a message."
            )
        return HostEvent(timing=bool(timing))
    ordinal = devices.ordinal_or_current(device)
    context = driver.primary_context(ordinal)
    if interprocess:
        handle = events.create(context, timing=False, interprocess=True)
        return CudaEvent(ordinal, InterprocessEvent(handle))
    owned = OwnedEvent(context, timing=bool(timing))
    return CudaEvent(ordinal, owned, timing=bool(timing))
