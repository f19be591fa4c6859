"""A lease as both processes see it: a file, which has its name while the lease lasts.

Each receiver holds a shared lock on it, and adds a sign: another one if it does not get the array.
The owner ends the lease when a receiver has had the array and none holds a lock. The system
releases the lock of a process that has ended.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from streamkit._base.locks import new_lock
from streamkit._interprocess import processes

if TYPE_CHECKING:
    from streamkit._interprocess.processes import LockedFile

_HAS, _FAILED = b"+", b"-"

_numbers = itertools.count()
_lock = new_lock()


class OwnedLease:
    """The owner's side. Any thread may use it, and a garbage collection inside of it."""

    def __init__(self) -> None:
        self.name = f"{processes.own_name()}.{next(_numbers)}"
        self._file = processes.create(self.name)
        self._is_asked = False
        self.has_ended = False

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
        signs = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return signs.count(_HAS) > signs.count(_FAILED)

    def end(self) -> None:
        with _lock:
            if not self.has_ended:
                self.has_ended = True
                processes.remove(self.name)
                self._file.close()


def enter(name: str) -> LockedFile | None:
    """Return the lock of a receiver, None if the lease or its owner has ended.

    The lease ends with its last lock, also if that receiver is killed meanwhile.
    """
    try:
        found = processes.find(name)
    except FileNotFoundError:
        return None
    # the owner locks the file only to end the lease
    owner = name.partition(".")[0]
    if found.lock(shared=True) and found.is_linked() and processes.is_alive(owner):
        os.write(found.descriptor, _HAS)
        return found
    found.close()
    return None


def leave(entered: LockedFile) -> None:
    """Give up the lock of a receiver that has not got the array: others can still use the lease."""
    os.write(entered.descriptor, _FAILED)
    entered.close()
