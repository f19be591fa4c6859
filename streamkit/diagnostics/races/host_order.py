"""Host streams: the order of their work, by the steps that they reported.

An order counts only if a GPU has it too. There a function that is given to a stream, and the body
of a scope, run at once, and only what they launch is queued. So both are spans of their stream, in
which a wait holds what follows on that stream. What they give to other streams comes after what
their giver knew and after the waits of the host, and not because a thread has come so far. The
operators of a thread outside of all scopes are work of the host, which what it gives later follows.
The steps make points, with edges between them, and each point has a clock.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections import defaultdict, deque
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._queues import trace
from streamkit._streams import host_stream
from streamkit.diagnostics.races.order import (
    EVERYTHING,
    NOTHING,
    READS_A_NUMBER,
    Stamp,
    joined,
    reaching,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from streamkit.diagnostics.races.host_recorder import RecordedWork
    from streamkit.diagnostics.races.order import Clock
    from streamkit.protocols.watching import WatchedStep

_PARTS = 32  # bits of a place that number the parts of an item


def stamps(
    steps: Iterable[WatchedStep], given: Mapping[int, RecordedWork], *, threads_talk: bool
) -> dict[int, Stamp]:
    """Return where each piece of work stands, by the order of its step.

    Without ``threads_talk`` a wait of the host orders only what its own thread gives later, and the
    whole of a function counts. With it, StreamKit supposes that threads told each other everything:
    what one thread learned, all know, and a function that StreamKit does not know has told all
    threads that it ran. What a function gives comes after the part before, as on host streams. Any
    part of a function counts then, because it may have used the memory before it gave work to
    another stream, or after it waited for a stream. An operator that reads a number has waited for
    its stream, as on a GPU. Work that is unordered even so surely has no order.
    """
    reader = _Reader(given, threads_talk=threads_talk)
    in_order = sorted(steps, key=attrgetter("order"))
    spans = (  # a scope, or a function that a thread inside a scope runs at once
        step
        for step in in_order
        if step.end_order and (step.kind == "scope" or (step.kind == "function" and step.is_inline))
    )
    ends = deque(sorted(spans, key=attrgetter("end_order")))
    for step in in_order:
        while ends and ends[0].end_order < step.order:
            reader.end(ends.popleft())
        reader.begin(step)
    for step in ends:
        reader.end(step)
    return reader.stamps()


class _Points:
    """Points in time with edges between them, and the clock of each."""

    START, NEVER = 0, 1  # before all work, and after all

    def __init__(self) -> None:
        self._befores: list[tuple[int, ...]] = [(), ()]
        self._reached: dict[int, tuple[int, int]] = {}
        self._added: dict[tuple[object, ...], int] = {}

    def add(self, *befores: int, reached: tuple[int, int] | None = None) -> int:
        """Return a point after others, at which a chain has come to a place if one is given."""
        key = befores, reached
        if key not in self._added:
            found = tuple({one: None for one in befores if one != self.START})
            is_itself = len(found) < 2 and reached is None  # noqa: PLR2004 - one point
            self._added[key] = (*found, self.START)[0] if is_itself else self.new(*found)
            if reached is not None:
                self._reached[self._added[key]] = reached
        return self._added[key]

    def new(self, *befores: int) -> int:
        """Return a new point after others, to which ``put_after`` can add edges."""
        self._befores.append(befores)
        return len(self._befores) - 1

    def put_after(self, point: int, *befores: int) -> None:
        """Add edges to a point."""
        self._befores[point] += befores

    def clocks(self, *, unknown: Clock) -> list[Clock]:
        """Return the clocks of all points.

        Points in a circle have what is known, and ``unknown``. There are some if a queue went on
        without a thread that held it, or if not all that may be told can have been told.
        """
        clocks = [NOTHING] * len(self._befores)
        clocks[self.NEVER] = EVERYTHING
        sorter = TopologicalSorter(dict(enumerate(self._befores)))
        with contextlib.suppress(CycleError):  # it sorts all the same what comes after no circle
            sorter.prepare()
        circles = dict.fromkeys(range(len(clocks)))
        while ready := sorter.get_ready():
            for point in ready:
                clocks[point] = self._clock(point, clocks, clocks[point])
                del circles[point]
            sorter.done(*ready)
        for point in circles:
            clocks[point] = self._clock(point, clocks, unknown)
        return clocks

    def _clock(self, point: int, clocks: list[Clock], clock: Clock) -> Clock:
        """Return a clock joined with those before a point."""
        for one in self._befores[point]:
            clock = joined(clock, clocks[one])
        return reaching(clock, *self._reached.pop(point)) if point in self._reached else clock


class _Chain:
    """A queue that runs items: a stream, or the functions that were given to its ``then``."""

    def __init__(self, chain: int) -> None:
        self.chain = chain
        self.items = 0
        self.tail = _Points.START


class _Item:
    """A function or the body of a scope, which a queue runs from ``begin`` to ``end``."""

    def __init__(self, queue: _Chain, begin: int, end: int) -> None:
        self.queue, self.begin, self.end = queue, begin, end
        self.now = begin  # the point that what comes next inside comes after
        self.first = queue.items << _PARTS  # the place of its beginning
        self._last = self.first

    @property
    def part(self) -> tuple[int, int]:
        """The chain, and the place of the latest work inside the item."""
        return self.queue.chain, self._last

    @property
    def whole(self) -> tuple[int, int]:
        """The place of the item's end."""
        return self.queue.chain, self.first + (1 << _PARTS) - 1

    def next_part(self) -> tuple[int, int]:
        """Return the place of the next work inside the item."""
        self._last += 1
        return self.part


