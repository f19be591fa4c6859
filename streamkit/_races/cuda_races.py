"""CUDA streams: the races of what was noted there, and how much of it was understood."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit._audit.driver_steps import WORK
from streamkit._pictures.kernel_names import operation
from streamkit._race_engine import search
from streamkit._races import describing
from streamkit._races.cuda_order import stamps
from streamkit._races.report import RacedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from streamkit._audit.driver_steps import CudaQueue, CudaStep
    from streamkit._audit.operations import AuditedQueue, Operation
    from streamkit._race_engine.search import Pair
    from streamkit._races.memory_use import Launch
    from streamkit._races.places import Place
    from streamkit._races.report import Race


class PlacedLaunch(NamedTuple):
    """A piece of work, the line that gave it, and the queue on which it ran."""

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
    given_works = [
        search.Work(number, (work.place or number, work.queue), work.launch.accesses)
        for number, work in given.items()
    ]
    pairs = describing.unordered(given_works, strictly, loosely)
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
    first, second = given[pair.first], given[pair.second]
    waiting = names.waiting(second.place, second.queue)
    return describing.race(
        pair,
        pairs,
        lambda number, mode: _operation(given[number], mode, names),
        f"{waiting}.wait({names.variable(second.place, first.queue)})",
        (first.place, second.place),
    )


def _operation(work: PlacedLaunch, mode: search.Mode, names: Names) -> RacedOperation:
    file, line = work.place or (None, 0)
    queue = names.queue(work.queue)
    return RacedOperation(_short(work.launch), work.launch.library, queue, mode, file, line, 0, 0)


def _short(launch: Launch) -> str:
    return operation(launch.name, launch.library)
