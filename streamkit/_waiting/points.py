"""Points of CUDA queues that the host waits for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from streamkit._cuda import events
from streamkit._queues import ordering
from streamkit._queues.lifetime import PointEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit._base.queue import QueueRecord

    Tell = Callable[[Exception | None], object]


class Point:
    """An event that is waited for. Whoever holds the point holds what destroys the event.

    Points of one ``queue`` are reached in the order in which they are made; None if unknown.
    """

    __slots__ = ("_tell", "event", "keeps", "queue", "since")

    def __init__(self, event: int, keeps: object, queue: QueueRecord | None) -> None:
        self.event, self.keeps, self.queue = event, keeps, queue
        self._tell: Tell | None = None
        self.since = 0.0

    def is_reached(self) -> bool:
        """Whether it is reached; an error on its queue raises."""
        return events.is_done(self.event)

    # -- for one who is told ------------------------------------------------------------------

    def begin(self, tell: Tell) -> None:
        """Note whom ``finish`` tells, and since when."""
        self._tell, self.since = tell, time.monotonic()

    @property
    def is_dropped(self) -> bool:
        """Whether nobody is to be told."""
        return self._tell is None

    def drop(self) -> None:
        """Forget whom to tell."""
        self._tell = None

    def finish(self, error: Exception | None) -> None:
        """Tell that it is reached, or the error; once."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(error)


def mark(queue: QueueRecord, check: Callable[[], object]) -> Point:
    """Mark the queue's present end. ``check`` raises while the queue captures."""
    event = PointEvent(queue.context)
    with ordering.on(queue):
        events.record(event.handle, queue.handle)
        check()  # a capture may have begun since the last time, and has the event then
    event.use_again(queue.context)
    return Point(event.handle, event, queue.first_record())