class _Host(NamedTuple):
    """The giver of a step: a thread, or a function that a queue runs."""

    key: Any
    item: _Item | None
    talks: bool
    """Whether it may learn what other hosts have learned."""


class _Reader:
    def __init__(self, given: Mapping[int, RecordedWork], *, threads_talk: bool) -> None:
        self._given = given
        self._threads_talk = threads_talk
        self._points = _Points()
        # the chain and the place of each piece of work, and the point whose clock it has
        self._placed: dict[int, tuple[int, int, int]] = {}
        self._queues: dict[Hashable, _Chain] = {}
        self._functions: dict[int, _Item] = {}  # by the orders of their steps
        self._bodies: dict[tuple[object, Any], _Item] = {}  # by hosts and held streams
        self._open: defaultdict[object, list[_Item]] = defaultdict(list)  # by hosts, inmost last
        self._ended: defaultdict[object, int] = defaultdict(lambda: _Points.START)  # by hosts
        self._spans: dict[int, tuple[_Item, Any]] = {}  # of scopes and of functions inside them
        self._marks: dict[int, int] = {}  # by the ids of marks, which the steps keep
        self._learned: dict[object, int] = {}  # the points that hosts have come to
        self._waiting: dict[object, WatchedStep] = {}  # the latest waits in bodies, by hosts
        self._told = _Points.START  # the end of functions that may have told threads
        self._waits: list[tuple[int, int, _Host, int]] = []  # by their ends

    def begin(self, step: WatchedStep) -> None:
        """Take a step that was given, or has begun."""
        self._end_waits(step.given_ns)
        read: Callable[[WatchedStep, _Host], None] = getattr(self, f"_{step.kind}")
        read(step, self._host(step))

    def end(self, step: WatchedStep) -> None:
        """Take the end of a scope, or of a function that ran inside one."""
        self._end_waits(step.end_ns)
        item, first = self._spans.pop(step.order)
        host = self._host(step)
        if step.kind == "scope":
            self._points.put_after(item.end, item.now)
            self._bodies.pop((host.key, step.stream), None)
            self._open[host.key].remove(item)
            is_default = step.stream is host_stream.default_stream
            if step.is_ordered or (is_default and not (self._open[host.key] or host.item)):
                self._follow(host, self._points.add(item.end, reached=item.whole))
        elif self._threads_talk:
            self._placed[step.order] = *first, self._before(host, item)
        else:
            self._placed[step.order] = *item.next_part(), self._placed[step.order][2]

    def stamps(self) -> dict[int, Stamp]:
        """Return where each piece of work stands."""
        self._end_waits(math.inf)
        for order, item in self._functions.items():
            if item.now != item.begin:
                self._points.put_after(item.end, item.now)
            self._place(order, item)
        self._functions.clear()
        clocks = self._points.clocks(unknown=EVERYTHING if self._threads_talk else NOTHING)
        return {
            order: Stamp(chain, place, clocks[point])
            for order, (chain, place, point) in self._placed.items()
        }

    # -- what hosts know ----------------------------------------------------------------------

    def _host(self, step: WatchedStep) -> _Host:
        giver = step.giver
        if giver is None:
            return _Host(step.thread, None, talks=self._threads_talk)
        item = self._functions.get(giver.order)  # None if given before the block
        talks = self._threads_talk and not (item and self._given[giver.order].is_known)
        host = _Host(giver, item, talks=talks)
        if talks and item is not None:
            self._learn(host, self._points.add(item.begin, reached=item.part))
        return host

    def _here(self, host: _Host) -> int:
        """Return the point that a host has come to: what it gives comes after that."""
        learned = self._learned.get(None if host.talks else host.key, _Points.START)
        if host.item is None:
            return self._points.add(learned, self._told)
        if self._threads_talk or host.key.kind == "then":  # else a GPU's host is further
            return self._points.add(host.item.now, learned, reached=host.item.part)
        return learned

    def _before(self, host: _Host, item: _Item) -> int:
        """Return the point after which the next work inside an item comes."""
        return self._points.add(self._here(host), item.now)

    def _learn(self, host: _Host, point: int) -> None:
        """Let a host come after a point, and all others that threads may have told."""
        for key in {host.key, None} if self._threads_talk else {host.key}:
            self._learned[key] = self._points.add(self._learned.get(key, _Points.START), point)
        if host.item is not None:
            host.item.now = self._points.add(host.item.now, point)

    def _end_waits(self, now_ns: float) -> None:
        """Let hosts come after the points for which they have waited by now."""
        while self._waits and self._waits[0][0] <= now_ns:
            _, _, host, point = heapq.heappop(self._waits)
            self._learn(host, point)

    def _learn_later(self, step: WatchedStep, host: _Host, point: int) -> None:
        if step.end_ns:
            heapq.heappush(self._waits, (step.end_ns, step.order, host, point))

    # -- queues -------------------------------------------------------------------------------

    def _queue(self, key: Hashable) -> _Chain:
        return self._queues.setdefault(key, _Chain(len(self._queues) + 1))

    def _put(self, queue: _Chain, *befores: int) -> None:
        """Let all later items of a queue come after some points."""
        queue.tail = self._points.add(queue.tail, *befores)

    def _give(self, queue: _Chain, *befores: int) -> _Item:
        self._put(queue, *befores)
        queue.items += 1
        item = _Item(queue, queue.tail, self._points.new(queue.tail))
        queue.tail = item.end
        return item

    def _end_of(self, queue: _Chain) -> int:
        """Return the point at which all items of a queue so far have ended."""
        place = (queue.items + 1 << _PARTS) - 1
        return self._points.add(queue.tail, reached=(queue.chain, place))

    def _inside(self, step: WatchedStep, host: _Host) -> _Item:
        """Return the item of the step's stream that its host runs."""
        body = self._bodies.get((host.key, step.stream))
        if body is not None:
            return body
        if host.item is not None and host.key.stream is step.stream:
            return host.item
        return self._enter(step, host)  # the scope was entered before the block

    def _inside_point(self, step: WatchedStep, host: _Host) -> int:
        """Return the present point of a stream that the host holds."""
        item = self._inside(step, host)
        return self._points.add(self._before(host, item), reached=item.part)

    def _enter(self, step: WatchedStep, host: _Host) -> _Item:
        """Let a host hold a queue."""
        befores = [self._here(host)]
        around = self._around(host)
        if step.is_ordered and around is not None:
            befores.append(self._points.add(around.now, reached=around.part))
        elif step.is_ordered:
            befores.append(self._end_of(self._queue(host_stream.default_stream)))
        item = self._give(self._queue(step.stream), *befores)
        self._bodies[host.key, step.stream] = item
        self._open[host.key].append(item)
        return item

    def _around(self, host: _Host) -> _Item | None:
        """Return the item of the current stream; None where that is the default stream."""
        if self._open[host.key]:
            return self._open[host.key][-1]
        return None if host.item is None or host.key.kind == "then" else host.item

    def _follow(self, host: _Host, point: int) -> None:
        """Let the stream that is current come after an ordered scope."""
        around = self._around(host)
        if around is None:
            self._ended[host.key] = self._points.add(self._ended[host.key], point)
            self._put(self._queue(host_stream.default_stream), point)
        elif around is host.item:
            self._learn(host, point)
        else:
            around.now = self._points.add(around.now, point)

    # -- steps --------------------------------------------------------------------------------

    def _function(self, step: WatchedStep, host: _Host) -> None:
        if not step.is_inline:
            here = self._learned[step] = self._here(host)
            self._run_later(step, self._give(self._queue(step.stream), here))
        else:
            item = self._inside(step, host)
            before = self._before(host, item)
            self._spans[step.order] = item, item.next_part()
            self._placed[step.order] = *item.whole, before  # until the function ends

    def _then(self, step: WatchedStep, host: _Host) -> None:
        here, queue = self._here(host), self._queue((step.stream, "then"))
        if step.is_inline:
            after = self._inside_point(step, host)
        else:
            after = self._end_of(self._queue(step.stream))
        self._run_later(step, self._give(queue, here, after))

    def _run_later(self, step: WatchedStep, item: _Item) -> None:
        self._functions[step.order] = item
        if self._threads_talk and (step.kind == "then" or not self._given[step.order].is_known):
            ended = self._points.add(item.begin, reached=item.whole)
            self._told = self._points.add(self._told, ended)
            self._learn_later(step, _Host(None, None, talks=True), ended)

    def _place(self, order: int, item: _Item) -> None:
        """Note the place of a whole item."""
        if self._threads_talk:
            self._placed[order] = item.queue.chain, item.first, item.end
        else:
            self._placed[order] = *item.whole, item.begin

    def _scope(self, step: WatchedStep, host: _Host) -> None:
        item = self._enter(step, host)
        self._spans[step.order] = item, None
        self._place(step.order, item)

    def _operator(self, step: WatchedStep, host: _Host) -> None:
        if step.stream is None:
            before = self._points.add(self._here(host), self._ended[host.key])
            item = self._give(self._queue((host.key, "own work")), before)
            self._placed[step.order] = *item.whole, before
            self._learn(host, self._points.add(reached=item.whole))
            return
        item = self._inside(step, host)
        before = self._before(host, item)
        self._placed[step.order] = *item.next_part(), before
        if self._threads_talk and step.name in READS_A_NUMBER:
            self._learn(host, self._points.add(before, reached=item.part))

    def _record(self, step: WatchedStep, host: _Host) -> None:
        if step.is_inline:
            point = self._inside_point(step, host)
        else:
            queue = self._queue(step.stream)
            self._put(queue, self._here(host))
            point = self._end_of(queue)
        self._marks[id(step.mark)] = point

    def _wait(self, step: WatchedStep, host: _Host) -> None:
        point = self._marked(step.mark)
        if step.kind == "future" and not isinstance(step.mark, trace.Step):
            if not self._threads_talk:
                return
            point = _Points.NEVER  # nothing says what the future comes after
        if step.is_inline:
            item = self._inside(step, host)
            item.now = self._points.add(item.now, point)
            self._waiting[host.key] = step
        else:
            self._put(self._queue(step.stream), self._here(host), point)

    def _synchronisation(self, step: WatchedStep, host: _Host) -> None:
        is_entry = step.name == "with"  # the step of the scope tells of it
        if not (is_entry or step.has_failed):  # else the host has waited for nothing
            self._learn_later(step, host, self._reached(step, host))

    def _query(self, step: WatchedStep, host: _Host) -> None:
        waiting = self._waiting.get(host.key)
        # the host asks for the result of a future for which the stream waits, as on a GPU alone
        if waiting is None or step.order > waiting.end_order or step.mark is not waiting.mark:
            self._learn(host, self._reached(step, host))

    def _reached(self, step: WatchedStep, host: _Host) -> int:
        """Return the point that the host has waited for, or has seen to be reached."""
        if step.mark is not None:
            return self._marked(step.mark)
        if not isinstance(step.stream, host_stream.HostStream):
            return _Points.START
        if step.is_inline:
            return self._inside_point(step, host)
        queue = self._queue(step.stream)
        if self._threads_talk:  # the wait may be an item of the queue
            self._put(queue, self._here(host))
        return self._end_of(queue)

    def _marked(self, mark: Any) -> int:
        """Return the point of a mark, or the end of a step of ``then``."""
        if not isinstance(mark, trace.Step):
            return self._marks.get(id(mark), _Points.START)
        item = self._functions.get(mark.order)
        return _Points.START if item is None else self._points.add(item.end, reached=item.whole)

    _point, _future = _record, _wait
