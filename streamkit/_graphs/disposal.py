"""Graphs that were given up: destroyed with all that they hold, as soon as that is safe.

The memory of a graph must outlast the last run, and many calls that free memory are illegal in
the thread of a capture, whoever began it: torch (2.11) ends the process if a graph dies there. So
graphs wait here for the next capture, launch, end of a graph or drain of kept objects. Memory of a
library's pool waits until the work has run that the queues had when the graph or capture ended.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._cuda import driver, events, graphs
from streamkit._graphs import checks
from streamkit._queues import (
    active_captures,
    identity,
    keepalive,
    loaded_libraries,
    ordering,
    registry,
)
from streamkit._queues.lifetime import OwnedEvent
from streamkit.protocols import Queue
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamkit._cuda.graphs import Section
    from streamkit._streams.stream import CudaStream
    from streamkit.protocols import JoinedPart
    from streamkit.protocols.queues import QueueRecord

T = TypeVar("T")


class Runs:
    """The runs of one executable graph. One thread at a time uses it.

    CUDA runs them one after another, whatever their streams: when the last one has ended, all have.
    On a queue that lives as long as its record, an event is recorded only when the end of the runs
    is looked for. On any other queue each run has its event, because its handle may be gone then.
    """

    def __init__(self) -> None:
        # the place of the last run; several only after an error, which can leave a run behind
        self._points: tuple[QueueRecord | OwnedEvent, ...] = ()
        self._number: int | tuple[int, int, int] | None = None  # of the last queue, if in order
        self._spare: OwnedEvent | None = None  # the event of the run before the last
        self.steady: QueueRecord | None = None
        """The queue of the last run, if another run there needs no further note."""

    def add(self, queue: QueueRecord, run: Callable[[], T], *, in_order: bool) -> T:
        """Queue a run by calling ``run``, and return its result.

        ``in_order`` says that a library does something on the stream before each run: a run on
        another queue then waits for the last one first, and each run has an event.
        """
        before = self._points
        if not in_order and lives_with_its_record(queue):
            self._points = (*before, queue)
            result = run()
            self._points, self.steady = (queue,), queue
            return result
        if in_order:
            number = queue.id or identity.public_id(queue)  # which finds it after a capture
            if number != self._number:
                for event in before:
                    ordering.wait_event(queue, event.handle)
            self._number = number
        event, self._spare = self._spare or OwnedEvent(queue.context), None
        try:
            result = run()
        finally:  # an interrupt can come when the run is queued already
            ordering.mark(event, queue)
            self._points = (*before, event)
        self._points, self.steady = (event,), None
        if before and isinstance(before[-1], OwnedEvent):
            self._spare = before[-1]
        return result

    def have_ended(self) -> bool:
        """Whether all runs have ended; False also while a queue captures, so that none can ask.

        The thread must be inside ``beside_captures``.
        """
        for point in self._points:
            if isinstance(point, OwnedEvent):
                has_ended = events.query(point.handle)
            else:
                has_ended = ordering.capture_of(point) is None and driver.query(point.handle)
                event = None if has_ended else _marked(point)
                if event is not None:
                    self._points = tuple(event if one is point else one for one in self._points)
            if not has_ended:
                return False
        self._points = ()
        return True


def lives_with_its_record(queue: QueueRecord) -> bool:
    """Whether the handle is valid as long as its record is held."""
    return queue.handle > PER_THREAD and any(
        record.is_owned or record.permanent or record.dies_with_owner
        for record in queue.all_records()
    )


def _marked(queue: QueueRecord) -> OwnedEvent | None:
    """Return an event after the queue's work so far, None while the queue captures."""
    event = OwnedEvent(queue.context)
    return event if ordering.mark_outside_capture(event, queue) else None


class UsedPools:
    """The libraries' pools of a capture: kept for the work that the queues have at the end."""

    def __init__(self, queue: QueueRecord, pools: tuple[object, ...]) -> None:
        self.context, self._device = queue.context, queue.device
        self._pools = pools

    def end(self) -> bool:
        """Let go of the pools when the queues' present work has run."""
        for queue in _readers(self._device) if self._pools else ():
            # the work may use an array of the pool to which no reference is left
            keepalive.keep(queue, queue, self._pools)
        self._pools = ()
        return True


