"""CUDA streams: the order of their work, and the races that it leaves."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from streamkit.diagnostics.races import search
from streamkit.diagnostics.races.order import (
    EVERYTHING,
    NOTHING,
    Stamp,
    VectorClocks,
    is_before,
    joined,
)
from streamkit.diagnostics.races.report import (
    Race,
    RacedOperation,
    array_of,
    fix,
    missing_wait,
    races_among,
)
from streamkit.diagnostics.recording.kernel_names import operation
from streamkit.diagnostics.recording.steps import WORK, CudaQueue
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from streamkit.diagnostics.races.memory_use import Launch
    from streamkit.diagnostics.races.order import Clock
    from streamkit.diagnostics.races.search import Mode, Pair
    from streamkit.diagnostics.recording.driver_recorder import KnownQueue
    from streamkit.diagnostics.recording.operations import AuditedQueue, Given
    from streamkit.diagnostics.recording.places import Place
    from streamkit.diagnostics.recording.steps import CudaStep

    Variable = tuple[str, bool]
    """What a line calls a stream, and whether it is a StreamKit stream, with a method ``wait``."""

_DEFAULTS = {
    LEGACY: ("sk.default_stream()", True),
    PER_THREAD: ("sk.default_stream(per_thread=True)", True),
}
_GRAPHS, _FREES = object(), object()
"""Two more hosts to the clocks: one learns of all launches of graphs, the other of all frees."""
_BETWEEN_CONTEXTS = {"cuMemcpyPeer", "cuMemcpy3DPeer"}
"""Copies that are in order with all work of the two contexts, before and afterwards."""
_LOOKED_AT = ("copy", "copy and wait", "event done", "stream done", "device done")
"""The calls at which the recorder looks at the pinned memory of uploads."""


class _CudaReader:
    """Reads the steps of a program in order, and finds where each piece of work stands.

    An order counts only if it is sure, so a wait of the host orders what its own thread gives later
    and nothing else. If this ``supposes``, each order counts that there may be: what one thread has
    learned all know, another process may have waited for all that was given, and a graph may record
    and await each event that it can have.
    """

    def __init__(
        self,
        known: Callable[[CudaQueue], KnownQueue],
        works: Mapping[float, PlacedLaunch],
        *,
        supposes: bool,
    ) -> None:
        """Take a look-up of queues, and the work of the steps, by their numbers."""
        self.stamps: dict[float, Stamp] = {}
        """By the numbers of the steps."""
        self._known, self._works, self._supposes = known, works, supposes
        self._clocks = VectorClocks()
        self._events: dict[int, tuple[float, Clock]] = {}
        self._points: dict[int, Clock] = {}
        self._queues: dict[CudaQueue, int | None] = {}  # all that had work, with their contexts
        self._made: set[int] = set()  # events of the block, of which no older graph knows
        self._in_graphs: set[int] = set()  # events that are surely in a graph
        self._elsewhere: set[int] = set()  # events that another process may record
        self._last_graph = -1.0

    def read(self, step: CudaStep) -> None:
        kind = "work" if step.kind in WORK else step.kind.replace(" ", "_")
        read: Callable[[CudaStep, Hashable], None] | None = getattr(self, f"_{kind}", None)
        if read is not None:
            read(step, None if self._supposes else step.fact.thread)

    def host(self) -> Clock:
        """Return what any host has learned, if this supposes that all tell each other."""
        return self._clocks.here(None)

    def _use(self, step: CudaStep) -> CudaQueue:
        """Return the queue of a step, after ordering it with the legacy stream as work does."""
        queue = self._met(step)
        if queue.handle == LEGACY:
            for other in filter(self._waits_for_legacy, self._in(queue.number)):
                self._clocks.wait(queue, self._end_of(other))
        elif self._waits_for_legacy(queue):
            for other in self._queues:
                if other.handle == LEGACY and self._is_in(queue, other.number):
                    self._clocks.wait(queue, self._end_of(other))
        return queue

    def _met(self, step: CudaStep) -> CudaQueue:
        queue = step.queue
        assert queue is not None  # noqa: S101 - the kinds that come here have one
        if queue not in self._queues:
            self._queues[queue] = self._known(queue).context
        return queue

    def _end_of(self, queue: CudaQueue) -> Clock:
        return self._clocks.point(queue, self)  # ``self`` is a host that has learned nothing

    def _is_in(self, queue: CudaQueue, context: int) -> bool:
        """Whether a queue is one of a context, as far as that decides an order."""
        own = self._queues[queue]
        return self._supposes if own is None else own == context

    def _waits_for_legacy(self, queue: CudaQueue) -> bool:
        is_blocking = self._known(queue).is_blocking
        return self._supposes if is_blocking is None else is_blocking

    def _all_given(self, context: int | None = None) -> Clock:
        """Return the clock of all that was given, or of all of a context."""
        queues = self._queues if context is None else self._in(context)
        return _joined(map(self._end_of, queues))

    def _in(self, context: int) -> Iterable[CudaQueue]:
        return [queue for queue in self._queues if self._is_in(queue, context)]

    def _work(self, step: CudaStep, host: Hashable) -> None:
        queue = self._use(step)
        if self._supposes and step.kind == "wait for a value":
            self._clocks.wait(queue, EVERYTHING)  # work that is given later can write the value too
        if self._supposes and step.call.name in _BETWEEN_CONTEXTS:
            self._clocks.wait(queue, self._all_given())
        if self._supposes and step.kind == "graph launch":
            for event, (_, clock) in self._events.items():
                if self._may_be_in_a_graph(event):
                    self._clocks.wait(queue, clock)
        stamp = self.stamps[step.number] = self._clocks.work(queue, host)
        if step.kind == "graph launch":
            self._last_graph = step.number
            self._clocks.learn(_GRAPHS, stamp.clock)
        if step.kind == "free":
            self._clocks.learn(_FREES, stamp.clock)
        work = self._works.get(step.number)
        tells_host = step.kind == "host function" or (work and work.launch.may_hold_host)
        if self._supposes and tells_host:
            self._clocks.learn(host, stamp.clock)

    # -- events -----------------------------------------------------------------------------------

    def _record(self, step: CudaStep, host: Hashable) -> None:
        point = self._clocks.point(self._use(step), host)
        self._events[step.fields[0]] = step.number, point

    def _wait(self, step: CudaStep, _: Hashable) -> None:
        # the driver gives the queue nothing to do for an event that has come, or that has no record
        queue = self._use(step) if self._supposes else self._met(step)
        for clock in self._recorded(step.fields[1]):
            self._clocks.wait(queue, clock)

    def _recorded(self, event: int) -> Iterator[Clock]:
        """Yield the clocks after which a wait for an event comes, or may come."""
        number, clock = self._events.get(event, (-1.0, NOTHING))
        a_graph_came = number < self._last_graph
        if self._supposes or not (a_graph_came and event in self._in_graphs):
            yield clock  # else a graph has perhaps recorded the event since
        if self._supposes and a_graph_came and self._may_be_in_a_graph(event):
            yield self._clocks.here(_GRAPHS)
        if self._supposes and event in self._elsewhere:
            yield self._all_given()  # the other process can have waited for all this

    def _may_be_in_a_graph(self, event: int) -> bool:
        return event in self._in_graphs or event not in self._made

    def _renew(self, step: CudaStep, _: Hashable) -> None:
        """Forget the event that had this handle, and note who may know the new one."""
        event = step.fields[0]
        self._events.pop(event, None)
        for kind, events in (("event made", self._made), ("foreign event", self._elsewhere)):
            events.discard(event)
            if step.kind == kind:
                events.add(event)
        self._in_graphs.discard(event)

    _event_made = _event_destroyed = _foreign_event = _renew

    def _share(self, step: CudaStep, _: Hashable) -> None:
        """Note an event that a graph or another process has too."""
        events = self._elsewhere if step.kind == "shared event" else self._in_graphs
        events.add(step.fields[0])

    _event_in_a_graph = _shared_event = _share

    # -- waits of the host ------------------------------------------------------------------------

    def _point(self, step: CudaStep, _: Hashable) -> None:
        """Remember the point for which the host begins to wait."""
        kind = step.call.kind
        if kind == "event done":
            clock = _joined(self._recorded(step.fields[0]))
        elif kind == "device done":
            context = step.fields[0] if step.fields else 0
            clock = self._all_given(context or step.fact.context)
        elif kind == "free and wait":
            context = step.fact.more.context if step.fact.more is not None else 0
            if context in (0, step.fact.context):
                clock = self._all_given(step.fact.context)
            else:  # nothing says for which of the two contexts CUDA waits
                clock = self._all_given() if self._supposes else NOTHING
        else:
            queue = self._met(step)
            awaited = [queue]
            if queue.handle == LEGACY:
                awaited += filter(self._waits_for_legacy, self._in(queue.number))
            clock = _joined(map(self._end_of, awaited))
        self._points[step.point] = clock

    def _done(self, step: CudaStep, host: Hashable) -> None:
        self._clocks.learn(host, self._points.pop(step.point))

    # -- memory -----------------------------------------------------------------------------------

    def _allocation(self, step: CudaStep, _: Hashable) -> None:
        """Suppose that new memory comes after all that was freed, some of which it can be."""
        if self._supposes:
            self._clocks.wait(self._use(step), self._clocks.here(_FREES))

    def _memory_gone(self, step: CudaStep, host: Hashable) -> None:
        """Suppose that CUDA waits before it gives other memory up too."""
        if self._supposes and step.call.kind != "free and wait":
            self._clocks.learn(host, self._all_given())


def _joined(clocks: Iterable[Clock]) -> Clock:
    return functools.reduce(joined, clocks, NOTHING)


# -- the races ------------------------------------------------------------------------------------


class PlacedLaunch(NamedTuple):
    """A piece of work, the line that gave it, and the queue on which it ran."""

    launch: Launch
    place: Place | None
    queue: CudaQueue

    @property
    def name(self) -> str:
        """The name of the work in a report."""
        return operation(self.launch.name, self.launch.library)

    @property
    def pinned(self) -> search.Access:
        """The use of pinned memory by an asynchronous copy."""
        return next(one for one in self.launch.accesses if one.mode == self.launch.pinned)


def _stream(variable: Variable) -> str:
    """Return the code of a StreamKit stream."""
    name, is_ours = variable
    return name if is_ours else f"sk.wrap({name})"


class Found(NamedTuple):
    """The races and the coverage of CUDA streams."""

    races: tuple[tuple[Race, Pair], ...] = ()
    unread: tuple[Race, ...] = ()
    """Copies whose memory the host may read or write too early, as it has not waited for them."""
    works: tuple[tuple[str, bool], ...] = ()
    """The name of each piece of work, and whether all that it reads and writes is known."""
    unseen: tuple[str, ...] = ()
    """Names of work that could not be seen at all."""
    operations: tuple[Given, ...] = ()
    """All operations, with the orders in which they were given."""


class _Describer:
    """Describes work and races, and words missing calls with a line's own names for streams."""

    def __init__(
        self,
        given: Mapping[int, PlacedLaunch],
        variables: Mapping[Place | None, Mapping[int, Variable]],
        queue_of: Callable[[CudaQueue], AuditedQueue],
    ) -> None:
        self._given, self._variables, self._queue_of = given, variables, queue_of

    def key(self, pair: Pair) -> Hashable:
        array = array_of(pair.one, pair.other)
        whose = array.name or (array.dtype, array.shape, pair.one.mode, pair.other.mode)
        return self._given[pair.first].place, self._given[pair.second].place, whose

    def operation(self, number: int, mode: Mode) -> RacedOperation:
        work = self._given[number]
        file, line = work.place or (None, 0)
        queue = self._queue_of(work.queue)
        return RacedOperation(work.name, work.launch.library, queue, mode, file, line)

    def missing_wait(self, one: int, other: int, before: str) -> str:
        """Return the call that orders the second piece of work after the first."""
        first, second = self._given[one], self._given[other]
        waiting, awaited = (self._variable(second, one.queue) for one in (second, first))
        if first.place is not None and first.place == second.place:
            before = f"the later call of {before}"
        return missing_wait(
            _stream(waiting) if waiting else self._queue_of(second.queue).name,
            awaited[0] if awaited else self._queue_of(first.queue).name,
            before,
            are_code=None not in (waiting, awaited),
        )

    def missing_sync(self, copy: PlacedLaunch, does: Mode) -> str:
        """Return the call after which the host may read or write its memory of a copy."""
        found = self._variable(copy, copy.queue)
        sync = "a sync of its stream" if found is None else f"{_stream(found)}.sync()"
        rest = ". If the program waits after the block, let the block end after that wait"
        wait = f"{sync}, or wait for an event recorded after the copy"
        return f"before the host {does}s it: {wait}{rest * (does == 'read')}"

    def _variable(self, work: PlacedLaunch, queue: CudaQueue) -> Variable | None:
        """Return the name that the line of a piece of work has for a queue."""
        found = _DEFAULTS.get(queue.handle)
        return found or self._variables.get(work.place, {}).get(queue.handle)


