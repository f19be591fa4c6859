"""What one thread sets, once, and another one waits for."""

from __future__ import annotations

import threading


class Latch:
    """A ``threading.Event`` that is never cleared, and for which one thread waits.

    An event's own lock stays held if an interrupt comes as ``wait`` or ``set`` takes it, so that
    the other thread hangs. Here one call in C waits or sets, and so an interrupt undoes neither.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Let the wait end; what is set already stays so."""
        self._is_set = True  # no interrupt comes between this and the release
        try:  # noqa: SIM105 - the call of suppress would be a moment for one
            self._lock.release()
        except RuntimeError:  # it was set before
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set; False after ``timeout`` seconds."""
        if self._is_set:
            return True
        return self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout))
