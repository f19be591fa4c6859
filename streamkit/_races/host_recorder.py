"""Host streams: from the steps that they report to work, the memory it uses, and its order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._base.trace import Step
from streamkit._host.stream import HostStream
from streamkit._races import calls
from streamkit._races.arrays import Memories
from streamkit._races.order import EVERYTHING, VectorClocks
from streamkit._recording import places
from streamkit._recording.host_recorder import HostRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from streamkit._races.order import Clock, Stamp
    from streamkit._races.search import Access
    from streamkit._recording.places import Place


class Given(NamedTuple):
    """A piece of work, as it was given."""

    step: Step
    place: Place | None
    accesses: tuple[Access, ...]
    is_known: bool
    """Whether all that it reads and writes is known."""
    is_future: bool
    """Whether it only waits for a future."""
    streams: Mapping[int, str]
    """What the code of its place calls host streams, by their ids."""


class RaceRecorder(HostRecorder):
    """Records what all threads give to host streams, with the memory that it uses."""

    def __init__(self, arrays: Mapping[str, object], calls: Callable[[], int]) -> None:
        """Take arrays by their names, and what counts the calls of the driver so far."""
        super().__init__()
        self.given: dict[int, Given] = {}
        """By the order of their steps."""
        self._arrays = dict(arrays)
        self._calls = calls
        self._calls_before: dict[int, int] = {}  # by the orders of steps
        self._memories = Memories()
        self._lock = threading.Lock()

    @property
    def steps(self) -> list[Step]:
        """All steps, in the order in which they were given."""
        return sorted(self._steps, key=lambda step: step.order)

    def times(self, step: Step) -> tuple[int, int]:
        """Return when a step ran, in nanoseconds since the start; twice 0 if it did not."""
        if not step.end_ns:
            return 0, 0
        return step.start_ns - self._began_ns, step.end_ns - self._began_ns

    def when(self, order: int) -> tuple[int, int]:
        """Return when the step of this order was given: after how many calls of the driver."""
        return self._calls_before[order], order

    def take(self, step: Step) -> None:
        """Note a step and what it uses, in the thread that gives it."""
        self._calls_before[step.order] = self._calls()
        super().take(step)
        if step.kind in ("function", "then", "scope"):
            self.given[step.order] = self._read(step)

    def _read(self, step: Step) -> Given:
        frame = places.users_frame()
        place, variables = places.place_of(frame), places.variables(frame)
        streams = {one.id: name for name, one in variables if isinstance(one, HostStream)}
        if step.call is None:
            is_future = step.kind == "function"
            return Given(step, place, (), isinstance(step.mark, Step), is_future, streams)
        names = {id(one): name for name, one in (*variables, *self._arrays.items())}
        found: list[Access] = []
        try:
            uses, is_known = calls.uses(step.call)
            with self._lock:
                for use in uses:
                    access = self._memories.access(use, names)
                    if access is not None:
                        found.append(access)
        except Exception:  # noqa: BLE001 - of somebody's object; the program must not fail of it
            is_known = False
        return Given(step, place, tuple(found), is_known, is_future=False, streams=streams)


def stamps(
    steps: Iterable[Step], given: Mapping[int, Given], *, threads_talk: bool
) -> dict[int, Stamp]:
    """Return where each piece of work stands, by the order of its step.

    Without ``threads_talk`` a wait of the host orders only what its own thread gives later. With
    it, StreamKit supposes that threads told each other everything: what one thread learned, all
    know, and a function that StreamKit does not know has told all threads that it ran. Work that is
    unordered even so surely has no order.
    """
    reader = _Reader(given, threads_talk=threads_talk)
    for step in steps:
        reader.read(step)
    return reader.stamps


class _Reader:
    def __init__(self, given: Mapping[int, Given], *, threads_talk: bool) -> None:
        self.stamps: dict[int, Stamp] = {}
        self._given = given
        self._threads_talk = threads_talk
        self._clocks = VectorClocks()
        self._marks: dict[int, Clock] = {}  # by the ids of marks, which the steps keep
        self._bodies: dict[tuple[Hashable, Any], Hashable] = {}  # by who holds which stream
        self._waits: list[tuple[Step, Hashable, Clock]] = []  # that may go on
        self._read: dict[str, Callable[[Step, Hashable], None]] = {
            "function": self._function,
            "then": self._then,
            "scope": self._scope,
            "record": self._point,
            "point": self._point,
            "wait": self._wait,
            "synchronisation": self._synchronisation,
            "query": self._query,
        }

    def read(self, step: Step) -> None:
        for wait in self._waits.copy():
            ended, host, clock = wait
            if ended.end_ns and ended.end_ns <= step.given_ns:
                self._waits.remove(wait)
                if not ended.has_failed:  # else it has waited for nothing
                    self._clocks.learn(host, clock)
        host = self._host(step)
        self._read[step.kind](step, host)

    def _giver(self, step: Step) -> Hashable:
        """Return who gives a step: a function that runs on a queue, or a thread."""
        giver = step.giver
        if giver is not None and giver.order in self.stamps:
            return giver
        return step.thread

    def _host(self, step: Step) -> Hashable:
        giver = self._giver(step)
        host = None if self._threads_talk else giver
        if isinstance(giver, Step):
            self._clocks.learn(host, self.stamps[giver.order].clock)
        return host

    def _function(self, step: Step, host: Hashable) -> None:
        given = self._given[step.order]
        if given.is_future:
            self._wait_for_future(step, host)
            return
        giver = self._giver(step)
        if not step.is_inline:
            stamp = self._clocks.work(step.stream, host)
        elif isinstance(giver, Step) and giver.stream is step.stream:  # a part of that function
            stamp = self.stamps[giver.order]._replace(clock=self._clocks.here(host))
        else:
            if (giver, step.stream) not in self._bodies:  # entered before the block
                self._scope(step, host)
            stamp = self._clocks.work_inside(self._bodies[giver, step.stream], host)
        self._stamp(step, stamp, given)

    def _then(self, step: Step, host: Hashable) -> None:
        queue = step.stream, "then"
        self._clocks.wait(queue, self._here(step, host))
        self._stamp(step, self._clocks.work(queue, host), self._given[step.order])

    def _stamp(self, step: Step, stamp: Stamp, given: Given) -> None:
        self.stamps[step.order] = stamp
        if self._threads_talk and (step.kind == "then" or not given.is_known):
            self._clocks.learn(None, stamp.clock)

    def _scope(self, step: Step, host: Hashable) -> None:
        self._bodies[self._giver(step), step.stream] = self._clocks.enter(step.stream, host)

    def _here(self, step: Step, host: Hashable) -> Clock:
        """Return the present point of the step's queue."""
        return self._clocks.here(host) if step.is_inline else self._clocks.point(step.stream, host)

    def _point(self, step: Step, host: Hashable) -> None:
        self._marks[id(step.mark)] = self._here(step, host)

    def _wait(self, step: Step, host: Hashable) -> None:
        self._wait_for(step, host, self._marks.get(id(step.mark), {}))

    def _wait_for_future(self, step: Step, host: Hashable) -> None:
        told = step.mark
        if isinstance(told, Step):
            if told.order in self.stamps:
                self._wait_for(step, host, self.stamps[told.order].clock)
        elif self._threads_talk:
            self._wait_for(step, host, EVERYTHING)

    def _wait_for(self, step: Step, host: Hashable, clock: Clock) -> None:
        if step.is_inline:
            self._clocks.learn(host, clock)
        else:
            self._clocks.wait(step.stream, clock)

    def _synchronisation(self, step: Step, host: Hashable) -> None:
        self._waits.append((step, host, self._reached(step, host)))

    def _query(self, step: Step, host: Hashable) -> None:
        self._clocks.learn(host, self._reached(step, host))

    def _reached(self, step: Step, host: Hashable) -> Clock:
        """Return the clock of what the host waited for, or of what it saw to have ended."""
        mark = step.mark
        if isinstance(mark, Step):
            return self.stamps[mark.order].clock if mark.order in self.stamps else {}
        if mark is not None:
            return self._marks.get(id(mark), {})
        return self._here(step, host) if isinstance(step.stream, HostStream) else {}
