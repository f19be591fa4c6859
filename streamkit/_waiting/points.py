"""Points of CUDA queues that the host waits for."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from streamkit._base import messages
from streamkit._cuda import driver, events
from streamkit._queues import ordering
from streamkit._queues.lifetime import PointEvent

if TYPE_CHECKING:
    from streamkit._base.queue import QueueRecord

    Reached = list[tuple[Any, Exception | None]]


class Listener(Protocol):
    """What the dispatcher tells of points: all that one look has found, at once, in their order."""

    @abstractmethod
    def tell(self, reached: Reached) -> object:
        """Take the waiter of each point that is reached, with the error of its queue or None.

        It is called in the dispatcher's thread, must not block, and runs no code of the user.
        """

    @abstractmethod
    def stir(self) -> object:
        """Be ready, because ``tell`` may follow soon; the same rules apply."""


class Point:
    """An event that the host waits for. Whoever holds the point holds what destroys the event.

    Points of one ``queue`` are reached in the order in which they are made; None if unknown.
    """

    __slots__ = ("event", "keeps", "listener", "queue", "waiter")

    def __init__(self, event: int, keeps: object, queue: QueueRecord | None) -> None:
        self.event, self.keeps, self.queue = event, keeps, queue
        self.listener: Listener | None = None  # None if no one waits any more
        self.waiter: Any = None

    def drop(self) -> None:
        """Forget the listener, which is not told then."""
        self.listener = self.waiter = None


def mark(queue: QueueRecord, what: object, operation: str) -> Point:
    """Mark the queue's present end; CaptureError if it captures."""
    event = PointEvent(queue.context)
    ordering.on(queue, _record, event, queue, what, operation)
    event.use_again(queue.context)
    return Point(event.handle, event, queue.first_record())


def _record(event: PointEvent, queue: QueueRecord, what: object, operation: str) -> None:
    handle = queue.handle
    if driver.capture_id(handle) is None:
        events.record(event.handle, handle)
        if driver.capture_id(handle) is None:  # else a capture has begun, and may have the event
            return
    raise messages.illegal_in_capture(operation, what, "end the capture first.")