class OwnedGraph(UsedPools):
    """An executable graph, and the objects that have to live as long."""

    _is_destroyed = False

    def __init__(
        self,
        executable: Any,  # a ``CapturedGraph``, or the ``DriverGraph`` if there is no library
        library: str | None,
        queue: QueueRecord,
        pools: tuple[object, ...],
    ) -> None:
        super().__init__(queue, pools)
        self.executable = executable
        self.library = library  # that began the capture; None if the driver began it
        self.stream_id = identity.public_id(queue)
        self._by_library = library is not None  # whether that one launches the graph
        self.held: list[Any] = []
        self.kept: list[object] = []  # by ``keep``, also later
        self.sections: list[Section] = []  # of its capture
        self.runs = Runs()
        self.copied: OwnedEvent | None = None  # after the copies that belong to the last run

    def launch(self, target: CudaStream[Any], queue: QueueRecord) -> None:
        """Queue a run on a stream, whose queue does not capture; one thread at a time."""
        # also if the driver launches the graph by now: the library refuses a stream each time
        native = None if self.library is None else target.to(self.library)
        run = (
            functools.partial(self.executable.launch, native)
            if self._by_library
            else functools.partial(graphs.launch, self.executable.executable, queue.handle)
        )
        # the driver orders the runs, but not a library's work before each run
        if driver.ensure_in(self.context, self.runs.add, queue, run, in_order=self._by_library):
            self._by_library = False

    def end(self) -> bool:
        """Destroy the graph, then let go of its objects; False if that cannot be done now."""
        if not self.runs.have_ended() or (self.copied and not events.query(self.copied.handle)):
            return False
        if not self._is_destroyed:
            self.executable.close()
            self._is_destroyed = True
            if self.library is not None:
                _ended.append(self.library)
        self.held, self.kept = [], []
        return super().end()


def _readers(device: int) -> Iterator[QueueRecord]:
    """Yield the device's queues that may have been given work with a pool's memory."""
    for queue in checks.known_queues(device):
        if queue.handle > LEGACY:
            yield queue
    yield identity.identify(Queue(LEGACY, device))
    for library in loaded_libraries.found_so_far():
        native = library.current(device)
        found, adapter = registry.extract(native)
        if found.handle > LEGACY:
            yield identity.identify(found, adapter, native)


_MANY, _TOO_MANY = 8, 64
_ended: list[str] = []
"""The libraries that began the captures of ended graphs, whose memory is left in their caches.

Each graph has memory of its own, so no later graph and no other library finds it there.
"""


def caches_are_due() -> bool:
    """Whether the libraries should free this memory before a capture, as many graphs left some.

    That waits for the devices. So it is due when the queues have no work, or when too many graphs
    have ended.
    """
    is_due = len(_ended) >= _TOO_MANY
    if not is_due and len(_ended) >= _MANY:
        with contextlib.suppress(Exception):  # as in ``sweep``
            is_due = driver.call_beside_captures(_are_idle)
    if is_due:
        _ended.clear()
    return is_due


def _are_idle() -> bool:
    """Whether no known queue has work, on any device, as the caches of all are emptied."""
    return all(
        ordering.capture_of(queue) is None and ordering.on(queue, driver.query, queue.handle)
        for device in {*driver.device_of.values()}
        for queue in _readers(device)
    )


waiting: deque[UsedPools] = deque()
"""The graphs and pools to end. A deque, because its append needs no lock."""


def dispose(graph: OwnedGraph) -> None:
    """Destroy a graph with all that it holds, now or later; safe in a destructor."""
    waiting.append(graph)
    sweep()


def sweep(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Destroy the waiting graphs that can be destroyed by now."""
    if not waiting or is_finalizing() or active_captures.any_goes_on() or not driver.is_usable():
        return
    for _ in range(len(waiting)):
        try:
            graph = waiting.popleft()
        except IndexError:  # other threads have taken the rest
            return
        stays = True
        try:
            # this fails in a broken context, which every other call reports, or at a queue that
            # captures; a library's calls leave its device current, where torch looks at captures
            context = driver.in_context(graph.context)
            with contextlib.suppress(Exception), driver.beside_captures(), context:
                stays = checks.a_library_captures_here() or not graph.end()
        finally:
            if stays:
                waiting.append(graph)
        del graph  # its objects end here, not with the next graph


keepalive.add_sweep(waiting, sweep)


def free_deferred(parts: Sequence[JoinedPart], context: int) -> None:
    """Let libraries free the memory that they kept for captures and graphs, right after a capture.

    Not later: CUDA gives the addresses of a graph that never ran to the next graph. Once the next
    graph has run, a late free would take its memory.
    """
    if active_captures.any_goes_on() or not driver.is_usable():
        return
    with driver.beside_captures(), driver.in_context(context):
        if not checks.a_library_captures_here():
            for part in parts:
                part.free_deferred()
