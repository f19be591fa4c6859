"""Locks that a forked child finds free, though the thread that held one is not in the child."""

from __future__ import annotations

import threading
import time

from streamkit._base import forks


def new_lock() -> threading.RLock:
    """Return a lock that a garbage collection inside it may take again.

    It is made anew in a forked child, as the standard library does with its own.
    """
    lock = threading.RLock()
    forks.in_child(lambda: lock._at_fork_reinit())  # type: ignore[attr-defined]  # noqa: SLF001, PLW0108 - as threading does; Windows has no such method
    return lock


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
    forks.in_child(lock.clear)
    return lock


def wait_for_turn(lock: list[object], me: object) -> None:
    """Return when ``me`` is first; each thread holds the lock for microseconds."""
    while lock[0] is not me:
        time.sleep(0)
