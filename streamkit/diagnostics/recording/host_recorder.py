"""The recorder of host streams, which tell each step themselves."""

from __future__ import annotations

import math
import os
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, ClassVar

from streamkit._queues import open_scopes, registry, trace
from streamkit._streams.host_queue import wait_for_all
from streamkit._streams.host_stream import HostStream
from streamkit._support.locks import new_lock
from streamkit.diagnostics.recording.operations import AuditedQueue, Given, Operation
from streamkit.errors import ForkedProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamkit.diagnostics.recording.operations import Kind, When
    from streamkit.protocols.watching import WatchedStep

_ROOTS = {*(row.root for row in registry.LIBRARIES if row.kernels), "numpy"}
_ROUNDS = 9  # of waiting for what functions have given meanwhile
_SHOWN: tuple[Kind, ...] = ("function", "scope", "record", "wait", "synchronisation")


class HostRecorder:
    """Records what all threads give to host streams, from ``start`` to ``stop``."""

    shown: ClassVar[dict[str, Kind]] = {**{kind: kind for kind in _SHOWN}, "future": "wait"}
    """The kinds of steps that are operations of a report, with the kinds of these."""

    def __init__(self, calls: Callable[[], int] = int) -> None:
        """Take a function that counts the calls of the driver so far."""
        self._lock = new_lock()
        self._steps: list[WatchedStep] = []
        self._calls = calls
        self._calls_before: list[When] = []  # by orders of steps, where the count changed
        self._listener = self.take  # one object, so that ``stop`` finds it
        self._process = os.getpid()

    def start(self) -> None:
        """Begin the recording."""
        trace.listeners.append(self._listener)

    def stop(self) -> None:
        """End the recording; submitted functions may still have to run."""
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

    def sync(self) -> None:
        """Wait until all work has run, but for what waits for this scope.

        What waits for a future, or for a scope of another thread, gets one second together.
        ForkedProcessError in a child that was forked after the recording began.
        """
        if self._process != os.getpid():
            raise ForkedProcessError(
                "this process was forked inside a block, whose report is its parent's. Leave it "
                "by os._exit(), or begin a block of its own here."
            )
        seen, late = -1, set[Any]()
        for _ in range(_ROUNDS):  # functions give work, perhaps again and again
            if seen == len(self._steps):
                break
            seen = len(self._steps)
            streams = {one.stream for one in self._steps if isinstance(one.stream, HostStream)}
            streams = {one for one in streams if not open_scopes.holds(one)}
            # a sync would raise errors of the block
            queues = [queue for one in streams for queue in (one._work, one._after)]  # noqa: SLF001
            wait_for_all(filter(None, queues), late)

    def operations(self, queue_of: Callable[[Any], AuditedQueue | None]) -> tuple[list[Given], int]:
        """Return the operations that ran, and how many functions have not run.

        ``queue_of`` finds the queue of a CUDA stream, or of an id, for which the host waited.
        """
        queues: dict[Any, Any] = {None: None}
        for stream in {step.stream for step in self._steps} - {None}:
            is_host = isinstance(stream, HostStream)
            queues[stream] = host_queue(stream) if is_host else queue_of(stream)
        found: list[Given] = []
        unfinished = 0
        for step, given in self.given_as(self._steps, lambda step: queues[step.stream]):
            point = step.mark if step.kind in ("record", "wait") else None
            has_run = step.end_ns if point is None else point.time_ns
            if not has_run:
                unfinished += step.kind in ("function", "scope")
            elif step.kind != "scope" or step.start_ns:  # else the scope could not be entered
                found.append(given)
        return found, unfinished

    def given_as(
        self,
        steps: Iterable[WatchedStep],
        queue_of: Callable[[WatchedStep], AuditedQueue | None],
    ) -> Iterator[tuple[WatchedStep, Given]]:
        """Yield the steps that a report shows, each as its operation."""
        recorded = {id(step.mark): step for step in self._steps if step.kind == "record"}
        recorded |= {id(step): step for step in self._steps if step.kind == "then"}
        for step in steps:
            kind = self.shown.get(step.kind)
            if kind is None:
                continue
            source = recorded.get(id(step.mark)) if kind == "wait" else None
            operation = Operation(
                kind,
                "wait" if kind == "wait" else step.name,
                queue_of(step),
                library_of(step) if kind == "function" else None,
                after=None if source is None else queue_of(source),
                blocks_host=kind == "synchronisation",
            )
            yield step, Given(operation, self.when(step), self.when(source or step))


def host_queue(stream: HostStream) -> AuditedQueue:
    """Return a host stream as a report names it."""
    return AuditedQueue("cpu", stream.name or f"host stream id={stream.id}", stream.id)


def library_of(step: WatchedStep) -> str | None:
    """Return the library of a step's function, None where its module does not tell."""
    root = str(step.module).partition(".")[0]  # None of a class made in C
    return root if root in _ROOTS else None
