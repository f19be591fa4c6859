"""Lanes: private side streams on which the driver waits for an event and posts a semaphore.

Nothing but the event stands in the user's queue, so a wake-up holds up no work. A lane serves one
event at a time, or one queue would wait for another's wake-up. There are few: beside a busy device
the driver takes some tens of host functions, and then blocks who adds one more.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from streamkit import _driver, errors

if TYPE_CHECKING:
    from streamkit._semaphore import Semaphore

PER_DEVICE = 8


class Lanes:
    """The lanes of all devices. Used by one thread; never shown to a library, never destroyed."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._free: dict[int, list[int]] = {}  # device -> those that serve nothing

    def arm(self, event: int, device: int) -> int:
        """Have the semaphore posted when the event is reached; return the lane, 0 without one.

        There is none while all are taken or being made, nor where the driver refuses: an error
        that matters is told by a question about the event.
        """
        free = self._free.get(device)
        if free is None:
            self._free[device] = free = []
            # by a thread of its own: beside many busy streams the driver may block it for long
            with contextlib.suppress(RuntimeError):  # none can be started
                threading.Thread(
                    target=self._make, args=(device, free), name="streamkit-lanes", daemon=True
                ).start()
        if not free:
            return 0
        lane = free.pop()
        try:
            _driver.wait_event(lane, event)
            _driver.call_host(lane, self._semaphore.function, self._semaphore.address)
        except errors.StreamKitError:
            free.append(lane)
            return 0
        return lane

    def _make(self, device: int, free: list[int]) -> None:
        with contextlib.suppress(errors.StreamKitError):  # then points are asked for by the clock
            _, highest = _driver.priority_range(device)
            for _ in range(PER_DEVICE):
                lane = _driver.create_private_stream(device, nonblocking=True, priority=highest)
                free.append(lane)
        self._semaphore.post()

    def release(self, lane: int, device: int) -> None:
        """Take a lane back whose event was reached."""
        self._free[device].append(lane)
