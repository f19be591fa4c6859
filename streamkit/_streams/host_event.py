"""``HostEvent``: a point of a host stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from streamkit import errors
from streamkit._queues import registry, trace
from streamkit._streams.host_queue import is_parents
from streamkit._support import classes, messages
from streamkit.backends import names
from streamkit.protocols import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from streamkit._streams.host_queue import QueueEnd


def no_cuda(obj: object, what: str) -> errors.UnsupportedStreamError:
    """Return the error for a property of CUDA objects that a host object lacks."""
    return errors.UnsupportedStreamError(
        f"{messages.describe(obj)} lives on the host and has no {what}, which only CUDA has. On a "
        "GPU, streamkit.new_stream('cuda') has one."
    )


def no_view(obj: object, kind: str, instead: str) -> errors.UnsupportedStreamError:
    """Return the error for a library's own object on a host object; ``instead`` is what to do."""
    return errors.UnsupportedStreamError(
        f"{messages.describe(obj)} lives on the host, where no library has {kind}s of its own. "
        f"Leave out to(): {instead}. On a GPU, streamkit.new_stream('cuda') has them."
    )


@classes.answer(names.answers("event"))
class HostEvent(Event, metaclass=classes.Concrete):
    """A point of a host stream. Safe to use from any thread.

    What it promises is documented on ``Event``. ``done``, ``sync`` and ``await`` raise the first
    error of the functions before the point, each time; the stream's own ``sync`` still raises it
    too. An error that a wait raised before the record is not raised again.
    """

    __slots__ = "__weakref__", "_closed", "_mark", "_source", "_timing"

    def __init__(self, *, timing: bool = False) -> None:
        self._mark: QueueEnd | None = None
        self._source: Callable[[], object] = lambda: None  # gives the recording stream
        self._timing = timing
        self._closed = False

    def _live(self) -> QueueEnd | None:
        if self._closed:
            raise messages.closed(self)
        if self._mark is not None and is_parents(self._mark):
            raise messages.of_parent(self)
        return self._mark

    @property
    def handle(self) -> NoReturn:
        raise no_cuda(self, "handle")

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def closed(self) -> bool:
        """Whether ``close`` has made this object unusable."""
        return self._closed

    @property
    def done(self) -> bool:
        mark = self._live()
        if mark is None:
            return True
        done = mark.done
        if done:
            trace.note(self._source(), "query", "done", mark)
        mark.raise_error()
        return done

    def sync(self, timeout: float | None = None, *, spin: bool = False) -> None:
        mark = self._live()
        if timeout is not None:
            timeout = messages.in_seconds(timeout, self)
        with trace.note(self._source(), "synchronisation", "event sync", mark):
            if mark is not None and not mark.wait(timeout, spin=spin) and timeout is not None:
                messages.raise_timeout(self, timeout)
        if mark is not None:
            mark.raise_error()

    def __await__(self) -> Generator[Any, Any, None]:
        mark = self._live()
        if mark is not None:
            yield from mark.__await__()
            trace.note(self._source(), "query", "await", mark)
            mark.raise_error()

    def __sub__(self, start: object) -> float:
        if not isinstance(start, HostEvent):
            return NotImplemented
        for event in (start, self):
            if not event._timing:
                raise ValueError(f"{event!r} measures no time: record it with timing=True")
        return (self._reached().time_ns - start._reached().time_ns) / 1e6

    def _reached(self) -> QueueEnd:
        mark = self._live()
        if mark is None or not mark.reached.is_set():
            instead = "record it, and " if mark is None else ""
            raise ValueError(f"{self!r} was not reached yet: {instead}call its sync() first")
        return mark

    def to(self, library: str) -> NoReturn:
        registry.check_name(library)
        raise no_view(self, "event", "other host streams take this event as it is, 's.wait(event)'")

    def close(self) -> None:
        self._closed = True

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: an event is not copied and not sent to another process."""
        raise messages.not_copied(self)

    def __repr__(self) -> str:
        if self._closed:
            return "<streamkit.HostEvent closed>"
        mark = self._mark  # not self.done, which would let an engine run something
        state = "unrecorded" if mark is None else "done" if mark.is_reached else "pending"
        return f"<streamkit.HostEvent {state}{' timing' if self._timing else ''}>"
