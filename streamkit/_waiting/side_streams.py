"""Lanes: private side streams on which the driver waits for an event and posts a semaphore.

Nothing but the event stands in the user's queue, so a wake-up holds up no work. A lane serves one
event at a time, or one queue would wait for another's wake-up. There are few: beside a busy device
the driver takes some tens of host functions, and then blocks who adds one more. It also blocks who
makes a stream beside many busy ones, and others' calls with it: lanes are made while queues move.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._cuda import driver, events

if TYPE_CHECKING:
    from streamkit._waiting.semaphore import Semaphore

PER_DEVICE = 8
FOR_STREAMS = PER_DEVICE // 2
"""Those that the waits for events leave alone: any number of these can be for one stuck queue."""


class Lanes:
    """The lanes of all devices. Used by one thread; never shown to a library, never destroyed."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._free: dict[int, list[int]] = {}  # device -> those that serve nothing
        self._aside: list[tuple[int, int]] = []  # those that may still wait, with their devices
        self.wanted: set[int] = set()
        """Devices that have none yet."""

    def has(self, device: int) -> bool:
        """Whether the device's lanes are made."""
        return device in self._free

    def arm(self, event: int, device: int, spare: int = 0) -> int:
        """Have the semaphore posted when the event is reached; return the lane, 0 without one.

        There is none while all but ``spare`` are taken, before they are made, nor where the driver
        refuses: an error that matters is told by a question about the event.
        """
        free = self._free.get(device)
        if free is None:
            self.wanted.add(device)
        if not free or len(free) <= spare:
            return 0
        lane = free.pop()
        try:
            events.wait(lane, event)
            events.call_host(lane, self._semaphore.function, self._semaphore.address)
        except errors.StreamKitError:
            self.put_aside(lane, device)
            return 0
        return lane

    def make(self) -> None:
        """Make those of the devices that were asked for. Only while the queues waited for move."""
        while self.wanted:
            device = self.wanted.pop()
            free = self._free[device] = []
            with contextlib.suppress(errors.StreamKitError):  # points are asked for by the clock
                _, highest = driver.priority_range(device)
                for _ in range(PER_DEVICE):
                    lane = driver.create_private_stream(device, nonblocking=True, priority=highest)
                    free.append(lane)
            if not free:  # the next point asks for them again
                del self._free[device]

    def release(self, lane: int, device: int) -> None:
        """Take a lane back whose event was reached."""
        self._free[device].append(lane)

    def put_aside(self, lane: int, device: int) -> None:
        """Take a lane back that may still wait, and would wake the next one it served too late."""
        self._aside.append((lane, device))

    def recover(self) -> None:
        """Let those put aside serve again that have nothing to wait for any more."""
        for lane, device in self._aside.copy():
            with contextlib.suppress(errors.StreamKitError):  # as long as the driver refuses
                if driver.stream_done(lane):
                    self._aside.remove((lane, device))
                    self._free[device].append(lane)
