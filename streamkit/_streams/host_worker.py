"""The worker thread of a host stream's queue: how long it waits for items, also at a fork."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

from streamkit._support import locks, workers
from streamkit._support.locks import Bell

if TYPE_CHECKING:
    from typing import Protocol

    class HasItems(Protocol):
        """The queue whose items a worker runs."""

        name: str

        def work(self, worker: Worker, *, ends: bool) -> bool:
            """Run all items in the worker's thread; whether it is to wait for others."""
            ...


_LINGER = 10e-3  # seconds that a worker waits for an item, two turns of Python's threads
_END = 0.1  # seconds within which a worker surely ends
_linger = _LINGER  # none while this process forks
_idle: set[Worker] = set()  # the threads that wait for an item


class Worker(workers.Thread):
    """The thread of a queue, which does not keep the queue alive while it has nothing to run."""

    def __init__(self, queue: HasItems) -> None:
        super().__init__(name=queue.name, daemon=True)
        self.bell = Bell()  # rings when an item has come, or the queue is gone
        self._find = weakref.ref(queue)

    def start(self) -> None:
        if sys.is_finalizing():  # Python 3.11 would wait for ever; newer ones refuse it
            raise RuntimeError("no thread can be started at the end of the interpreter")
        super().start()

    def run(self) -> None:
        queue, ends = self._find(), False
        while queue is not None and queue.work(self, ends=ends):
            queue = None
            _idle.add(self)
            ends = not self.bell.wait(_linger)
            _idle.discard(self)
            queue = self._find()
        queue = None  # the frames of an error hold this one


def _before_fork() -> None:
    """End the workers that wait for an item, because Python warns of a fork beside threads."""
    global _linger  # noqa: PLW0603 - one for the process
    _linger = 0
    for worker in _idle.copy():  # of dropped streams too; a WeakSet could change meanwhile
        worker.bell.ring()
        worker.join(_END)


def _after_fork() -> None:
    global _linger  # noqa: PLW0603 - one for the process
    _linger = _LINGER


def _after_fork_in_child() -> None:
    _after_fork()
    _idle.clear()


locks.in_child(_after_fork_in_child)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
