"""The arrays that this process keeps for others, each until its lease ends, and the leases."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from collections import deque
from sys import getrefcount
from time import monotonic
from typing import TYPE_CHECKING, Any

from streamkit._queues import keepalive
from streamkit._support import living_processes, locks
from streamkit.processes import driver as sharing

if TYPE_CHECKING:
    from streamkit._queues.arrays import ArrayLibrary
    from streamkit._queues.lifetime import InterprocessEvent
    from streamkit._support.living_processes import LockedFile

_ASKED_EVERY = 2e-3  # seconds: to look at one lease takes a microsecond or two
_MOST_ASKED = 64  # leases at a time
_OWN_REFERENCES = 2  # to an array that only KeptArray holds: the attribute, and the argument

_kept: dict[str, KeptArray] = {}
_ask_at = 0.0

_HAS, _FAILED = b"+", b"-"  # a receiver's signs
_numbers = itertools.count()
_lock = locks.new_lock()


class OwnedLease:
    """A lease as its owner sees it: a file, which has its name while the lease lasts.

    Each receiver holds a shared lock on it, and adds a sign, which it takes back if it does not get
    the array. The owner ends the lease when a receiver has had the array and none holds a lock. The
    system releases the lock of a process that has ended. Any thread may use it, and a garbage
    collection inside of it.
    """

    def __init__(self) -> None:
        self.name: str = f"{living_processes.own_name()}.{next(_numbers)}"
        self._file = living_processes.create(self.name)
        self._is_asked = False
        self.has_ended: bool = False

    def end_if_unused(self, *, was_opened: bool = False) -> bool:
        """End it if a receiver has had the array and none has it or is about to.

        ``was_opened`` says that the caller knows of a receiver that has had it.
        """
        with _lock:
            if not self.has_ended and not self._is_asked:
                self._is_asked = True
                try:
                    if (was_opened or self._was_opened()) and self._file.lock(shared=False):
                        self.end()
                finally:
                    self._is_asked = False
            return self.has_ended

    def _was_opened(self) -> bool:
        descriptor = self._file.descriptor
        return _HAS in os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def end(self) -> None:
        with _lock:
            if not self.has_ended:
                self.has_ended = True
                living_processes.remove(self.name)
                self._file.close()


def enter(name: str) -> LockedFile | None:
    """Return the lock of a receiver, None if the lease or its owner has ended.

    The lease ends with its last lock, also if that receiver is killed meanwhile.
    """
    try:
        found = living_processes.find(name)
    except FileNotFoundError:
        return None
    # the owner locks the file only to end the lease
    owner = name.rpartition(".")[0]
    try:
        if found.lock(shared=True) and found.is_linked() and living_processes.is_alive(owner):
            found.append(_HAS)
            return found
    except BaseException:
        found.close()
        raise
    found.close()
    return None


def leave(entered: LockedFile) -> None:
    """Give up the lock of a receiver that has not got the array: others can still use the lease."""
    try:
        entered.replace(_FAILED)
    finally:
        entered.close()


class KeptArray:
    """An array, the event for which its receivers wait, and the lease that counts them."""

    def __init__(self, array: Any, library: ArrayLibrary, event: InterprocessEvent) -> None:
        self.array: Any = array
        self.library: ArrayLibrary = library
        self.event: InterprocessEvent = event
        self.was_opened_here = False
        self.lease: OwnedLease = OwnedLease()
        self.name: str = self.lease.name
        _kept[self.name] = self

    def has_ended(self) -> bool:
        """Whether the lease has ended; the call ends one whose array no receiver uses any more."""
        is_used_here = self.was_opened_here and getrefcount(self.array) > _OWN_REFERENCES
        if is_used_here and not self.lease.has_ended:
            return False
        if self.lease.end_if_unused(was_opened=self.was_opened_here):
            self._let_go()
            return True
        return False

    def end(self) -> None:
        self.lease.end()
        self._let_go()

    def _let_go(self) -> None:
        _kept.pop(self.name, None)
        self.array = None


def find(name: str) -> KeptArray | None:
    """Return the array that this process keeps under a name; None if it was let go."""
    return _kept.get(name)


def end_unused() -> None:
    """Let go of the arrays that no receiver uses any more; of many, a call looks at some."""
    global _ask_at  # noqa: PLW0603 - there is one table
    if monotonic() < _ask_at:
        return
    _ask_at = monotonic() + _ASKED_EVERY
    try:
        asked = list(itertools.islice(_kept.items(), _MOST_ASKED))
    except RuntimeError:  # another thread has changed it
        return
    for name, one in asked:
        if not one.has_ended() and len(_kept) > _MOST_ASKED and name in _kept:
            _kept[name] = _kept.pop(name, one)  # to the end, so that the next call looks at others


def _end_all() -> None:
    for one in list(_kept.values()):
        one.end()


def _leave_to_parent() -> None:
    """In a forked child, which owns no lease: treat those of the parent as ended."""
    for one in list(_kept.values()):
        one.lease.has_ended = True
    _kept.clear()


keepalive.add_sweep(_kept, end_unused)
atexit.register(_end_all)
locks.in_child(_leave_to_parent)


# -- memory for copies of arrays that CUDA cannot share --------------------------------------------

_spare: deque[tuple[int, int, int]] = deque()
"""The context, size and address of each block that no copy uses. They are freed only when a copy
needs another size, because freeing waits for the device."""


class Copy:
    """Device memory for the copy of an array; a later copy of the same size uses it again."""

    def __init__(self, context: int, size: int) -> None:
        self._context, self._size = context, size
        self.address: int = _take(context, size)

    def __del__(self, spare: deque[tuple[int, int, int]] = _spare) -> None:
        if getattr(self, "address", 0):
            spare.append((self._context, self._size, self.address))


def _take(context: int, size: int) -> int:
    """Return a spare block of that size; else new memory, once the spare ones have been freed."""
    others: list[tuple[int, int, int]] = []
    with contextlib.suppress(IndexError):  # no block is left
        while (block := _spare.popleft())[:2] != (context, size):
            others.append(block)
        _spare.extend(others)
        return block[2]
    try:
        while others:
            owner, _, address = others[-1]
            sharing.free(owner, address)
            others.pop()
    finally:
        _spare.extend(others)  # the blocks that could not be freed now
    return sharing.allocate(context, size)
