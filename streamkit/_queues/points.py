"""Points of CUDA queues that the host waits for."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from streamkit._queues import ordering
from streamkit._queues.lifetime import take_event
from streamkit._support import messages
from streamkit._support.locks import new_lock

if TYPE_CHECKING:
    from streamkit.protocols.queues import QueueRecord

    Reached = list[tuple[Any, Exception | None]]


class Listener(Protocol):
    """The receiver of reached points: all that one look has found, at once, in their order."""

    @abstractmethod
    def tell(self, reached: Reached) -> object:
        """Take the waiter of each reached point, with the error of its queue or None.

        The dispatcher's thread calls this. It must not block, and runs no code of the user.
        """

    @abstractmethod
    def stir(self) -> object:
        """Be ready, because ``tell`` may follow soon; the same rules apply."""


_numbers = itertools.count()


class Point:
    """An event that the host waits for. The point ``keeps`` the object that destroys the event.

    Points of one ``queue``, None if unknown, are reached in the order of their numbers.
    """

    __slots__ = ("event", "keeps", "listener", "number", "queue", "waiter")

    def __init__(self, event: int, keeps: Any, queue: QueueRecord | None, number: int = 0) -> None:
        self.event, self.keeps, self.queue, self.number = event, keeps, queue, number
        self.listener: Listener | None = None  # None if no one waits any more
        self.waiter: Any = None

    def drop(self) -> None:
        """Forget the listener, so that it is not told."""
        self.listener = self.waiter = None


def mark(queue: QueueRecord, what: object, operation: str) -> Point:
    """Mark the queue's present end; CaptureError if the queue captures."""
    event, first = take_event(queue, core=False), queue.first_record()
    turn = first.marking or first.__dict__.setdefault("marking", new_lock())  # atomic
    # a record lets other threads run, which could record later and take an earlier number
    with turn:
        if not ordering.mark_outside_capture(event, queue):
            raise messages.illegal_in_capture(operation, what, "end the capture first.")
        number = next(_numbers)
    event.spare = queue.wait_events  # to which the event returns with the point
    return Point(event.handle, event, first, number)
