"""The runs of a graph that were queued: what tells that the last one has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit._base import messages
from streamkit._base.queue import PER_THREAD
from streamkit._cuda import driver, events
from streamkit._queues import identity, ordering
from streamkit._queues.lifetime import OwnedEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit._base.queue import QueueRecord


class Runs:
    """The runs of one executable graph. One thread at a time uses it.

    CUDA runs them one after another, whatever their streams: when the last one has ended, all have.
    On a queue that lives as long as its record, an event is recorded only when the end of the runs
    is looked for. On any other queue each run has its event, because its handle may be gone then.
    """

    def __init__(self) -> None:
        # where the last run is; several only after an error, which can leave a run behind
        self._points: tuple[QueueRecord | OwnedEvent, ...] = ()
        self._number: int | tuple[int, int, int] | None = None  # the id of the last queue
        self._spare: OwnedEvent | None = None  # that of the run before the last

    @property
    def steady(self) -> QueueRecord | None:
        """The queue of the last run, if another run there needs nothing noted."""
        last = self._points[-1] if len(self._points) == 1 else None
        return None if isinstance(last, OwnedEvent) else last

    def add(self, queue: QueueRecord, run: Callable[[], None], *, in_order: bool) -> None:
        """Queue a run by calling ``run``.

        ``in_order`` says that a library does something on the stream before each run: a run on
        another queue then waits for the last one first, and each run has an event.
        """
        before = self._points
        number = identity.public_id(queue)  # one first seen in a capture has its own by now
        if in_order and number != self._number:
            self.hold(queue)
        if not in_order and _lives_with_its_record(queue):
            self._points = (*before, queue)
            run()
            self._points = (queue,)
        else:
            event, self._spare = self._spare or OwnedEvent(queue.context), None
            try:
                run()
            finally:  # an interrupt can come when the run is queued already
                ordering.mark(event, queue)
                self._points = (*before, event)
            self._points = (event,)
            if before and isinstance(before[-1], OwnedEvent):
                self._spare = before[-1]
        self._number = number

    def hold(self, queue: QueueRecord) -> None:
        """Hold the queue's later work until the runs so far have ended."""
        for point in self._points:
            event = point if isinstance(point, OwnedEvent) else _marked(point)
            if event is None:
                raise messages.illegal_in_capture("a launch that follows", point, "end it first.")
            ordering.wait_event(queue, event.handle)

    def have_ended(self) -> bool:
        """Whether all runs have ended; False also while a queue captures and cannot be asked.

        The thread must be inside ``beside_captures``.
        """
        for point in self._points:
            if isinstance(point, OwnedEvent):
                has_ended = events.query(point.handle)
            else:
                has_ended = ordering.capture_of(point) is None and driver.query(point.handle)
                event = None if has_ended else _marked(point)
                if event is not None:
                    self._points = tuple(event if one is point else one for one in self._points)
            if not has_ended:
                return False
        self._points = ()
        return True


def _lives_with_its_record(queue: QueueRecord) -> bool:
    """Whether the handle is valid as long as its record is held."""
    return queue.handle > PER_THREAD and any(
        record.is_owned or record.permanent or record.dies_with_owner
        for record in queue.all_records()
    )


def _marked(queue: QueueRecord) -> OwnedEvent | None:
    """Return an event after the queue's work so far, None while it captures."""
    if ordering.capture_of(queue) is not None:
        return None
    event = OwnedEvent(queue.context)
    ordering.mark(event, queue)
    # another thread may have begun one meanwhile, and the event stands for a place in it
    return event if ordering.capture_of(queue) is None else None
