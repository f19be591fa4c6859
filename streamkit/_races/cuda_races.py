"""CUDA streams: the races of what was noted there, and how much of it was understood."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit._audit.driver_steps import WORK
from streamkit._pictures.kernel_names import operation
from streamkit._race_engine import search
from streamkit._race_engine.order import are_ordered
from streamkit._races.cuda_order import stamps
from streamkit._races.report import Race, RacedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from streamkit._audit.driver_steps import CudaQueue, CudaStep
    from streamkit._audit.operations import AuditedQueue, Operation
    from streamkit._race_engine.search import Pair
    from streamkit._races.memory_use import Launch
    from streamkit._races.places import Place


class PlacedLaunch(NamedTuple):
    """One piece of it."""

    launch: Launch
    place: Place | None
    queue: CudaQueue


class Names(NamedTuple):
    """What there is to know of queues, beside the calls."""

    queue: Callable[[CudaQueue], AuditedQueue]
    variable: Callable[[Place | None, CudaQueue], str]
    """What the code of a place calls a queue."""
    waiting: Callable[[Place | None, CudaQueue], str]
    """The same as something that has a method ``wait``."""
    is_blocking: Callable[[CudaQueue], bool | None]
    """Whether it waits for the legacy stream; None if that is not known."""


class Found(NamedTuple):
    """What was found on CUDA streams."""

    races: tuple[Race, ...]
    understood: int
    total: int
    missed: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...] = ()
    """Of each race the numbers of the two steps."""
    operations: tuple[Operation, ...] = ()
    """All that was given; their times are the numbers of their steps."""


def find(program: Sequence[CudaStep], works: Mapping[float, PlacedLaunch], names: Names) -> Found:
    """Return what the steps of a program leave unordered.

    ``works`` are what its steps do, by their numbers; others are left out.
    """
    strictly = stamps(program, names.is_blocking, threads_talk=False)
    loosely = stamps(program, names.is_blocking, threads_talk=True)
    given = {
        int(step.number): works[step.number]
        for step in program
        if step.kind in WORK and step.number in works
    }
    pairs = search.find(
        [
            search.Work(number, (work.place or number, work.queue), work.launch.accesses)
            for number, work in given.items()
        ],
        lambda one, other: are_ordered(strictly[one], strictly[other]),
        lambda one, other: are_ordered(loosely[one], loosely[other]),
    )
    found: dict[Hashable, list[Pair]] = {}
    for pair in pairs:
        array = min((pair.one.array, pair.other.array), key=lambda one: one.name is None)
        whose = array.name or (array.dtype, array.shape, pair.one.mode, pair.other.mode)
        lines = given[pair.first].place, given[pair.second].place
        found.setdefault((lines, whose), []).append(pair)
    counted = [
        work.launch
        for step in program
        if (work := works.get(step.number)) is not None and step.kind != "free"
    ]
    missed = [_short(launch) for launch in counted if not launch.is_known]
    told = [search.clearest(pairs) for pairs in found.values()]
    races = zip(told, found.values(), strict=True)
    return Found(
        tuple(_race(pair, pairs, given, names) for pair, pairs in races),
        len(counted) - len(missed),
        len(counted),
        tuple(dict.fromkeys(missed)),
        tuple((pair.first, pair.second) for pair in told),
    )


def _race(pair: Pair, pairs: list[Pair], given: Mapping[int, PlacedLaunch], names: Names) -> Race:
    """Return the race of all pairs of two lines, told by one of them."""
    first, second = given[pair.first], given[pair.second]
    # an operation that reads and writes an array has two accesses
    same = [one for one in pairs if (one.first, one.second) == (pair.first, pair.second)]
    described = _operation(first, {one.one.mode for one in same}, names)
    before = "it" if second.place is None else f"line {second.place.line}"
    if second.place and first.place and second.place.file != first.place.file:
        before += f" of {second.place.file}"
    waiting = names.waiting(second.place, second.queue)
    return Race(
        min((pair.one.array, pair.other.array), key=lambda array: array.name is None),
        described,
        _operation(second, {one.other.mode for one in same}, names),
        pair.is_certain,
        f"if {described.title} should come first: "
        f"{waiting}.wait({names.variable(second.place, first.queue)}) before {before}",
        len({(one.first, one.second) for one in pairs}),
    )


def _operation(work: PlacedLaunch, modes: set[search.Mode], names: Names) -> RacedOperation:
    return RacedOperation(
        _short(work.launch),
        work.launch.library,
        names.queue(work.queue),
        "write" if "write" in modes else min(modes),
        None if work.place is None else work.place.file,
        0 if work.place is None else work.place.line,
        0,
        0,
    )


def _short(launch: Launch) -> str:
    return operation(launch.name, launch.library)
