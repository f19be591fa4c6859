"""CUDA streams: from the calls of the driver to work and its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit._base.queue import LEGACY, PER_THREAD
from streamkit._cuda.driver_callbacks import Kernel
from streamkit._cuda.driver_calls import CALLS
from streamkit._races.order import EVERYTHING, VectorClocks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from streamkit._cuda.driver_callbacks import Fact
    from streamkit._cuda.driver_calls import DriverCall
    from streamkit._races.order import Clock, Stamp

_NONBLOCKING = 1
WORK = {
    "launch", "launch with more", "copy", "copy and wait", "copy of rows", "fill", "fill of 2",
    "fill of 4", "other work", "wait for a value", "free",
}  # fmt: skip
"""The kinds of calls that give a queue work."""
_DONE = {"event done", "stream done", "device done", "copy and wait"}


class CudaQueue(NamedTuple):
    """A queue, told from others that have its handle before or after it."""

    handle: int
    number: int
    """How many streams had the handle before; of a default stream its context."""
    thread: int = 0
    """Of a per-thread stream."""


class CudaStep(NamedTuple):
    """One call that puts work on a queue, or orders it."""

    number: float
    """Its place among the facts; a point that something waits for lies between them."""
    kind: str
    call: DriverCall
    fact: Fact
    fields: tuple[int, ...]
    queue: CudaQueue | None
    point: int = -1
    """Which one was waited for."""


def steps(facts: Sequence[Fact], capturing: Iterable[int] = ()) -> list[CudaStep]:
    """Return the steps of a program, without what was captured: that does not run.

    ``capturing`` are the streams that captured at the beginning.
    """
    reader = _Steps(capturing)
    for number, fact in enumerate(facts):
        reader.read(number, fact)
    return sorted(reader.steps, key=lambda step: step.number)


class _Steps:
    def __init__(self, capturing: Iterable[int]) -> None:
        self.steps: list[CudaStep] = []
        self._ended: dict[int, int] = {}  # how many streams of this handle
        self._captures: dict[CudaQueue, object] = {
            CudaQueue(handle, 0): object() for handle in capturing
        }
        self._captured: dict[int, object] = {}  # events, by the captures that recorded them

    def read(self, number: int, fact: Fact) -> None:
        """Read the next call."""
        call = CALLS[fact.call]
        is_launch = isinstance(fact.more, tuple)
        fields = () if is_launch else call.fields.unpack(fact.fields)
        queue = None
        if is_launch:
            queue = self._queue(fact, Kernel(*fact.more).stream)
        elif call.stream is not None or call.kind in WORK:
            queue = self._queue(fact, call.stream_of(fields))
        if self._is_captured(call.kind, queue, fields):
            return
        if call.kind == "stream destroyed":
            self._ended[fields[0]] = self._ended.get(fields[0], 0) + 1
        elif call.kind == "stream made":
            queue = self._queue(fact, fact.more)
        step = CudaStep(number, call.kind, call, fact, fields, queue)
        if fact.since is not None and call.kind in _DONE:
            between = fact.since + (0.5 if call.kind == "copy and wait" else -0.5)
            point = step._replace(number=between, kind="point", point=number)
            self.steps += point, step._replace(kind="done", point=number)
        else:
            self.steps.append(step)

    def _queue(self, fact: Fact, handle: int) -> CudaQueue:
        if handle == LEGACY:
            return CudaQueue(handle, fact.context)
        if handle == PER_THREAD:
            return CudaQueue(handle, fact.context, fact.thread)
        return CudaQueue(handle, self._ended.get(handle, 0))

    def _is_captured(self, kind: str, queue: CudaQueue | None, fields: tuple[int, ...]) -> bool:
        """Whether a call is part of a capture: also by a wait for an event of one."""
        if queue is None:
            return False
        if kind == "begin of capture":
            self._captures[queue] = object()
        capture = self._captures.get(queue)
        if kind == "wait":
            capture = self._captured.get(fields[1], capture)
            if capture is not None:
                self._captures[queue] = capture
        elif kind == "record":
            self._captured.pop(fields[0], None)
            if capture is not None:
                self._captured[fields[0]] = capture
        elif kind == "end of capture" and capture is not None:
            others = {one: whose for one, whose in self._captures.items() if whose is not capture}
            self._captures = others
            events = {one: whose for one, whose in self._captured.items() if whose is not capture}
            self._captured = events
        return capture is not None


def stamps(
    program: Iterable[CudaStep],
    is_blocking: Callable[[CudaQueue], bool | None],
    *,
    threads_talk: bool,
) -> dict[float, Stamp]:
    """Return where each piece of work stands, by the number of its step.

    Without ``threads_talk`` a wait of the host orders only what its own thread gives later, and
    nothing counts that is not sure. With it, StreamKit supposes each order that there may be: what
    one thread learned, all know. ``is_blocking`` tells whether a stream waits for the legacy one,
    None if it is not known.
    """
    reader = _CudaReader(is_blocking, threads_talk=threads_talk)
    for step in program:
        reader.read(step)
    return reader.stamps


class _CudaReader:
    """Reads steps in their order."""

    def __init__(
        self, is_blocking: Callable[[CudaQueue], bool | None], *, threads_talk: bool
    ) -> None:
        self.stamps: dict[float, Stamp] = {}
        self._is_blocking = is_blocking
        self._threads_talk = threads_talk
        self._clocks = VectorClocks()
        self._events: dict[int, Clock] = {}
        self._points: dict[int, Clock] = {}
        self._queues: dict[CudaQueue, int] = {}  # all that there was something on, and whose
        self._blocking: dict[CudaQueue, bool] = {}  # of the new ones
        self._sizes: dict[int, int] = {}  # of allocations
        self._freed: dict[int, tuple[int, Clock]] = {}
        self._read: Mapping[str, Callable[[CudaStep, Hashable], None]] = {
            **dict.fromkeys(WORK, self._work),
            "record": self._record,
            "wait": self._wait,
            "point": self._point,
            "done": self._done,
            "stream made": self._made,
            "event destroyed": self._event_destroyed,
            "foreign event": self._foreign_event,
            "allocation": self._allocation,
        }

    def read(self, step: CudaStep) -> None:
        """Read the next step."""
        read = self._read.get(step.kind)
        if read is not None:
            read(step, None if self._threads_talk else step.fact.thread)

    def _use(self, step: CudaStep) -> CudaQueue:
        """Return the queue of a step, ordered as each use of it is: with the legacy stream."""
        queue, context = step.queue, step.fact.context
        assert queue is not None  # noqa: S101 - the kinds that come here have one
        context = self._queues.setdefault(queue, context)
        if queue.handle == LEGACY:
            for other, whose in self._queues.items():
                if whose == context and self._waits_for_legacy(other):
                    self._clocks.wait(queue, self._end_of(other))
        elif self._waits_for_legacy(queue):
            self._clocks.wait(queue, self._end_of(CudaQueue(LEGACY, context)))
        return queue

    def _end_of(self, queue: CudaQueue) -> Clock:
        return self._clocks.point(queue, self)  # of nobody who has learned anything

    def _waits_for_legacy(self, queue: CudaQueue) -> bool:
        if queue.handle <= PER_THREAD:
            return queue.handle == PER_THREAD
        known = self._blocking.get(queue)
        if known is None:
            known = self._is_blocking(queue)
        return self._threads_talk if known is None else known

    def _work(self, step: CudaStep, host: Hashable) -> None:
        queue = self._use(step)
        if step.kind == "wait for a value":
            self._clocks.wait(queue, EVERYTHING)
        stamp = self.stamps[step.number] = self._clocks.work(queue, host)
        if step.kind == "free":
            address = step.fields[0]
            self._freed[address] = address + self._sizes.pop(address, 1), stamp.clock
        is_for_the_host = step.call.stream is None or step.call.name == "cuMemcpyDtoHAsync"
        if self._threads_talk and step.kind.startswith("copy") and is_for_the_host:
            self._clocks.learn(host, stamp.clock)  # it may have waited

    def _record(self, step: CudaStep, host: Hashable) -> None:
        self._events[step.fields[0]] = self._clocks.point(self._use(step), host)

    def _wait(self, step: CudaStep, _: Hashable) -> None:
        self._clocks.wait(self._use(step), self._events.get(step.fields[1], {}))

    def _point(self, step: CudaStep, host: Hashable) -> None:
        """Note the point for which the host begins to wait."""
        if step.call.kind == "event done":
            clock = self._events.get(step.fields[0], {})
        elif step.call.kind == "device done":
            everybody = object()
            for queue, context in self._queues.items():
                if context == step.fact.context:
                    self._clocks.learn(everybody, self._clocks.point(queue, host))
            clock = self._clocks.here(everybody)
        else:
            clock = self._clocks.point(self._use(step), host)
        self._points[step.point] = clock

    def _done(self, step: CudaStep, host: Hashable) -> None:
        self._clocks.learn(host, self._points.pop(step.point))

    # -- what is made, and what ends ------------------------------------------------------------

    def _made(self, step: CudaStep, _: Hashable) -> None:
        assert step.queue is not None  # noqa: S101 - the new one
        self._blocking[step.queue] = not step.fields[1] & _NONBLOCKING

    def _event_destroyed(self, step: CudaStep, _: Hashable) -> None:
        self._events.pop(step.fields[0], None)

    def _foreign_event(self, step: CudaStep, _: Hashable) -> None:
        self._events[step.fact.more] = EVERYTHING  # another process can have recorded anything

    def _allocation(self, step: CudaStep, _: Hashable) -> None:
        """Order the use of memory after what was freed there: CUDA sees to that."""
        queue, start, size = self._use(step), step.fact.more, step.fields[1]
        self._sizes[start] = size
        for address, (end, clock) in list(self._freed.items()):
            overlaps = address < start + size and start < end
            if overlaps or self._threads_talk:
                self._clocks.wait(queue, clock)
            if overlaps:
                del self._freed[address]
