"""What this process keeps for others, each array until its lease ends."""

from __future__ import annotations

import atexit
import functools
import itertools
from sys import getrefcount
from time import monotonic
from typing import TYPE_CHECKING, Any

from streamkit._base import forks
from streamkit._queues import keepalive
from streamkit._sharing.lease_file import OwnedLease

if TYPE_CHECKING:
    from streamkit._queues.lifetime import InterprocessEvent
    from streamkit._streams.array_libraries import ArrayLibrary

_ASKED_EVERY = 2e-3  # seconds: to ask for one lease takes a microsecond or two
_MOST_ASKED = 64  # leases at a time
_HELD_BY_NOBODY = 2  # references: the attribute, and the argument

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
        """Whether the lease has ended, which this call does if it can."""
        if self.was_opened_here and getrefcount(self.array) > _HELD_BY_NOBODY:
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
        """Do nothing with it from now on: this is a child, which was forked."""
        self._lease.has_ended = True

    def _let_go(self) -> None:
        _kept.pop(self.name, None)
        self.array = None


def find(name: str) -> KeptArray | None:
    """Return what is kept under the lease of this name."""
    return _kept.get(name)


def end_unused() -> None:
    """Let go what every receiver has dropped; if much is kept, the next calls go on with it."""
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
            _kept[name] = _kept.pop(name, one)  # the last one from now on


def _end_all() -> None:
    for one in tuple(_kept.values()):
        one.end()


@functools.cache
def _prepare() -> None:
    keepalive.add_sweep(_kept, end_unused)
    atexit.register(_end_all)
    forks.in_child(_leave_to_parent)


def _leave_to_parent() -> None:
    """In a forked child: the leases are the parent's, and have ended here."""
    for one in tuple(_kept.values()):
        one.leave_to_parent()
    _kept.clear()
