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

from streamkit import errors
from streamkit._cuda import driver, events, memory_pools
from streamkit.backends.warp import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Queue

_MOST = 8  # queues waited for at each free, though they have not been used since the last

companions: dict[int, int] = {}
"""Of each device, its companion."""
watched: dict[Lent, object] = {}
"""The queues to wait for, the longest watched first; each with a token, anew at each entry."""
_spare: deque[Lent] = deque()  # of queues that are gone, for their pools


class _Event:
    """An event, destroyed when nobody waits by it any more."""

    handle: int = 0  # until it has one: an interrupt can leave it half made

    def __init__(self, context: int) -> None:
        self.handle = events.create(context, timing=False)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.handle and not is_finalizing() and driver.is_usable():
            with contextlib.suppress(errors.DriverError):  # a broken context, as others will report
                events.destroy(self.handle)


class _Mark:
    """The end of a queue as it once was."""

    __slots__ = ("event", "waited")

    def __init__(self, event: _Event) -> None:
        self.event = event
        self.waited = False  # whether the companion has been made to wait for it


class Lent:
    """One non-blocking queue on which Warp may work, and how to wait for what it was given."""

    pool: Any = None
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
        # Destructors come here, in several threads at once: no lock, and an event belongs to one
        # thread as long as it can be recorded.
        self._events = deque(_Event(self.context) for _ in range(1 if self.stays else 2))
        self._marks: dict[_Mark, None] = {}

    def stands(self) -> bool:
        """Whether a scope of it is open in some thread."""
        return current_stream.is_level(self.view())

    def _record(self) -> _Event | None:
        """Mark the present end of the queue by an event of nobody else; None if it captures."""
        if driver.capture_id(self.handle) is not None:
            return None
        try:
            event = self._events.pop()
        except IndexError:
            event = _Event(self.context)
        events.record(event.handle, self.handle)
        if driver.capture_id(self.handle) is not None:  # another thread has begun it meanwhile
            return None  # the event may be of the graph, and whoever waits for it be captured
        return event

    def mark(self) -> None:
        """Note the present end of the queue, unless it captures: soon it cannot be asked."""
        older = self._marks.copy()
        event = self._record()
        if event is not None:
            self._marks[_Mark(event)] = None
            for mark in older:
                if self._marks.pop(mark, self) is None:  # the first of the threads that come here
                    self._events.append(mark.event)

    def settle(self) -> bool:
        """Let the companion wait for what the queue was given; False if it captures."""
        captures = False
        if self.stays or self.stands():
            event = self._record()
            captures = event is None
            if event is not None:
                events.wait(companions[self.device], event.handle)
                self._events.append(event)
        # only now, for a scope that was left meanwhile has marked its end
        for mark in self._marks.copy():
            if not mark.waited:
                events.wait(companions[self.device], mark.event.handle)
                mark.waited = True
        return not captures

    def has_passed(self) -> bool:
        """Whether all has run for which the companion was made to wait."""
        pending = [*self._events, *(mark.event for mark in self._marks.copy())]
        return all(events.is_done(event.handle) for event in pending)

    def own_pool(self, common: Any) -> Any:
        """Return the pool of which only this queue has memory, in reach of whom ``common`` is.

        What a function allocates there may stay, as a mesh's tree does, and be read from others.
        """
        for _ in range(0 if self.pool else len(_spare)):
            other = _spare.popleft()
            if other.pool is None:  # it came here twice, and was taken
                continue
            if other.device == self.device and other.has_passed():
                self.pool, other.pool = other.pool, None
                break
            _spare.append(other)
        if self.pool is None:
            self.pool = memory_pools.create(self.device)
        memory_pools.open_as(self.pool, common, self.device)
        return self.pool


def watch(lent: Lent) -> object:
    """Wait for the queue at each free from now on; return the token of that."""
    token = watched[lent] = object()
    return token


def _drop(lent: Lent, token: object) -> None:
    """Wait for the queue no more; if its view is gone, its pool is for others.

    ``token`` is from before the last wait: a scope entered since, and perhaps left, has another.
    """
    found = watched.pop(lent, None)
    if found is None:  # another thread was first
        return
    if found is not token:
        watched.setdefault(lent, found)
    elif lent.view() is None and lent.pool is not None:
        _spare.append(lent)


def end(lent: Lent) -> None:
    """Wait for the queue once more, for its view is gone; runs inside any other code.

    It stays watched if it captures now, or the wait fails.
    """
    if sys.is_finalizing() or not driver.is_usable():
        return
    token = watch(lent)
    with contextlib.suppress(errors.StreamKitError):
        if lent.settle():
            _drop(lent, token)


def context() -> Any:
    """Return Warp's module of that name, which has its native functions."""
    return getattr(warp, "_src", warp).context


def settle() -> bool:
    """Let the companions wait for every watched queue; False if the work of one is out of reach.

    That is the work before a capture of which Warp was not told, or not when it began. Then the
    longest watched are dropped if they are many, here and not where a scope is entered: there
    nothing may wait.
    """
    many = len(watched) - _MOST
    capturing = []
    for number, (lent, token) in enumerate(watched.copy().items()):
        is_last = lent.view() is None or (number < many and not lent.stands())
        if not lent.settle():
            capturing.append(lent)
        elif is_last:
            _drop(lent, token)
    if not capturing:
        return True
    told = {*getattr(context().runtime, "captures", ())}  # until they end Warp frees nothing
    told -= {lent.late for lent in capturing}
    return all(driver.capture_id(lent.handle) in told for lent in capturing)


def prepared(stream: Any) -> None:
    """Note that the work before its capture was waited for, though Warp was told of that late."""
    lent: Lent | None = getattr(stream, "_streamkit_lent", None)
    if lent is not None:
        lent.late = None
