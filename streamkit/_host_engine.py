"""What can run the work of host queues in the place of worker threads."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading

    from streamkit._host_queue import Item, WorkQueue


class Engine(Protocol):
    """What runs the items of all queues instead of worker threads. Called from any thread."""

    @abstractmethod
    def put(self, queue: WorkQueue, item: Item) -> None:
        """Take a queue's next item. Never runs it."""

    @abstractmethod
    def ended(self, queue: WorkQueue) -> None:
        """Know that the queue's running item has ended."""

    @abstractmethod
    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Run items until one of them sets the event; False after ``timeout`` seconds."""

    @abstractmethod
    def polled(self) -> None:
        """Know that somebody asks, without waiting, whether something is done."""

    @abstractmethod
    def finish(self) -> None:
        """Run all items there are."""
