"""The queue behind a host stream: items in order, on one worker thread while there are any."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from streamkit._host_event import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

    Item = Callable[[], None]


class Turn:
    """An item that another thread runs: it begins when the queue gets there, and is ended."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self.begun, self._release, self._ended = threading.Event(), threading.Event(), ended

    def __call__(self) -> None:
        """Let the other thread run, until it ends the turn."""
        self.begun.set()
        self._release.wait()

    def end(self) -> None:
        """Let the queue go on; nothing the second time."""
        if not self._release.is_set():
            self._ended()
            self._release.set()


class WorkQueue:
    """Items run one after the other, by a thread that starts with the first and ends when idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: deque[Item] = deque()
        self._lock = threading.Lock()
        self._working = False  # whether there is a worker
        self._pending = 0  # items that have not ended

    @property
    def idle(self) -> bool:
        """Whether every item has ended."""
        return not self._pending

    def put(self, item: Item) -> None:
        """Queue an item; RuntimeError if no thread can be started."""
        with self._lock:
            self._pending += 1
            self._items.append(item)
            if self._working:
                return
            self._working = True
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:  # take the item back, or it would never run
            with self._lock:
                self._working = False
                self._pending -= 1
                self._items.remove(item)
            raise

    def turn(self) -> Turn:
        """Queue a turn of the calling thread, and wait for it to begin."""
        turn = Turn(self._end_item)
        self.put(turn)
        try:
            turn.begun.wait()
        except BaseException:  # an interrupted wait must not leave the queue held for ever
            turn.end()
            raise
        return turn

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._items:
                    self._working = False
                    return
                item = self._items.popleft()
            if isinstance(item, Turn):  # it ends its item itself, before its thread goes on
                item()
            elif isinstance(item, Mark):  # before anybody can see that it is reached
                self._end_item()
                item()
            else:
                item()
                self._end_item()

    def _end_item(self) -> None:
        with self._lock:
            self._pending -= 1
