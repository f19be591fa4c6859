"""``races``: finds work of a block that uses the same memory and that nothing orders."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

from streamkit._cuda import loader
from streamkit._queues import trace
from streamkit._streams.host_stream import HostStream
from streamkit._support import garbage
from streamkit._support.extents import Extent
from streamkit._support.messages import at_end
from streamkit._support.refusals import block
from streamkit.diagnostics.pictures import page
from streamkit.diagnostics.races import search
from streamkit.diagnostics.races.arrays import RacedArray, checked_names
from streamkit.diagnostics.races.cuda_recorder import CudaRaceRecorder
from streamkit.diagnostics.races.host_order import stamps
from streamkit.diagnostics.races.host_recorder import RaceRecorder
from streamkit.diagnostics.races.order import is_before
from streamkit.diagnostics.races.report import (
    RacedOperation,
    RaceReport,
    coverage_of,
    fix,
    missing_wait,
    named_queues,
    races_among,
    texts_of,
)
from streamkit.diagnostics.recording.host_recorder import host_queue, library_of
from streamkit.diagnostics.recording.operations import (
    LAST,
    AuditedQueue,
    Operation,
    Operations,
    Order,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping

    from streamkit.diagnostics.races.cuda_races import Found
    from streamkit.diagnostics.races.host_recorder import RecordedWork
    from streamkit.diagnostics.races.report import Race
    from streamkit.diagnostics.races.search import Pair
    from streamkit.diagnostics.recording.places import Place
    from streamkit.protocols.watching import WatchedStep


@block("streamkit.races() as report")
def races(arrays: Mapping[str, object] | None = None) -> Generator[RaceReport]:
    """Find work of the block, of any thread, on the same memory that nothing orders.

    On CUDA streams it sees all launches, copies and fills of the process, whatever library gives
    them, by CUPTI and a recorder in C, but not what a CUDA graph does. A copy from or to pinned
    memory races with the host too, if the host has not waited for it when the same bytes are copied
    again, or change, or the block ends.

    On host streams it sees torch's operators on the CPU, and what NumPy's and torch's own functions
    do that a stream is given directly. An order counts if the same program has it on a GPU too. Any
    other function may do anything with NumPy's arrays that it is given or holds, so its races are
    possible ones, unless ``streamkit.testing.accesses`` declares what it uses. Two bodies in which
    nothing was seen and that nothing orders are a possible race, once for each pair of lines. What
    cannot be seen, the report's coverage names.

    The report is made when the block ends, which waits for host streams as the end of an audit; if
    the block raises, the report holds what was given by then. Blocks nest, with each other and with
    audits, and leave nothing behind. A long block lets go what the host has waited for.

    Args:
        arrays: Arrays by the names that the report is to use. Others get the names of the
            caller's variables.

    Raises:
        TypeError: ``arrays`` is no dictionary whose keys are str.
        ForkedProcessError: The block ends in a child that was forked inside it.

    >>> import numpy as np
    >>> x, y = np.zeros(3), np.zeros(3)
    >>> a, b = sk.new_stream("cpu"), sk.new_stream("cpu")
    >>> with sk.races() as report:
    ...     a.submit(np.copyto, x, 7)
    ...     b.submit(np.multiply, x, 2, y)
    >>> report.races[0].array.name
    'x'
    >>> report.races[0].fix.partition(" before")[0]
    "to run NumPy's copyto first, add b.wait(a)"
    """
    given = checked_names(arrays)
    return _look(given, CudaRaceRecorder(given))


@block("program_races() as report")
def program_races() -> Generator[RaceReport]:
    """Look as ``races``, around a program that has still to initialise CUDA, and may fork."""
    return _look({}, CudaRaceRecorder({}, lambda: bool(loader.driver_version())))


def _look(given: Mapping[str, object], cuda: CudaRaceRecorder) -> Generator[RaceReport]:
    report, recorder = RaceReport(), RaceRecorder(given, cuda.count)
    earlier: list[Pair] = []
    recorder.let_go = functools.partial(_let_go, recorder, earlier)
    with ExitStack() as completing, ExitStack() as finishing:
        for one in (recorder, cuda):
            finishing.push(at_end(one.stop))
            one.start()
        completing.push(at_end(lambda: _complete(report, recorder, cuda.found(), earlier)))
        yield report
        recorder.sync()


@garbage.held_back()  # as below, and a destructor could give work
def _let_go(recorder: RaceRecorder, earlier: list[Pair]) -> None:
    """Drop what was given so far, but for what races, if the host has waited for its end."""
    with recorder.letting_go() as (steps, given):
        now = trace.Step(None, "operator", "now", None)
        strictly = stamps([*steps, now], given, threads_talk=False)
        here = strictly.pop(now.order)
        if all(is_before(one, here) for one in strictly.values()):
            works = [*_works(recorder, given)]
            found = [*search.find(works, strictly, strictly)]
            if found:
                loosely = stamps(steps, given, threads_talk=True)
                found = [*search.find(works, strictly, loosely)]
            raced = {number for pair in found for number in (pair.first, pair.second)}
            earlier += found
            over = {order: one for order, one in given.items() if order not in raced}
            recorder.counted.update(_counted(recorder, over))
            recorder.drop(steps, over)


@garbage.held_back()  # a collection would find nothing among all that is made
def _complete(
    report: RaceReport, recorder: RaceRecorder, on_cuda: Found, earlier: list[Pair]
) -> None:
    given = recorder.given
    describer = _Describer(recorder)
    orders = (stamps(recorder.steps, given, threads_talk=talk) for talk in (False, True))
    pairs = (*earlier, *search.find(_works(recorder, given), *orders))
    found = races_among(
        map(describer.in_turn, pairs),
        key=describer.key,
        operation=describer.operation,
        fix=functools.partial(fix, missing=describer.missing_call),
    )
    draw = _page(recorder, describer.queue, found, on_cuda)
    unseen = [_NOT_SEEN + _IN_BODIES * recorder.has_bodies, *map(_HIDDEN.format, recorder.told)]
    unseen *= bool(given or recorder.counted)
    works = [*_counted(recorder, given), *recorder.counted.elements()]
    remedy = "" if all(is_known for _, is_known in works) else _REMEDY
    coverage = coverage_of((*works, *on_cuda.works), (*unseen, *on_cuda.unseen), remedy)
    races_found = (*(race for race, _ in (*found, *on_cuda.races)), *on_cuda.unread)
    report.complete(races_found, coverage, draw)


def _page(
    recorder: RaceRecorder,
    queue_of: Callable[[WatchedStep], AuditedQueue | None],
    races: Iterable[tuple[Race, Pair]],
    on_cuda: Found,
) -> Callable[[str], str]:
    """Return a function of the heading that makes the page, with an arrow for each missing wait.

    ``races`` are the races on host streams, and ``queue_of`` finds the queue of a step there.
    """
    steps = [step for step in recorder.steps if isinstance(step.stream, HostStream | None)]
    on_host = [given for _, given in recorder.given_as(steps, queue_of)]
    order, operations = Order([*on_host, *on_cuda.operations]), Operations()
    operations.complete(order.operations())
    when, bodies = {}, {}
    for step in steps:
        if step.kind == "scope":
            bodies[step.stream] = step
        is_part = step.kind == "operator"  # of the function that gave it, or of a body
        whole = (step.giver or bodies.get(step.stream, step)) if is_part else step
        when[step.order] = recorder.when(whole)
    for number, one in recorder.given.items():  # also of steps that were let go
        when.setdefault(number, recorder.when(one.step))
    found = [(race, when[pair.first], when[pair.second]) for race, pair in races]
    found += [(race, (pair.first, LAST), (pair.second, LAST)) for race, pair in on_cuda.races]
    missing = [
        Operation(
            "wait",
            "missing wait",
            race.second.queue,
            after=race.first.queue,
            place=order.before(second),
            since=order.after(first),
        )
        for race, first, second in found
    ]
    texts = texts_of((*(race for race, *_ in found), *on_cuda.unread))
    return lambda heading: page.of_block(operations, heading=heading, missing=missing, races=texts)


def _when(given: RecordedWork) -> tuple[int, int]:
    """Return when work was given; an operator is given together with its function."""
    step = given.step
    whole = step.giver if step.kind == "operator" else None
    return (whole or step).order, step.order


def _works(recorder: RaceRecorder, given: Mapping[int, RecordedWork]) -> Iterator[search.Work]:
    """Yield work for the search; failed work perhaps never came to its accesses."""
    for one in sorted(given.values(), key=_when):
        step, accesses = one.step, recorder.accesses(one)
        if step.has_failed:
            accesses = tuple(access._replace(is_sure=False) for access in accesses)
        if step.kind == "scope" and step.start_ns and step.order not in recorder.seen:
            accesses = (_UNSEEN,)
        yield search.Work(step.order, (one.place or step.order, step.stream, step.kind), accesses)


def _counted(
    recorder: RaceRecorder, given: Mapping[int, RecordedWork]
) -> Iterator[tuple[str, bool]]:
    """Yield each operation that is no operator: its name, and whether it was understood."""
    for order, one in sorted(given.items()):
        if one.step.kind != "operator" and order not in recorder.seen:
            yield _name(one), one.is_known


_NOT_SEEN = "what NumPy and Python do outside of streams"
_IN_BODIES = " and in the bodies of scopes"
_HIDDEN = "what {} does without an operator (print, tolist, save) and in threads without a stream"
_REMEDY = (
    "Give a library's own function directly, and not memory of a file, or declare yours by "
    "streamkit.testing.accesses."
)

_UNSEEN = search.Access(
    "unseen",
    Extent(0, 1, 1),
    "unknown",
    is_sure=False,
    array=RacedArray("memory that neither body shows", "", (), 0),
)
"""The access of a scope whose body was not seen, so that two that nothing orders are found."""


def _name(given: RecordedWork) -> str:
    step = given.step
    if step.kind == "scope":
        return f"the body of a scope of {host_queue(step.stream)}"
    return f"a wait for a {step.name}" if step.kind == "future" else step.name


_HOST = AuditedQueue("cpu", "the host", None)
"""What runs the operators of a thread outside of all streams."""


class _Describer:
    """Describes the races of one block."""

    def __init__(self, recorder: RaceRecorder) -> None:
        self._given = recorder.given
        streams = {step.stream for step in recorder.steps}
        self._queues = named_queues(
            {one.id: host_queue(one) for one in streams if isinstance(one, HostStream)},
            chain.from_iterable(
                (*(names for _, names in one.callers), one.streams)  # where the streams were made
                for one in recorder.given.values()
            ),
        )

    def key(self, pair: Pair) -> Hashable:
        lines = self._given[pair.first].place, self._given[pair.second].place
        if pair.one is _UNSEEN:
            return frozenset(lines)  # the one of a loop is given before and after the other
        return lines, pair.one.allocation or pair.one.array

    def in_turn(self, pair: Pair) -> Pair:
        """Return a pair in the order in which a function ran the one and gave the other."""
        first, inner = self._given[pair.first].step, self._given[pair.second].step
        while inner.giver is not None and inner.giver is not first.giver:
            inner = inner.giver
        is_given = inner.giver is not None and first.kind == "operator"
        return pair.turned() if is_given and inner.order < first.order else pair

    def _queue_of(self, stream: HostStream) -> AuditedQueue:
        return self._queues.get(stream.id) or host_queue(stream)

    def queue(self, step: WatchedStep) -> AuditedQueue | None:
        """Return the queue of a step as the report names it."""
        if step.stream is None:
            return _HOST
        queue = self._queue_of(step.stream)
        if _then_of(step) is not None:
            queue = AuditedQueue("cpu", f"'then' of {queue.name}", queue.id)
        return queue

    def operation(self, number: int, mode: search.Mode) -> RacedOperation:
        given = self._given[number]
        step = given.step
        file, line = given.place or (None, 0)
        whose = library_of(step), self.queue(step)
        name = "the body of a scope" if step.kind == "scope" else step.name
        return RacedOperation(name, *whose, mode, file, line)

    def missing_call(self, one: int, other: int, before: str) -> str:
        first, second = self._given[one], self._given[other]
        if None in (first.step.stream, second.step.stream):
            return _missing_sync(first, second, before)
        both = second.step.stream, first.step.stream
        variables = [second.streams.get(stream.id) for stream in both]
        streams = (self._queue_of(stream).name for stream in both)
        waiting, awaited = (name or stream for name, stream in zip(variables, streams, strict=True))
        if _gives(first.step, second.step):
            whole = second.step.giver if second.step.kind == "operator" else None
            outer, inner = first.step.name, (whole or second.step).name
            return (
                f"let {waiting} wait for {awaited} after {outer} was given, and give {inner} "
                f"there: inside of {outer} nothing can wait for its end"
            )
        then = _then_of(first.step)
        if then is not None:
            place = self._given[then.order].place if then.order in self._given else None
            where = "" if place is None else f" of line {place.line}"
            variables[1] = awaited = f"the future of 'then'{where}"
        elif None in variables and (caller := _caller(first, second)) is not None:
            place, names = caller
            where = "" if second.place and second.place.file == place.file else f" of {place.file}"
            before = f"line {place.line}{where}, which calls it"
            return missing_wait(names[both[0].id], names[both[1].id], before, are_code=True)
        elif first.place == second.place is not None and first.call != second.call:
            before = f"the later call of {before}"
        return missing_wait(waiting, awaited, before, are_code=None not in variables)


def _then_of(step: WatchedStep) -> WatchedStep | None:
    """Return the function of ``then`` that a step is, or of which it is an operator."""
    whole = step.giver if step.kind == "operator" else step
    is_one = whole is not None and whole.kind == "then" and whole.stream is step.stream
    return whole if is_one else None


def _caller(first: RecordedWork, second: RecordedWork) -> tuple[Place, Mapping[int, str]] | None:
    """Return the nearest call of the second that has names for both streams, and comes between."""
    lines = [first.place, *(place for place, _ in first.callers)]  # a loop's line gives both
    for place, names in second.callers:
        streams = {first.step.stream.id, second.step.stream.id}
        if place not in lines and place is not None and names.keys() >= streams:
            return place, names
    return None


def _missing_sync(first: RecordedWork, second: RecordedWork, before: str) -> str:
    """Word the wait of the host between its own work and that of a stream."""
    step = first.step if first.step.giver is None else first.step.giver
    if second.step.stream is not None:
        return f"let the thread that gives {second.step.name} wait for it before {before}"
    if step.kind == "then":
        return f"ask the future of {step.name} for its result() before {before}"
    name = second.streams.get(step.stream.id)
    if name is None:
        return f"let the host wait for {host_queue(step.stream).name} before {before}"
    return f"add {name}.sync() before {before}"


def _gives(one: WatchedStep, other: WatchedStep) -> bool:
    """Whether a function gives another piece of work while it runs."""
    giver = other.giver
    while giver is not None and giver is not one:
        giver = giver.giver
    return giver is one