def find(
    program: Sequence[CudaStep],
    works: Mapping[float, PlacedLaunch],
    variables: Mapping[Place | None, Mapping[int, Variable]],
    queue_of: Callable[[CudaQueue], AuditedQueue],
    known: Callable[[CudaQueue], KnownQueue],
) -> Found:
    """Return the races that the steps of a program leave.

    ``works`` has the work of the steps, by their numbers; a step that has none is left out.
    ``variables`` is what each line calls streams, by their handles.
    """
    given = {int(number): work for number, work in works.items()}

    surely, perhaps = (_CudaReader(known, works, supposes=one) for one in (False, True))
    hosts: dict[int, Clock] = {}
    uploads: dict[tuple[int, ...], tuple[int, int]] = {}
    changed: dict[int, float] = {}
    for step in program:
        for upload in _changed(step, uploads, perhaps):
            changed.setdefault(upload, step.number)
        surely.read(step)
        if step.number in works and works[step.number].launch.pinned is not None:
            hosts[int(step.number)] = perhaps.host()
        perhaps.read(step)

    describer = _Describer(given, variables, queue_of)
    found = (
        search.Work(number, (work.place or number, work.queue), work.launch.accesses)
        for number, work in given.items()
    )
    races = races_among(
        search.find(found, surely.stamps, perhaps.stamps),
        key=describer.key,
        operation=describer.operation,
        fix=functools.partial(fix, missing=describer.missing_wait),
    )
    end = Stamp(-1, math.inf, perhaps.host())
    pending = dict.fromkeys(_reused(given, hosts, perhaps.stamps, surely.stamps), False)
    for number, work in given.items():
        if work.launch.pinned == "write" and not is_before(perhaps.stamps[number], end):
            pending[number] = False
    pending.update(_written(changed, given))
    counted = [
        works[step.number] for step in program if step.number in works and step.kind != "free"
    ]
    return Found(
        tuple(races),
        tuple(_unread(pending, given, describer)),
        tuple((work.name, work.launch.is_known) for work in counted),
    )


