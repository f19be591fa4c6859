"""A semaphore of the C library: the driver can post it from its own thread, without Python."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE = 64  # bytes, more than a sem_t has on any platform


class Semaphore:
    """Wakes one thread. Never freed: the driver may post it when nobody else knows it any more."""

    def __init__(self) -> None:
        import ctypes  # noqa: PLC0415 - slow to import, and not needed until somebody waits

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
        except AttributeError:  # glibc before 2.30 has a clock only that can be set
            self._clock = time.CLOCK_REALTIME
            self._wait_until = functools.partial(library.sem_timedwait, semaphore)

    def post(self) -> None:
        """Wake the thread that waits, or the next one that will."""
        self._post()

    def wait(self, seconds: float | None = None) -> None:
        """Block, without the GIL, until a post, a signal or the end of the time.

        All posts there are count as one.
        """
        if seconds is None:
            self._wait()
        else:
            end = time.clock_gettime_ns(self._clock) + int(seconds * 1e9)
            self._wait_until(self._until(*divmod(end, 10**9)))
        while self._take() == 0:
            pass
