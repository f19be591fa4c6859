"""The recorder of host streams, which tell each step themselves."""

from __future__ import annotations

import functools
import math
import threading
import time
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any

from streamkit._queues import open_scopes, registry, trace
from streamkit._streams.host_stream import HostStream
from streamkit._support import workers
from streamkit._support.locks import new_lock
from streamkit.diagnostics.recording.operations import AuditedQueue, Given, Operation, WaitTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.diagnostics.recording.operations import Kind, When
    from streamkit.protocols.watching import WatchedStep

_ROOTS = {*(row.root for row in registry.LIBRARIES if row.kernels), "numpy"}
SHOWN: dict[str, Kind] = {
    "function": "function",
    "scope": "scope",
    "record": "record",
    "wait": "wait",
    "synchronisation": "synchronisation",
}
"""The kinds of steps that are operations of a report."""


class HostRecorder:
    """Records what all threads give to host streams, from ``start`` to ``stop``."""

    def __init__(self, calls: Callable[[], int] = int) -> None:
        """Take what counts the calls of the driver so far."""
        self._lock = new_lock()
        self._steps: list[WatchedStep] = []
        self._calls = calls
        self._calls_before: list[tuple[int, int]] = []  # the orders of steps, where it changed
        self._began_ns = 0
        self._listener = self.take  # one object, to be found again

    def start(self) -> None:
        """Begin."""
        self._began_ns = time.perf_counter_ns()
        trace.listeners.append(self._listener)

    def stop(self) -> None:
        """End; what was given so far may still have to run."""
        trace.listeners.remove(self._listener)

    def take(self, step: WatchedStep) -> None:
        """Note a step, in the thread that gives it."""
        calls = self._calls()
        if not self._calls_before or calls != self._calls_before[-1][1]:
            with self._lock:
                insort(self._calls_before, (step.order, calls))
        self._steps.append(step)

    def when(self, step: WatchedStep) -> When:
        """Return when a step was given."""
        before = bisect_right(self._calls_before, (step.order, math.inf))
        return self._calls_before[before - 1][1], step.order

    def sync(self, *, is_end: bool = False) -> None:
        """Wait until what was given has run, but for a queue that goes on when this scope ends.

        It gives up what may never run, if no thread of the program is left that could see to it.
        Where this ``is_end`` of the program, daemon threads do not count, because they end with it.
        """
        others = functools.partial(_has_others, is_end=is_end)
        for stream in {one.stream for one in self._steps if isinstance(one.stream, HostStream)}:
            if not open_scopes.holds(stream):
                stream._work.has_run(others)  # noqa: SLF001 - a sync would raise errors of the block

    def operations(
        self, queue_of: Callable[[Any], AuditedQueue | None] | None = None
    ) -> tuple[list[Given], int]:
        """Return what ran, in nanoseconds since the start, and how many functions have not.

        ``queue_of`` finds the queue of a CUDA stream, or of an id, for which the host waited.
        """
        queues: dict[Any, Any] = {None: None}
        for stream in {step.stream for step in self._steps} - {None}:
            if isinstance(stream, HostStream):
                queues[stream] = host_queue(stream)
            else:
                queues[stream] = None if queue_of is None else queue_of(stream)
        marked = {id(step.mark): step for step in self._steps if step.kind == "record"}
        wait_times = WaitTimes(
            (queues[step.stream], step.order, step.start_ns, step.end_ns)
            for step in self._steps
            if step.kind in ("function", "scope")
        )
        found: list[Given] = []
        unfinished = 0
        for step in self._steps:
            kind = SHOWN.get(step.kind)
            if kind is None:
                continue
            queue, after, source = queues[step.stream], None, None
            mark = step.mark if step.kind in ("record", "wait") else None
            start, end = step.start_ns, step.end_ns
            if mark is not None:
                start = end = max(mark.time_ns, step.given_ns)
            if step.kind == "wait":
                source = marked.get(id(mark))
                after = None if source is None else queues[source.stream]
                end = wait_times.went_on(queue, step.order, end)
            if kind == "scope" and end and not start:  # it could not be entered
                continue
            if not (end if mark is None else mark.time_ns):
                unfinished += step.kind in ("function", "scope")
                continue
            times = start - self._began_ns, end - self._began_ns
            operation = operation_of(step, kind, queue, after, times)
            when = self.when(step)
            found.append(Given(operation, when, when if source is None else self.when(source)))
        return found, unfinished


def operation_of(
    step: WatchedStep,
    kind: Kind,
    queue: AuditedQueue | None,
    after: AuditedQueue | None,
    times: tuple[int, int] = (0, 0),
) -> Operation:
    """Return what a report shows of a step."""
    library = library_of(step) if kind == "function" else None
    blocks = kind == "synchronisation"
    return Operation(kind, step.name, queue, *times, library, after=after, blocks_host=blocks)


def _has_others(*, is_end: bool) -> bool:
    """Whether the program has other threads than this one."""
    here = threading.current_thread()
    return any(
        not (one is here or isinstance(one, workers.Thread) or (is_end and one.daemon))
        for one in threading.enumerate()
    )


def host_queue(stream: HostStream) -> AuditedQueue:
    """Return what a report calls a host stream."""
    return AuditedQueue("cpu", stream.name or f"host stream id={stream.id}", stream.id)


def library_of(step: WatchedStep) -> str | None:
    """Return whose function it is, where its module tells; None for any other module."""
    root = step.module.partition(".")[0]
    return root if root in _ROOTS else None
