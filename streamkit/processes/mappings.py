"""Memory of other processes that is open here: one counted mapping for each allocation.

Closing a mapping waits for the device, and stops every thread that calls CUDA meanwhile. So one
that no array needs stays open for a while, also for the next array in the same allocation.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from streamkit import errors
from streamkit._cuda import driver
from streamkit._queues import keepalive
from streamkit._support import living_processes
from streamkit.processes import driver as sharing

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit._support.living_processes import LockedFile

_UNUSED_FOR = 1.0  # seconds until it is closed; at once if its owner has ended
_ASKED_EVERY = 0.1


class SharedAllocation(NamedTuple):
    """An allocation of another process, and how it is opened here."""

    owner: str
    """The name of the process."""
    number: int
    """The number of the allocation in that process, because CUDA uses its handles again."""
    handle: bytes
    context: int


class _Opened:
    def __init__(self, base: int) -> None:
        self.base, self.users, self.unused_since = base, 0, 0.0


_lock = threading.Lock()  # no RLock: a garbage collection inside it sweeps, and must not get it
_opened: dict[SharedAllocation, _Opened] = {}
_given_back: deque[SharedAllocation] = deque()  # by destructors, which take no lock
_ask_at = 0.0


class Mapping:
    """One array's use of an allocation and of its lease; both uses end with this object."""

    is_gone: bool = True
    """Whether there is no such allocation any more."""

    def __init__(self, allocation: SharedAllocation, entered: LockedFile) -> None:
        self._allocation, self._entered = allocation, entered
        found = _use(allocation)
        self.is_gone = found is None
        self.base: int = found or 0
        """Its address in this process."""

    def __del__(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        given_back: deque[SharedAllocation] = _given_back,
    ) -> None:
        if not is_finalizing():
            if not self.is_gone:
                given_back.append(self._allocation)
            self._entered.close()


def why_not(address: int) -> str | None:
    """Say why another process cannot open the memory at an address; None if it can."""
    bases = [its.base for its in list(_opened.values())]
    if bases and sharing.range_of(address)[0] in bases:
        return "it belongs to another process, which can share it itself"
    return sharing.why_not(address)


def _use(allocation: SharedAllocation) -> int | None:
    with _lock:
        _count_back()
        found = _opened.get(allocation)
        if found is None:
            _close([one for one, its in _opened.items() if not its.users])
            base = sharing.open_memory(allocation.context, allocation.handle)
            if base is None:
                return None
            found = _opened[allocation] = _Opened(base)
        found.users += 1
        return found.base


def _count_back() -> None:
    while _given_back:
        one = _opened[_given_back.popleft()]
        one.users -= 1
        one.unused_since = monotonic()


def _close(unused: list[SharedAllocation]) -> None:
    for allocation in unused:
        base = _opened.pop(allocation).base
        # it fails in a broken context and in a forked child
        with contextlib.suppress(errors.StreamKitError), driver.in_context(allocation.context):
            driver.ask("cuIpcCloseMemHandle", base)


def _sweep() -> None:
    global _ask_at  # noqa: PLW0603 - of the one table
    now = monotonic()
    if now < _ask_at or not _lock.acquire(blocking=False):
        return
    try:
        _ask_at = now + _ASKED_EVERY
        _count_back()
        for one, its in list(_opened.items()):
            is_late = its.unused_since < now - _UNUSED_FOR
            if not its.users and (is_late or not living_processes.is_alive(one.owner)):
                _close([one])
    except OSError:  # no file descriptor is left to find out which processes are alive
        pass
    finally:
        _lock.release()


keepalive.add_sweep(_opened, _sweep)
