"""Private streams on which the driver waits for an event and posts a semaphore.

The user's queue gets the event only, so a wake-up holds up no work. A side stream serves one event
at a time, or one queue would wait for another's wake-up. There are few: while a device is busy, the
driver takes some tens of host functions, and then blocks the thread that adds one more. It blocks a
thread that makes a stream too, and the calls of others, while many streams are busy. So side
streams are made while the queues move.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import time
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import driver, events

if TYPE_CHECKING:
    from collections.abc import Callable

PER_DEVICE = 8
FOR_STREAMS = PER_DEVICE // 2
"""How many the waits for events leave free: all these waits may be for one stuck queue."""

_SIZE = 64  # bytes, more than a sem_t has on any platform


class Semaphore:
    """A semaphore of the C library, which the driver can post without Python; it wakes one thread.

    It is never freed: the driver may post it at any later time.
    """

    def __init__(self) -> None:
        import ctypes  # noqa: PLC0415 - slow to import, and needed by waits only

        class Timespec(ctypes.Structure):
            _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

        library: Any = ctypes.CDLL(None)  # its calls release the GIL
        library.calloc.restype = ctypes.c_void_p
        self.address: int = library.calloc(1, _SIZE)
        semaphore = ctypes.c_void_p(self.address)
        library.sem_init(semaphore, 0, 0)
        self.function: int = ctypes.cast(library.sem_post, ctypes.c_void_p).value or 0
        """The address of the C function that posts, for ``address`` as its argument."""
        self._until: Callable[[int, int], Any] = lambda *end: ctypes.byref(Timespec(*end))
        self._post, self._wait, self._take = (
            functools.partial(call, semaphore)
            for call in (library.sem_post, library.sem_wait, library.sem_trywait)
        )
        self._clock = time.CLOCK_MONOTONIC
        try:
            self._wait_until = functools.partial(library.sem_clockwait, semaphore, self._clock)
        except AttributeError:  # glibc before 2.30 waits only by a clock that can be set
            self._clock = time.CLOCK_REALTIME
            self._wait_until = functools.partial(library.sem_timedwait, semaphore)

    def post(self) -> None:
        """Wake the thread that waits, or the next one that will."""
        self._post()

    def wait(self, seconds: float | None = None) -> None:
        """Block, without the GIL, until a post, a signal or the end of the time.

        All posts up to then count as one.
        """
        if seconds is None:
            self._wait()
        else:
            end = time.clock_gettime_ns(self._clock) + int(seconds * 1e9)
            self._wait_until(self._until(*divmod(end, 10**9)))
        while self._take() == 0:
            pass


class Inbox:
    """What wakes the thread where the C library has no semaphores; the driver cannot post it."""

    function = 0
    """None: all points are asked for by the clock."""
    address = 0

    def __init__(self) -> None:
        self._posts: queue.SimpleQueue[None] = queue.SimpleQueue()

    def post(self) -> None:
        """Wake the thread that waits, or the next one that will."""
        self._posts.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Block, without the GIL, until a post or the end of the time; see ``Semaphore``."""
        with contextlib.suppress(queue.Empty):
            self._posts.get(timeout=seconds)
            while True:
                self._posts.get_nowait()


def new_semaphore() -> Semaphore | Inbox:
    """Return a semaphore, or on a platform without one, as Windows, what serves instead."""
    try:
        return Semaphore()
    except (OSError, TypeError, AttributeError):  # no such library, or not in it
        return Inbox()


class SideStreams:
    """The side streams of all devices, by their handles. For one thread; none is ever destroyed."""

    def __init__(self, semaphore: Semaphore | Inbox) -> None:
        self._semaphore = semaphore
        self._free: dict[int, list[int]] = {}  # device -> those that serve nothing
        self._aside: list[tuple[int, int]] = []  # those that may still wait, with their devices
        self.wanted: set[int] = set()
        """Devices that have none yet."""

    def has(self, device: int) -> bool:
        """Whether the device's side streams are made."""
        return device in self._free

    def arm(self, event: int, device: int, spare: int = 0) -> int:
        """Have the semaphore posted when the event is reached; return the side stream, or 0.

        It is 0 while all but ``spare`` are taken, before they are made, where the driver cannot
        post, and where it refuses: if an error matters, the next query of the event raises it.
        """
        if not self._semaphore.function:
            return 0
        free = self._free.get(device)
        if free is None:
            self.wanted.add(device)
        if not free or len(free) <= spare:
            return 0
        stream = free.pop()
        try:
            events.wait(stream, event)
            events.call_host(stream, self._semaphore.function, self._semaphore.address)
        except errors.StreamKitError:
            self.put_aside(stream, device)
            return 0
        return stream

    def make(self) -> None:
        """Make the side streams of the wanted devices. Only while the awaited queues move."""
        while self.wanted:
            device = self.wanted.pop()
            free = self._free[device] = []
            with contextlib.suppress(errors.StreamKitError):  # points are asked for by the clock
                _, highest = driver.priority_range(device)
                for _ in range(PER_DEVICE):
                    stream = driver.create_private_stream(
                        device, nonblocking=True, priority=highest
                    )
                    free.append(stream)
            if not free:  # the next point asks for them again
                del self._free[device]

    def release(self, stream: int, device: int) -> None:
        """Take back a side stream whose event was reached."""
        self._free[device].append(stream)

    def put_aside(self, stream: int, device: int) -> None:
        """Keep a side stream out of use: it may still wait, and would wake its next user late."""
        self._aside.append((stream, device))

    def recover(self) -> None:
        """Let side streams that were put aside serve again, once they wait for nothing."""
        for stream, device in self._aside.copy():
            with contextlib.suppress(errors.StreamKitError):  # as long as the driver refuses
                if driver.stream_done(stream):
                    self._aside.remove((stream, device))
                    self._free[device].append(stream)
