"""The end of streams and events that StreamKit created, and of no others.

Events also wait here to be used again, see ``take_event``.

An owned stream lives as long as its record, which every view of the stream holds. With the record
the CUDA stream is destroyed, or parked for ``new_stream`` if a library whose allocator remembers
handles has seen it: a destroyed handle can come back as another stream, and such an allocator
would take the two for one.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import driver, events
from streamkit.protocols.queues import QueueRecord

if TYPE_CHECKING:
    from collections.abc import Callable

_never_destroyed: list[Any] = []
_parked: defaultdict[tuple[int, bool, int], deque[int]] = defaultdict(deque)


class OwnedQueue(QueueRecord):
    """The queue of a stream created here, which is destroyed or parked with the last reference."""

    is_owned = True
    remembered: bool = False
    """Whether a library that remembers handles has seen it."""

    def __init__(self, handle: int, device: int, priority: int) -> None:
        super().__init__(handle, device)
        self.priority = priority

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing() or not driver.is_usable():  # an argument, as the module may be gone
            return
        if self.remembered:
            # a broken capture of a library's makes every wait for the device illegal
            with contextlib.suppress(errors.DriverError):
                driver.end_broken_capture(self.handle)
            # a deque, because its append needs no lock: this can run inside any other code
            _parked[self.device, bool(self.nonblocking), self.priority].append(self.handle)
            return
        # this fails in a broken context, which every other call reports
        with contextlib.suppress(errors.DriverError):
            driver.destroy_stream(self.handle)


def create(device: int, *, nonblocking: bool, priority: int) -> OwnedQueue:
    """Return the queue of an idle parked stream with these properties, or of a new stream."""
    parked = _unpark(device, nonblocking=nonblocking, priority=priority)
    handle = parked or driver.create_stream(device, nonblocking=nonblocking, priority=priority)
    queue = OwnedQueue(handle, device, priority)
    queue.nonblocking = nonblocking
    queue.remembered = queue.handle_exposed = parked is not None
    return queue


def _unpark(device: int, *, nonblocking: bool, priority: int) -> int | None:
    parked = _parked[device, nonblocking, priority]
    for _ in range(len(parked)):
        try:
            handle = parked.popleft()
        except IndexError:  # another thread took the last one
            return None
        idle = False
        try:
            driver.end_broken_capture(handle)  # the capture may have been whole at the parking
            idle = driver.capture_id(handle) is None and driver.stream_done(handle)
        finally:
            if not idle:
                parked.append(handle)
        if idle:
            return handle
    return None


class OwnedEvent:
    """A CUDA event created here, of one context, which is destroyed with the last reference."""

    handle: int = 0  # until it is made: an error can leave the object half made
    core: Any = None
    context: int = 0  # until it is known
    serves: int = 0
    """The context whose streams record it through ``core``; 0 for none."""
    spare: list[OwnedEvent] | None = None
    """The ``spare_events`` that the event joins at its end, instead of being destroyed."""

    def __init__(self, context: int, *, timing: bool = False, core: bool = True) -> None:
        self.context = context
        if core:
            handle, self.core = events.create_core(context, timing=timing)
            self.serves = 0 if self.core is None else context
        else:
            handle = events.create(context, timing=timing)
        self.handle = handle

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing() or not self.handle:
            return
        if self.spare is not None and len(self.spare) < _MOST_SPARE and driver.is_usable():
            # another object, because Python calls ``__del__`` of an object only once
            twin, spare = OwnedEvent.__new__(OwnedEvent), vars(self).pop("spare")
            vars(twin).update(vars(self))
            # events are taken from the end, and those without cuda.core's object slow a wait
            spare.insert(len(spare) if twin.serves else 0, twin)
        elif self.core is not None:
            if not driver.is_usable():  # the end of ``core`` calls the driver, also in a child
                _never_destroyed.append(self.core)
        elif driver.is_usable():
            # this fails in a broken context, which every other call reports
            with contextlib.suppress(errors.DriverError):
                if self.exists():
                    events.destroy(self.handle)

    def exists(self) -> bool:
        """Whether the driver surely has the event: with a context that ends its events end.

        A primary one stays. Of another, if it is current, the driver says whether it has ended.
        """
        if self.context in driver.device_of or not self.context:
            return True
        return driver.current_context() == self.context and driver.current_device() >= 0


class InterprocessEvent(OwnedEvent):
    """An event that another process can open, or has made, without an object of cuda.core's."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class OpenedEvent(InterprocessEvent):
    """An event of another process, opened once for each device whose streams wait for the event.

    A wait by a stream of another device than that of the opening crashes CUDA's driver.
    """

    def __init__(self, device: int, open_on: Callable[[int], InterprocessEvent]) -> None:
        first = open_on(device)
        super().__init__(first.handle)
        first.handle = 0  # this object destroys the event
        self._device, self._open_on = device, open_on
        self._others: dict[int, InterprocessEvent] = {}

    def handle_on(self, device: int) -> int:
        """Return the handle for streams of the device."""
        if device == self._device:
            return self.handle
        found = self._others.get(device)
        if found is None:
            found = self._others.setdefault(device, self._open_on(device))
        return found.handle


# -- spare events -------------------------------------------------------------------------------

_MOST_SPARE = 1_024  # of one kind, in one context
_spare_events: defaultdict[int, list[OwnedEvent]] = defaultdict(list)


def spare_events(queue: QueueRecord) -> list[OwnedEvent]:
    """Return the list of spare events that can be recorded on the queue; all its records share it.

    All queues of a primary context share one. Another context may come to an end, and its events
    with it, so there each queue has its own, which ends with the queue.
    """
    if queue.wait_events is None:
        first = queue.first_record()
        if first.wait_events is None:
            is_primary = queue.context in driver.device_of
            first.wait_events = _spare_events[queue.context] if is_primary else []
        queue.wait_events = first.wait_events
    return queue.wait_events  # type: ignore[no-any-return]


def take_event(queue: QueueRecord, *, core: bool = True) -> OwnedEvent:
    """Return an event that the caller records on the queue before anything else.

    Only the caller has the event until ``give_back``: a record by another thread meanwhile could be
    part of a capture, and whoever waits for the event would be taken into that. Its last record may
    lie ahead, or in a capture that goes on, because a new record replaces the last one and leaves
    queued waits alone. ``pop`` and ``append`` of a list are atomic, so that no lock is needed.

    A new one has no object of cuda.core's if ``core`` is False and cuda.core is not imported,
    because that import takes longer than a wait should.
    """
    spare: list[OwnedEvent] | None = queue.wait_events
    try:
        event = (spare_events(queue) if spare is None else spare).pop()
    except IndexError:  # no event is spare
        return OwnedEvent(queue.context, core=core or "cuda.core" in sys.modules)
    if core and not event.serves and event.context in driver.device_of:
        return OwnedEvent(queue.context)  # without the object that it lacks a wait is slow
    return event


def give_back(event: OwnedEvent, spare: list[OwnedEvent]) -> None:
    """Put an event with no more users into the ``spare_events`` of a queue of its context.

    An event of a captured graph must never come here: each launch waits for its last record.
    """
    if len(spare) < _MOST_SPARE:
        # events are taken from the end, and those without cuda.core's object slow a wait
        spare.insert(len(spare) if event.serves else 0, event)
