"""Locks that a forked child finds free, and what else such a child does first."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(call: Callable[[], object]) -> None:
    """Have ``call`` called in each child that this process forks, before other code runs there.

    Where no process can fork, as on Windows, it is never called.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def new_lock() -> threading.RLock:
    """Return a lock that a garbage collection inside it may take again.

    It is made anew in a forked child, which lacks the thread that may have held it.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


_locks: WeakSet[threading.RLock] = WeakSet()  # one handler for all, as none can be taken back


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as threading does; Windows has no such method


in_child(_free_locks)


def new_turn_lock() -> list[object]:
    """Return a lock for inner loops, at a third of the cost of ``new_lock``.

    It is a list of threads' tokens, of which the first holds it. A thread with the token ``me``
    takes and releases it so:

        try:
            lock.insert(0, me) if lock and lock[0] is me else lock.append(me)
            if lock[0] is not me:
                wait_for_turn(lock, me)
            ...
        finally:
            lock.remove(me)

    A list's append and remove are atomic, with and without a GIL. An interrupt comes after a call,
    so never between ``try`` and the first call in it, nor between ``finally`` and its ``remove``.
    """
    lock: list[object] = []
    in_child(lock.clear)
    return lock


def wait_for_turn(lock: list[object], me: object) -> None:
    """Return when ``me`` is first; each thread holds the lock for microseconds."""
    while lock[0] is not me:
        time.sleep(0)
