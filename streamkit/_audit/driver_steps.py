"""From the calls of the driver to steps: work on queues, and what orders it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit._base.queue import LEGACY, PER_THREAD
from streamkit._cuda.driver_callbacks import Kernel
from streamkit._cuda.driver_calls import CALLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamkit._cuda.driver_callbacks import Fact
    from streamkit._cuda.driver_calls import DriverCall

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


def queue_with(handle: int, context: int, thread: int, ended: int) -> CudaQueue:
    """Return the queue that has a handle in this context and thread, as ``ended`` others had it."""
    if handle == LEGACY:
        return CudaQueue(handle, context)
    if handle == PER_THREAD:
        return CudaQueue(handle, context, thread)
    return CudaQueue(handle, ended)


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
        fields = tuple[int, ...](() if is_launch else call.fields.unpack(fact.fields))
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
        return queue_with(handle, fact.context, fact.thread, self._ended.get(handle, 0))

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
