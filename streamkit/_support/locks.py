"""Locks that a forked child finds free, and a bell and a latch that wake a thread."""

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

    A forked child, which lacks the thread that may have held the lock, finds it free.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


_locks: WeakSet[threading.RLock] = WeakSet()  # one handler for all, as none can be taken back
_process = os.getpid()


def is_early_child() -> bool:
    """Whether this is a forked child whose handlers have not run: its locks may be held for ever.

    Before Python runs them, it removes the parent's other threads, with the objects only they held.
    """
    return os.getpid() != _process


def _free_locks() -> None:
    global _process  # noqa: PLW0603 - there is one
    _process = os.getpid()
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as threading does; Windows has no such method


in_child(_free_locks)


def new_turn_lock() -> list[object]:
    """Return a lock for inner loops, at a third of the cost of ``new_lock``.

    It is a list of threads' tokens, of which the first holds it. A thread with the token ``me``
    takes and releases it so:

        try:
            lock.insert(0, me) if lock and lock[:1] == [me] else lock.append(me)
            if lock[0] is not me:
                wait_for_turn(lock, me)
            ...
        finally:
            lock.remove(me)

    A list's append and remove are atomic, with and without a GIL. So is the slice, but not
    ``lock[0]``, whose item the holder could remove meanwhile. An interrupt comes after a call, so
    never between ``try`` and the first call in it, nor between ``finally`` and its ``remove``.
    """
    lock: list[object] = []
    in_child(lock.clear)
    return lock


def wait_for_turn(lock: list[object], me: object) -> None:
    """Return when ``me`` is first; each thread holds the lock for microseconds."""
    while lock[0] is not me:
        time.sleep(0)


class Bell:
    """A bell that wakes one thread, again and again; even a destructor may ring it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the thread's wait, or its next one."""
        try:  # noqa: SIM105 - at the end of the interpreter there is no suppress
            self._lock.release()
        except RuntimeError:  # the bell rings already
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the bell rings; False after ``timeout`` seconds."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout))


class Latch(Bell):
    """A ``threading.Event`` that is never cleared, and for which one thread waits, once.

    One call in C waits or sets, at a third of the cost of an event. So an interrupt leaves nothing
    held, wherever it comes while a scope of a host stream is entered or left.
    """

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """End the wait; a second call changes nothing."""
        self.ring()
        self._is_set = True  # last: if an interrupt comes before it, a second call does the rest
