"""The driver's calls as steps, each with the queue that it gives work, or orders."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from streamkit._cuda.memory_pools import Allocation
from streamkit.diagnostics.recording.calls import CALLS, FAILED, CallKind, DriverCall, Fact
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

StepKind = CallKind | Literal["point", "done"]

LAUNCHES: tuple[CallKind, ...] = ("launch", "launch with more")
"""The kinds of calls that launch a kernel."""
WORK: set[StepKind] = {
    *LAUNCHES, "copy", "copy and wait", "copy of rows", "fill", "fill of 2", "fill of 4",
    "graph launch", "host function", "other work", "wait for a value", "free",
}  # fmt: skip
"""The kinds of calls that give a queue work."""
ELEMENTS = {"fill": 1, "fill of 2": 2, "fill of 4": 4}
"""The bytes of an element, by the kinds of fills."""
_DONE = {"event done", "stream done", "device done", "copy and wait", "free and wait"}
_ENDS_MEMORY = {"free and wait", "memory gone", "memory unmapped"}
_EXTERNAL = 1  # the flag of a record or wait that becomes a node of a graph
_NODE = struct.Struct("<i12xQ")  # the sort of a graph's node, and its event if it has one
_OF_EVENTS = {6, 7}  # the sorts of nodes that wait for an event, and that record one
_EMPTY = struct.Struct("")


class CudaQueue(NamedTuple):
    """A queue, told apart from those that had its handle before or will have it later."""

    handle: int
    number: int
    """The number of streams that had the handle before; a default stream's context."""
    thread: int = 0
    """The thread of a per-thread stream."""


def queue_with(handle: int, context: int, thread: int, ended: int) -> CudaQueue:
    """Return the queue that has a handle in this context and thread, after ``ended`` others."""
    if handle == LEGACY:
        return CudaQueue(handle, context)
    if handle == PER_THREAD:
        return CudaQueue(handle, context, thread)
    return CudaQueue(handle, ended)


class CudaStep(NamedTuple):
    """A call that puts work on a queue, or orders the work."""

    number: float
    """The place among the facts; a point that the host waits for lies between two."""
    kind: StepKind
    call: DriverCall
    fact: Fact
    fields: tuple[int, ...]
    queue: CudaQueue | None
    point: int = -1
    """Of kind ``"point"`` or ``"done"``: the number of the call that waited for the point."""


def steps(facts: Sequence[Fact]) -> list[CudaStep]:
    """Return the steps of a program, without failed calls and captured work: these do not run."""
    reader = _Steps()
    for number, fact in enumerate(facts):
        if fact.more is not FAILED:
            reader.read(number, fact)
    return sorted(reader.steps, key=lambda step: step.number)


class _Steps:
    def __init__(self) -> None:
        self.steps: list[CudaStep] = []
        self._ended: dict[int, int] = {}  # the number of streams, by handles

    def read(self, number: int, fact: Fact) -> None:
        call = CALLS.get(fact.call)
        if call is None:
            name = fact.fields.decode(errors="replace")
            call = DriverCall("unknown", name, _EMPTY, None, is_per_thread=False)
            self.steps.append(CudaStep(number, "unknown", call, fact, (), None))
            return
        fields = tuple[int, ...](call.fields.unpack(fact.fields) if fact.fields else ())
        queue = self._queue(fact, fact.stream) if fact.stream else None
        step = CudaStep(number, call.kind, call, fact, fields, queue)
        if call.kind == "graph node":
            sort, event = _NODE.unpack(fact.more)
            if sort in _OF_EVENTS:
                self.steps.append(step._replace(kind="event in a graph", fields=(event,)))
        elif not fact.is_captured or call.kind == "stream destroyed":
            self._add(step)
        elif call.kind in ("record", "wait") and any(one & _EXTERNAL for one in fields[2:]):
            event = fields[0 if call.kind == "record" else 1]
            self.steps.append(step._replace(kind="event in a graph", fields=(event,)))

    def _add(self, step: CudaStep) -> None:
        number, kind, fact, fields = int(step.number), step.kind, step.fact, step.fields
        if kind == "stream destroyed":
            self._ended[fields[0]] = self._ended.get(fields[0], 0) + 1
        elif kind == "stream made":
            step = step._replace(queue=self._queue(fact, fact.more))
        elif kind in ("event made", "foreign event"):  # whose first field points to the handle
            step = step._replace(fields=(fact.more,))
        if fact.since is None or kind not in _DONE | _ENDS_MEMORY:
            self.steps.append(step)
            return
        if kind in _DONE:
            between = fact.since + (0.5 if kind == "copy and wait" else -0.5)
            point = step._replace(number=between, kind="point", point=number)
            self.steps += point, step._replace(kind="done", point=number)
        if kind in _ENDS_MEMORY:  # another thread can have it again before the call returns
            gone = fact.more
            if kind == "memory unmapped":
                gone = Allocation(fields[0], fields[1], is_host=False, context=0)
            step = step._replace(kind="memory gone", fact=fact._replace(more=gone))
            self.steps.append(step._replace(number=fact.since - 0.25))

    def _queue(self, fact: Fact, handle: int) -> CudaQueue:
        return queue_with(handle, fact.context, fact.thread, self._ended.get(handle, 0))
