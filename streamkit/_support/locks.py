"""Locks that an interrupt does not leave held and a forked child finds free; a latch, a bell."""

from __future__ import annotations

import _thread
import math
import os
import sys
import threading
import time
from operator import methodcaller
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

# In CPython 3.14 an interrupt can come between the call of an ``__enter__`` in C and the block, so
# that the lock stays held (https://github.com/python/cpython/issues/148874). None comes after a
# Python function has returned, nor after an attribute is read, even if a call in C gives its value.
# The ``__exit__`` of both classes is in C, so that none comes before it has released the lock.
if TYPE_CHECKING or sys.version_info[:2] != (3, 14):
    Lock = threading.Lock
    RLock = threading.RLock
else:

    class RLock(_thread.RLock):
        """threading.RLock, whose block releases it whenever an interrupt comes."""

        _entered = property(_thread.RLock.__enter__)

        def __enter__(self) -> bool:
            return self._entered

    class Lock:
        """threading.Lock, likewise; it has no subclasses."""

        __slots__ = ("__exit__", "acquire", "locked", "release")

        def __init__(self) -> None:
            lock = threading.Lock()
            for name in self.__slots__:
                setattr(self, name, getattr(lock, name))

        _entered = property(methodcaller("acquire"))

        def __enter__(self) -> bool:
            return self._entered


def in_child(call: Callable[[], object]) -> None:
    """Have ``call`` called in each child that this process forks, before other code runs there.

    Where no process can fork, as on Windows, it is never called.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def new_lock() -> RLock:
    """Return a lock that a garbage collection inside it may take again.

    It is made anew in a forked child, which lacks the thread that may have held it.
    """
    lock = RLock()
    _locks.add(lock)
    return lock


_locks: WeakSet[RLock] = WeakSet()  # one handler for all, as none can be taken back


_process = os.getpid()


def is_early_child() -> bool:
    """Whether this is a forked child whose handlers have not run: its locks may be held for ever.

    Before it runs them, Python removes the parent's other threads, with what only these held.
    """
    return os.getpid() != _process


def _free_locks() -> None:
    global _process  # noqa: PLW0603 - there is one
    _process = os.getpid()
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as threading does; Windows has no such method


in_child(_free_locks)


def take_if_free(lock: Lock, taken: list[bool]) -> bool:
    """Take a lock if that needs no wait; note and return whether it is taken.

        taken: list[bool] = []
        try:
            if take_if_free(lock, taken):
                ...
        finally:
            if taken == [True]:
                lock.release()

    An interrupt never comes between the taking and the note, since one call in C does both, nor
    between ``finally`` and the release.
    """
    taken += map(lock.acquire, (False,))
    return taken[0]


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

    A list's append and remove are atomic, with and without a GIL. So is the slice; of ``lock[0]``
    the holder could take the last item meanwhile. An interrupt comes after a call, so never between
    ``try`` and the first call in it, nor between ``finally`` and its ``remove``.
    """
    lock: list[object] = []
    in_child(lock.clear)
    return lock


def wait_for_turn(lock: list[object], me: object) -> None:
    """Return when ``me`` is first; each thread holds the lock for microseconds."""
    while lock[0] is not me:
        time.sleep(0)


# A thread of a free-threaded CPython asks for a lock a few times before it sleeps. An interrupt
# that comes meanwhile does not wake it (3.13), so that it sleeps for a part of the wait at once.
_LOSES_INTERRUPTS = "free-threading" in sys.version
_PART = 0.1


class Latch:
    """A ``threading.Event`` that is never cleared, and for which one thread waits.

    An event's own lock stays held if an interrupt comes as ``wait`` or ``set`` takes it, so that
    the other thread hangs. Here one call in C waits or sets, and so an interrupt undoes neither.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Let the wait end; what is set already stays so."""
        self._is_set = True  # no interrupt comes between this and the release
        try:  # noqa: SIM105 - the call of suppress would be a moment for one
            self._lock.release()
        except RuntimeError:  # it was set before
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set; False after ``timeout`` seconds."""
        if self._is_set:
            return True
        if not _LOSES_INTERRUPTS:
            return self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout))
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._lock.acquire(timeout=max(0, min(_PART, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True


class Bell:
    """What wakes one thread, again and again. Even a destructor may ring, as no block holds it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the thread's wait, or its next one."""
        try:  # noqa: SIM105 - at the end of the interpreter there is no suppress
            self._lock.release()
        except RuntimeError:  # it rings already
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it rings; False after ``timeout`` seconds."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout))
