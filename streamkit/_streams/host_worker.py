"""The worker thread of a host stream's queue, and how long it waits for items, also at a fork."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from streamkit._support import workers
from streamkit._support.locks import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

_LINGER = 0.1  # seconds that a worker waits for an item, as the start of a thread costs much
_END = 0.1  # seconds within which a worker surely ends
_linger = _LINGER  # 0 while this process forks
_idle: set[Worker] = set()  # the threads that wait for an item


class Worker(workers.Thread):
    """The thread of a queue, which does not keep the queue alive while it has nothing to run."""

    def __init__(self, name: str, find: Callable[[], Callable[..., bool] | None]) -> None:
        """``find`` gives the queue's ``work`` while the queue lives."""
        super().__init__(name=name, daemon=True)
        self.bell = Bell()  # rings when an item has come, or the queue is gone
        self._find = find

    def start(self) -> None:
        if sys.is_finalizing():  # Python 3.11 would wait for ever; newer ones refuse it
            raise RuntimeError("no thread can be started at the end of the interpreter")
        super().start()

    def run(self) -> None:
        work, ends = self._find(), False
        while work is not None and work(self, ends=ends):
            work = None
            _idle.add(self)
            ends = not self.bell.wait(_linger)
            _idle.discard(self)
            work = self._find()
        work = None  # the frames of an error hold this frame


def _before_fork() -> None:
    """End the workers that wait for an item, because Python warns of a fork beside threads."""
    global _linger  # noqa: PLW0603 - one for the process
    _linger = 0
    for worker in _idle.copy():  # also of dropped streams; a WeakSet could change meanwhile
        worker.bell.ring()
        worker.join(_END)


def _after_fork() -> None:
    global _linger  # noqa: PLW0603 - one for the process
    _linger = _LINGER


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