def _changed(
    step: CudaStep, uploads: dict[tuple[int, ...], tuple[int, int]], perhaps: _CudaReader
) -> Iterator[int]:
    """Yield the uploads whose memory has changed before the host can have waited for them.

    ``uploads`` has the latest upload of each memory, and what was there.
    """
    if step.kind == "point" or step.call.kind not in _LOOKED_AT:
        return
    host = Stamp(-1, math.inf, perhaps.host())
    for *memory, content in step.fact.more or ():
        upload, before = uploads.get(tuple(memory), (0, content))
        if content != before and not is_before(perhaps.stamps[upload], host):
            yield upload
        if step.kind == "copy":
            uploads[tuple(memory)] = int(step.number), content


def _written(
    changed: Mapping[int, float], given: Mapping[int, PlacedLaunch]
) -> Iterator[tuple[int, bool]]:
    """Yield the uploads whose memory the host has written, and whether surely the host did so."""
    copied = {work.pinned for work in given.values() if work.launch.pinned == "write"}
    unclear = next((number for number, work in given.items() if work.launch.is_unclear), math.inf)
    for upload, number in changed.items():
        if upload in given and given[upload].launch.pinned == "read":
            memory = given[upload].pinned
            if all(search.race_of(memory, one) is None for one in copied):
                yield upload, number < unclear


