"""What an operation costs as a program grows: beside more streams, threads, objects and tasks."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import streamkit as sk
from bench import scope_rows, stream_rows
from bench.arranging import Held
from bench.timing import TURN, Arms, Libraries, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from bench.timing import Plan

_CALLS = 2000  # of one point, in at least two repeats and at most _REPEATS
_REPEATS = 15


@dataclass(frozen=True)
class Point:
    """An operation's cost where there are so many: medians."""

    count: int
    ours_ns: float
    theirs_ns: float


@dataclass(frozen=True)
class Curve:
    """One operation's cost over a number that grows."""

    name: str
    against: str
    over: str
    points: list[Point]


@dataclass(frozen=True)
class Growth:
    """A curve not yet measured; ``arrange`` holds the surroundings for a number."""

    name: str
    against: str
    over: str
    counts: tuple[int, ...]
    arrange: Callable[[Libraries, int], Generator[Arms]]

    def measure(self, libraries: Libraries) -> Curve:
        """Time both sides for each number."""
        points = []
        for count in self.counts:
            with contextmanager(self.arrange)(libraries, count) as arms:
                calls = arms.one_turn or TURN
                repeats = max(2, min(_REPEATS, _CALLS // (calls * arms.each)))
                times = take_turns(arms, repeats, calls, libraries.torch.cuda.synchronize)
            points.append(Point(count, *map(median, times[:2])))
        return Curve(self.name, self.against, self.over, points)


def _beside(plan: Plan, libraries: Libraries, count: int) -> Generator[Arms]:
    """Time a row while StreamKit knows so many streams."""
    known = [sk.new_stream(nonblocking=True) for _ in range(count)]
    with plan.arrange(libraries) as arms:
        yield arms
    for stream in known:
        stream.close()


def _kept(libraries: Libraries, count: int) -> Generator[Arms]:
    """Keep so many objects on one busy stream."""
    return stream_rows.keeping(libraries, busy=True, count=count)


def awaiting(libraries: Libraries, count: int) -> Generator[Arms]:
    """Have so many tasks begin to wait for one queue, and go on when it moves."""
    stream = libraries.torch.cuda.Stream()
    s: Any = sk.wrap(stream)
    held, loop = Held(stream), asyncio.new_event_loop()

    async def ours() -> None:
        await s

    async def theirs() -> None:
        await loop.run_in_executor(None, stream.synchronize)

    async def together(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks = [loop.create_task(wait()) for _ in range(count)]
        await asyncio.sleep(0)  # all wait
        held.open()
        await asyncio.gather(*tasks)

    def run(wait: Callable[[], Coroutine[Any, Any, None]], items: list[Any]) -> None:
        for _ in items:
            loop.run_until_complete(together(wait))

    try:
        yield Arms(
            partial(run, ours),
            partial(run, theirs),
            before=held.hold,
            after=held.end,
            one_turn=1,
            each=count,
        )
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


_STREAMS = "known streams", (10, 100, 1000, 5000)
_BESIDE_STREAMS = (
    "with s:, three libraries, torch's pool stream",
    "s.wait(native stream), wrapped by nobody",
    "sk.wrap(torch.cuda.current_stream()), result dropped: the wrap alone",
)


def _growths() -> list[Growth]:
    plans = {plan.name: plan for plan in [*scope_rows.PLANS, *stream_rows.PLANS]}
    beside = [plans[name] for name in _BESIDE_STREAMS]
    scope = plans[scope_rows.OF_TWO]
    keep = plans["s.keep(x), busy"]
    return [
        *(Growth(one.name, one.against, *_STREAMS, partial(_beside, one)) for one in beside),
        Growth(scope.name, scope.against, "threads", (1, 2, 4, 8), scope_rows.in_threads),
        Growth(keep.name, keep.against, "kept objects", (1, 100, 10_000, 100_000), _kept),
        Growth(
            "await s",
            "run_in_executor(None, torch_stream.synchronize)",
            "awaiting tasks",
            (1, 10, 100, 1000),
            awaiting,
        ),
    ]


GROWTHS = _growths()
"""The curves in their order."""
