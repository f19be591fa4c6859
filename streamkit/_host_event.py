"""``HostEvent``: a point of a host queue."""

from __future__ import annotations

import threading
import time
from typing import NoReturn

from streamkit import errors
from streamkit.protocols import Concrete, Event


def no_cuda(obj: object, what: str) -> errors.UnsupportedStreamError:
    return errors.UnsupportedStreamError(
        f"{errors.describe(obj)} lives on the host and has not {what}: 0 would be CUDA's legacy "
        "default stream. Make a stream with streamkit.new_stream('cuda') where there is a GPU."
    )


class Mark:
    """One recorded point: reached when everything queued before it has run."""

    __slots__ = ("reached", "time_ns")

    def __init__(self) -> None:
        self.reached: threading.Event = threading.Event()
        self.time_ns: int = 0

    def reach(self) -> None:
        self.time_ns = time.perf_counter_ns()
        self.reached.set()

    __call__ = reach  # as an item of a queue

    def wait(self) -> None:
        self.reached.wait()


class HostEvent(Event, metaclass=Concrete):
    """A point of a host queue. Safe to use from any thread."""

    def __init__(self, *, timing: bool = False) -> None:
        self.mark: Mark | None = None
        self._timing = timing
        self._closed = False

    def live(self) -> Mark | None:
        if self._closed:
            raise errors.closed(self)
        return self.mark

    @property
    def handle(self) -> NoReturn:
        """Raise UnsupportedStreamError: there is no CUDA event behind it."""
        raise no_cuda(self, "a handle")

    @property
    def device(self) -> str:
        """``"cpu"``."""
        return "cpu"

    @property
    def closed(self) -> bool:
        """Whether ``close`` has made this object unusable."""
        return self._closed

    @property
    def done(self) -> bool:
        """Whether the last recorded point was reached; True if it was never recorded."""
        mark = self.live()
        return mark is None or mark.reached.is_set()

    def sync(self, timeout: float | None = None) -> None:
        """Block until the last recorded point was reached, at most ``timeout`` seconds."""
        mark = self.live()
        if mark is not None and not mark.reached.wait(timeout) and timeout is not None:
            errors.raise_timeout(self, timeout)

    def __sub__(self, start: object) -> float:
        """Milliseconds from ``start`` to this event; ValueError without timing or if pending."""
        if not isinstance(start, HostEvent):
            return NotImplemented
        for event in (start, self):
            if not event._timing:
                raise ValueError(f"{event!r} measures no time: record it with timing=True")
            if event.mark is None or not event.done:
                raise ValueError(f"{event!r} was not reached yet: record it and call its sync()")
        assert self.mark is not None and start.mark is not None  # noqa: S101, PT018 - checked
        return (self.mark.time_ns - start.mark.time_ns) / 1e6

    def to(self, library: str) -> NoReturn:  # noqa: ARG002 - the interface
        """Raise UnsupportedStreamError: there is no CUDA event behind it."""
        raise no_cuda(self, "an event of another library")

    def close(self) -> None:
        """Give the event up; queues that wait for it still do."""
        self._closed = True

    def __repr__(self) -> str:
        if self._closed:
            return "<streamkit.HostEvent closed>"
        state = "unrecorded" if self.mark is None else "done" if self.done else "pending"
        return f"<streamkit.HostEvent {state}{' timing' if self._timing else ''}>"
