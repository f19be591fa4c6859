"""Who destroys what: streams and events that StreamKit created, and nothing else.

An owned stream lives as long as its record, which every view of it holds. When that goes, the
CUDA stream is destroyed, or parked for ``new_stream`` if a library whose allocator remembers
handles has seen it: a destroyed handle can come back as another stream, and such an allocator
would take the two for one.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._base.queue import QueueRecord
from streamkit._cuda import driver, events

if TYPE_CHECKING:
    from collections.abc import Callable

_never_destroyed: list[Any] = []
_parked: defaultdict[tuple[int, bool, int], deque[int]] = defaultdict(deque)
_MOST_SPARE = 256
# by context; the handles alone, for the collector ends an event although the end of another object
# in the same garbage keeps it
_spare_events: defaultdict[int, deque[int]] = defaultdict(deque)


class OwnedQueue(QueueRecord):
    """The queue of a stream created here, which is destroyed or parked with the last reference."""

    remembered: bool = False
    """Whether a library that remembers handles has seen it."""

    def __init__(self, handle: int, device: int, priority: int) -> None:
        super().__init__(handle, device)
        self.priority = priority

    @property
    def is_owned(self) -> bool:
        """True."""
        return True

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing() or not driver.is_usable():  # bound above: the module may be gone
            return
        if not getattr(self, "handle", 0):  # an interrupt has left it half made
            return
        if self.remembered:
            # one that a library began and an error broke makes every wait for the device illegal
            with contextlib.suppress(errors.DriverError):
                driver.end_broken_capture(self.handle)
            # a deque, because its append needs no lock: this can run inside any other code
            _parked[self.device, bool(self.nonblocking), self.priority].append(self.handle)
            return
        # what can fail here is a broken context, which every other call reports
        with contextlib.suppress(errors.DriverError):
            driver.destroy_stream(self.handle)


def create(device: int, *, nonblocking: bool, priority: int) -> OwnedQueue:
    """Return the queue of an idle parked stream with these properties, or of a new stream."""
    parked = _unpark(device, nonblocking=nonblocking, priority=priority)
    handle = parked or driver.create_stream(device, nonblocking=nonblocking, priority=priority)
    queue = OwnedQueue(handle, device, priority)
    queue.nonblocking = nonblocking
    queue.remembered = queue.handle_exposed = parked is not None
    return queue


def _unpark(device: int, *, nonblocking: bool, priority: int) -> int | None:
    parked = _parked[device, nonblocking, priority]
    for _ in range(len(parked)):
        try:
            handle = parked.popleft()
        except IndexError:  # another thread took the last one
            return None
        idle = False
        try:
            driver.end_broken_capture(handle)  # it may have been whole when the stream was parked
            idle = driver.capture_id(handle) is None and driver.stream_done(handle)
        finally:
            if not idle:
                parked.append(handle)
        if idle:
            return handle
    return None


class OwnedEvent:
    """A CUDA event created here, of one context, which is destroyed with the last reference."""

    handle: int = 0  # until it has one: an interrupt can leave it half made
    core: Any
    serves: int
    """The context whose streams record it through ``core``; 0 for none."""

    def __init__(self, context: int, *, timing: bool = False) -> None:
        handle, self.core = events.create_core(context, timing=timing)
        self.serves = 0 if self.core is None else context
        self.handle = handle

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing() or not self.handle:
            return
        if self.core is not None:
            if not driver.is_usable():  # in a forked child its end would call the driver
                _never_destroyed.append(self.core)
        elif driver.is_usable():
            # what can fail here is a broken context, which every other call reports
            with contextlib.suppress(errors.DriverError):
                events.destroy(self.handle)


class InterprocessEvent(OwnedEvent):
    """An event that another process can open, or has made: it has no object of cuda.core's."""

    core = None
    serves = 0

    def __init__(self, handle: int) -> None:
        self.handle = handle


def create_interprocess(context: int) -> InterprocessEvent:
    """Return a new event of a context that other processes can open."""
    return InterprocessEvent(events.create(context, timing=False, interprocess=True))


class PointEvent(OwnedEvent):
    """An event for waits, without cuda.core, whose import would be part of the first one."""

    core = None
    serves = 0
    _spare: deque[int] | None = None

    def __init__(self, context: int) -> None:
        try:
            self.handle = _spare_events[context].pop()
        except IndexError:
            self.handle = events.create(context, timing=False)

    def use_again(self, context: int) -> None:
        """Let another one have the handle at the end: it is no capture's, and nobody asks it then.

        Its point may not be reached yet. An event dies with a context that may come to an end.
        """
        if context in driver.device_of:
            self._spare = _spare_events[context]

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return
        if self._spare is not None and len(self._spare) < _MOST_SPARE:
            self._spare.append(self.handle)
        else:
            super().__del__()