def _reused(
    given: Mapping[int, PlacedLaunch],
    hosts: Mapping[int, Clock],
    loosely: Mapping[float, Stamp],
    strictly: Mapping[float, Stamp],
) -> Iterator[int]:
    """Yield the copies for which the host has not waited when a later one uses their memory.

    Between two uploads the host writes the memory, if they are not to copy the same again, and
    between two downloads it reads it, if no other work did so. ``hosts`` has what the host had
    learned at each copy.
    """
    opened: defaultdict[Hashable, dict[int, search.Access]] = defaultdict(dict)
    for number, work in given.items():
        host = Stamp(-1, math.inf, hosts.get(number, NOTHING))
        for access in work.launch.accesses:
            before, is_copy = opened[access.allocation], access.mode == work.launch.pinned
            for first, one in [*before.items()]:
                is_again = is_copy and access.mode == one.mode
                used = one._replace(mode="write") if is_again else one
                if search.race_of(used, access) is None:
                    continue
                del before[first]
                # downloads without an order are a race themselves
                is_told = one.mode == "write" and not is_before(strictly[first], strictly[number])
                if is_again and not is_told and not is_before(loosely[first], host):
                    yield first
            if is_copy:
                before[number] = access


def _unread(
    pending: Mapping[int, bool], given: Mapping[int, PlacedLaunch], describer: _Describer
) -> Iterator[Race]:
    """Yield a race for each line of copies; ``pending`` says of each whether that is certain."""
    lines: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number in sorted(pending):
        lines[given[number].place, given[number].queue].append(number)
    for numbers in lines.values():
        number = max(numbers, key=pending.__getitem__)  # the first of those that are certain
        work, memory = given[number], given[number].pinned
        does: Mode = "read" if memory.mode == "write" else "write"
        host = RacedOperation("the host", None, None, does, None, 0)
        copy, sync = describer.operation(number, memory.mode), describer.missing_sync(work, does)
        reason = "" if pending[number] else f"whether the host {does}s it was not seen"
        yield Race(memory.array, copy, host, pending[number], sync, len(numbers), reason)
