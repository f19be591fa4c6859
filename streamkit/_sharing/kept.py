"""What this process keeps for others, each array until its lease ends."""

from __future__ import annotations

import atexit
import functools
import itertools
from collections import deque
from sys import getrefcount
from time import monotonic
from typing import TYPE_CHECKING, Any

from streamkit._base import locks
from streamkit._cuda import sharing
from streamkit._queues import keepalive
from streamkit._sharing.lease_file import OwnedLease

if TYPE_CHECKING:
    from streamkit._queues.lifetime import InterprocessEvent
    from streamkit._streams.array_libraries import ArrayLibrary

_ASKED_EVERY = 2e-3  # seconds: to look at one lease takes a microsecond or two
_MOST_ASKED = 64  # leases at a time
_OWN_REFERENCES = 2  # to an array that only KeptArray holds: the attribute, and the argument

_kept: dict[str, KeptArray] = {}
_ask_at = 0.0


class KeptArray:
    """An array, and what orders and counts its receivers."""

    def __init__(self, array: Any, library: ArrayLibrary, event: InterprocessEvent) -> None:
        _prepare()
        self.array: Any = array
        self.library: ArrayLibrary = library
        self.event: InterprocessEvent = event
        self.was_opened_here = False
        self._lease = OwnedLease()
        self.name: str = self._lease.name
        _kept[self.name] = self

    def has_ended(self) -> bool:
        """Whether the lease has ended; this call ends it if no receiver uses the array any more."""
        if self.was_opened_here and getrefcount(self.array) > _OWN_REFERENCES:
            return self._lease.has_ended
        if self._lease.end_if_unused(was_opened=self.was_opened_here):
            self._let_go()
            return True
        return False

    def end(self) -> None:
        """End the lease."""
        self._lease.end()
        self._let_go()

    def leave_to_parent(self) -> None:
        """Leave the lease alone from now on, because this forked child does not own it."""
        self._lease.has_ended = True

    def _let_go(self) -> None:
        _kept.pop(self.name, None)
        self.array = None


def find(name: str) -> KeptArray | None:
    """Return what is kept under the lease of this name."""
    return _kept.get(name)


def end_unused() -> None:
    """Let go of what every receiver has dropped: of some arrays a call, if many are kept."""
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
    for one in tuple(_kept.values()):
        one.end()


@functools.cache
def _prepare() -> None:
    keepalive.add_sweep(_kept, end_unused)
    atexit.register(_end_all)
    locks.in_child(_leave_to_parent)


def _leave_to_parent() -> None:
    """In a forked child, which owns no lease: treat those of the parent as ended."""
    for one in tuple(_kept.values()):
        one.leave_to_parent()
    _kept.clear()


# -- memory for copies of arrays that CUDA cannot share --------------------------------------------

_spare: deque[tuple[int, int, int]] = deque()
"""The context, size and address of each block that no copy uses. They are freed only when a copy
needs another size, because freeing waits for the device."""


class Copy:
    """Device memory for the copy of an array; a later copy of the same size uses it again."""

    def __init__(self, context: int, size: int) -> None:
        self._context, self._size = context, size
        self.address = _take(context, size)

    def __del__(self, spare: deque[tuple[int, int, int]] = _spare) -> None:
        if getattr(self, "address", 0):
            spare.append((self._context, self._size, self.address))


def _take(context: int, size: int) -> int:
    """Return a spare block of that size; else new memory, once the spare ones have been freed."""
    others: list[tuple[int, int, int]] = []
    while _spare:
        try:
            block = _spare.popleft()
        except IndexError:  # another thread has taken the last one
            break
        if block[:2] == (context, size):
            _spare.extend(others)
            return block[2]
        others.append(block)
    for owner, _, address in others:
        sharing.free(owner, address)
    return sharing.allocate(context, size)
