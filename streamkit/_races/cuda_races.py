"""CUDA streams: the order of their work, and the races that it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit._base.queue import LEGACY
from streamkit._races import search
from streamkit._races.order import EVERYTHING, NOTHING, VectorClocks
from streamkit._races.report import RacedOperation, array_of, races_among
from streamkit._recording.driver_recorder import WORK, CudaQueue
from streamkit._recording.kernel_names import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from streamkit._races.memory_use import Launch
    from streamkit._races.order import Clock, Stamp
    from streamkit._races.places import Place
    from streamkit._races.report import Race
    from streamkit._races.search import Mode, Pair
    from streamkit._recording.driver_recorder import CudaStep
    from streamkit._recording.operations import AuditedQueue, Operation

_NONBLOCKING = 1


def stamps(
    program: Iterable[CudaStep],
    is_blocking: Callable[[CudaQueue], bool | None],
    *,
    threads_talk: bool,
) -> dict[float, Stamp]:
    """Return where each piece of work stands, by the number of its step.

    Without ``threads_talk`` a wait of the host orders only what its own thread gives later, and an
    order counts only if it is sure. With it, StreamKit supposes each order that there may be: what
    one thread learned, all know. ``is_blocking`` says whether a stream waits for the legacy one, or
    None if that is not known.
    """
    reader = _CudaReader(is_blocking, threads_talk=threads_talk)
    for step in program:
        reader.read(step)
    return reader.stamps


class _CudaReader:
    def __init__(
        self, is_blocking: Callable[[CudaQueue], bool | None], *, threads_talk: bool
    ) -> None:
        self.stamps: dict[float, Stamp] = {}
        self._is_blocking = is_blocking
        self._threads_talk = threads_talk
        self._clocks = VectorClocks()
        self._events: dict[int, Clock] = {}
        self._points: dict[int, Clock] = {}
        self._queues: dict[CudaQueue, int] = {}  # those that had work, with their contexts
        self._blocking: dict[CudaQueue, bool] = {}  # of the streams made meanwhile
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
        read = self._read.get(step.kind)
        if read is not None:
            read(step, None if self._threads_talk else step.fact.thread)

    def _use(self, step: CudaStep) -> CudaQueue:
        """Return the queue of a step, after ordering it with the legacy stream as each use does."""
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
        return self._clocks.point(queue, self)  # ``self`` is a host that has learned nothing

    def _waits_for_legacy(self, queue: CudaQueue) -> bool:
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
        self._clocks.wait(self._use(step), self._events.get(step.fields[1], NOTHING))

    def _point(self, step: CudaStep, host: Hashable) -> None:
        """Remember the point for which the host begins to wait."""
        if step.call.kind == "event done":
            clock = self._events.get(step.fields[0], NOTHING)
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
        """Order the use of new memory after what was freed there, because CUDA does so."""
        queue, start, size = self._use(step), step.fact.more, step.fields[1]
        self._sizes[start] = size
        for address, (end, clock) in list(self._freed.items()):
            overlaps = address < start + size and start < end
            if overlaps or self._threads_talk:
                self._clocks.wait(queue, clock)
            if overlaps:
                del self._freed[address]


# -- the races ------------------------------------------------------------------------------------


class PlacedLaunch(NamedTuple):
    """A piece of work, the line that gave it, and the queue on which it ran."""

    launch: Launch
    place: Place | None
    queue: CudaQueue

    @property
    def name(self) -> str:
        """What a report calls it."""
        return operation(self.launch.name, self.launch.library)


class Found(NamedTuple):
    """What was found on CUDA streams."""

    races: tuple[tuple[Race, Pair], ...] = ()
    works: tuple[tuple[str, bool], ...] = ()
    """The name of each piece of work, and whether all that it reads and writes is known."""
    unseen: tuple[str, ...] = ()
    """What could not be seen at all."""
    operations: tuple[Operation, ...] = ()
    """All that was given; their times are the numbers of their steps."""


def find(
    program: Sequence[CudaStep],
    works: Mapping[float, PlacedLaunch],
    queue_of: Callable[[CudaQueue], AuditedQueue],
    missing_call: Callable[[PlacedLaunch, PlacedLaunch], str],
    is_blocking: Callable[[CudaQueue], bool | None],
) -> Found:
    """Return what the steps of a program leave unordered.

    Args:
        program: The steps.
        works: What the steps do, by their numbers; a step that is not among them is left out.
        queue_of: Finds what a report calls a queue.
        missing_call: Words the call that orders the second of two pieces of work after the first.
        is_blocking: As for ``stamps``.
    """
    given = {
        int(step.number): works[step.number]
        for step in program
        if step.kind in WORK and step.number in works
    }

    def key(pair: Pair) -> Hashable:
        array = array_of(pair)
        whose = array.name or (array.dtype, array.shape, pair.one.mode, pair.other.mode)
        return given[pair.first].place, given[pair.second].place, whose

    def described(number: int, mode: Mode) -> RacedOperation:
        work = given[number]
        file, line = work.place or (None, 0)
        queue = queue_of(work.queue)
        return RacedOperation(work.name, work.launch.library, queue, mode, file, line, 0, 0)

    races = races_among(
        [
            search.Work(number, (work.place or number, work.queue), work.launch.accesses)
            for number, work in given.items()
        ],
        lambda threads_talk: stamps(program, is_blocking, threads_talk=threads_talk),
        key=key,
        operation=described,
        missing_call=lambda first, second: missing_call(given[first], given[second]),
    )
    counted = [
        works[step.number] for step in program if step.number in works and step.kind != "free"
    ]
    return Found(tuple(races), tuple((work.name, work.launch.is_known) for work in counted))
