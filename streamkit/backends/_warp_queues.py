"""The non-blocking queues lent to Warp, and how its frees wait for what they were given.

A blocking stream of ours, the device's companion, waits for each; the legacy stream for that one.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import warp

from streamkit import _driver, _pools, errors
from streamkit.backends import _warp_current

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Queue

_MOST = 8  # queues waited for at each free

companions: dict[int, int] = {}
"""Of each device, its companion."""
watched: dict[Lent, None] = {}
"""The queues to wait for, the longest watched first."""
_spare: deque[Lent] = deque()  # of queues that are gone, for their pools


class Lent:
    """One non-blocking queue on which Warp may work, and how to wait for what it was given."""

    pool: Any = None
    event: int = 0
    unseen: bool = False
    """Whether the event was recorded since the companion last waited for it."""
    late: int | None = None
    """The capture that had begun when Warp was told, so that nobody waits for the work before."""

    def __init__(self, stream: Any, queue: Queue) -> None:
        self.view = weakref.ref(stream)
        self.handle = queue.handle
        self.device: int = queue.device or 0
        # Nobody destroys these, for what Warp has seen is parked. Of any other, the handle is used
        # only while a scope of it is open: its owner may close it at any time after.
        self.stays = queue.permanent or queue.is_owned
        self.context = queue.context
        self.event = _driver.create_event(self.context, timing=False)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.event and not is_finalizing() and _driver.is_usable():
            with contextlib.suppress(errors.DriverError):  # a broken context, as others will report
                _driver.destroy_event(self.event)

    def stands(self) -> bool:
        """Whether a scope of it is open in some thread."""
        return _warp_current.is_level(self.view())

    def mark(self) -> bool:
        """Record the present end of the queue; False if it captures."""
        if _driver.capture_id(self.handle) is not None:
            return False
        _driver.record_event(self.event, self.handle)
        if _driver.capture_id(self.handle) is not None:  # another thread has begun it meanwhile
            # the event may be of the graph, and whoever waits for it would be captured
            self.unseen = False
            captured, self.event = self.event, _driver.create_event(self.context, timing=False)
            _driver.destroy_event(captured)
            return False
        self.unseen = True
        return True

    def settle(self) -> bool:
        """Let the companion wait for what the queue was given; False if it captures."""
        if (self.stays or self.stands()) and not self.mark():
            return False
        if self.unseen:
            self.unseen = False  # first: another thread may mark it meanwhile
            try:
                _driver.wait_event(companions[self.device], self.event)
            except BaseException:
                self.unseen = True
                raise
        return True

    def own_pool(self, common: Any) -> Any:
        """Return the pool of which only this queue has memory, in reach of whom ``common`` is.

        What a function allocates there may stay, as a mesh's tree does, and be read from others.
        """
        for _ in range(0 if self.pool else len(_spare)):
            other = _spare.popleft()
            if other.device == self.device and _driver.event_done(other.event):
                self.pool = other.pool
                break
            _spare.append(other)
        if self.pool is None:
            self.pool = _pools.create(self.device)
        _pools.open_as(self.pool, common, self.device)
        return self.pool


def watch(lent: Lent) -> None:
    """Wait for this queue at each free, instead of for the longest watched if they are many."""
    watched[lent] = None
    for other in watched.copy():
        if len(watched) <= _MOST:
            return
        with contextlib.suppress(errors.StreamKitError):  # then it stays
            if not other.stands():
                _settle(other)


def _settle(lent: Lent) -> None:
    """Wait for a queue for the last time; if its view is gone, its pool is for others."""
    is_first = lent.settle() and watched.pop(lent, False) is None  # of the threads that come here
    if is_first and lent.view() is None and lent.pool is not None:
        _spare.append(lent)


def end(lent: Lent) -> None:
    """Wait for the queue once more, for its view is gone; runs inside any other code.

    It stays watched if it captures now, or the wait fails.
    """
    if sys.is_finalizing() or not _driver.is_usable():
        return
    watched[lent] = None
    with contextlib.suppress(errors.StreamKitError):
        _settle(lent)


def context() -> Any:
    """Return Warp's module of that name, which has its native functions."""
    return getattr(warp, "_src", warp).context


def settle() -> bool:
    """Let the companions wait for every watched queue; False if the work of one is out of reach.

    That is the work before a capture of which Warp was not told, or not when it began.
    """
    for lent in [lent for lent in watched.copy() if lent.view() is None]:
        _settle(lent)
    capturing = [lent for lent in watched.copy() if not lent.settle()]
    if not capturing:
        return True
    told = {*getattr(context().runtime, "captures", ())}  # until they end Warp frees nothing
    told -= {lent.late for lent in capturing}
    return all(_driver.capture_id(lent.handle) in told for lent in capturing)


def prepared(stream: Any) -> None:
    """Note that the work before its capture was waited for, though Warp was told of that late."""
    lent: Lent | None = getattr(stream, "_streamkit_lent", None)
    if lent is not None:
        lent.late = None
