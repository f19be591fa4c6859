"""Lanes: private side streams on which the driver waits for an event and posts a semaphore.

Nothing but the event stands in the user's queue, so a wake-up holds up no work. A lane serves one
event at a time, or one queue would wait for another's wake-up; there are few, because a stream
that waits can hold up the streams that share its place in the hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit import _driver, errors

if TYPE_CHECKING:
    from streamkit._semaphore import Semaphore

PER_DEVICE = 8


class Lanes:
    """The lanes of all devices. Used by one thread; never shown to a library, never destroyed."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._made: dict[int, int] = {}  # device -> how many
        self._free: dict[int, list[int]] = {}  # device -> those that serve nothing

    def arm(self, event: int, device: int) -> int:
        """Have the semaphore posted when the event is reached; return the lane, 0 without one.

        There is none while all are taken, nor where the driver refuses: an error that matters is
        told by a question about the event.
        """
        lane = 0
        try:
            lane = self._take(device)
            if lane:
                _driver.wait_event(lane, event)
                _driver.call_host(lane, self._semaphore.function, self._semaphore.address)
        except errors.StreamKitError:
            if lane:
                self.release(lane, device)
            return 0
        return lane

    def _take(self, device: int) -> int:
        free = self._free.setdefault(device, [])
        if free:
            return free.pop()
        if self._made.get(device, 0) == PER_DEVICE:
            return 0
        _, highest = _driver.priority_range(device)
        lane = _driver.create_stream(device, nonblocking=True, priority=highest)
        self._made[device] = self._made.get(device, 0) + 1
        return lane

    def release(self, lane: int, device: int) -> None:
        """Take a lane back whose event was reached."""
        self._free[device].append(lane)
