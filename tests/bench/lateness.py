"""How late the host goes on when a queue has run, and what waiting takes of a core meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cuda import driver, loader
from streamkit._queues import waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.timing import Libraries

_SPINS = "torch.cuda.Stream.synchronize, which spins"
_BLOCKS = "an event of CU_EVENT_BLOCKING_SYNC"
_EXECUTOR = "run_in_executor(None, torch_stream.synchronize)"
_CORE = 0.05  # of a core: what two waits of the same kind may differ by
_MAY_LOOK = (
    "of a core ours may take what theirs takes, its look of "
    f"{waits.LOOK * 1e3:g} ms (with which short waits end in time), and {_CORE:g}"
)
_CYCLES = 2_000_000  # a millisecond or two, from which those of a millisecond are found
_UNMEASURED = 3  # rounds in which threads are made
_BLOCKING, _NO_TIMING = 1, 2


@dataclass(frozen=True)
class Wait:
    """One way of waiting beside another, for work of some lengths, and the bounds."""

    ours: str
    theirs: str
    work_ms: tuple[float, ...]
    at_most: float  # times theirs
    aim: float | None
    within_us: float = 0.0  # and so much later
    core_within: float | None = None  # of theirs and the look; None: whatever it takes of a core
    note: str = ""


WAITS = (
    Wait("await s", _EXECUTOR, (0.02, 0.2, 1, 5, 50), 1.0, 0.6),
    Wait("s.sync()", _SPINS, (0.02, 0.2, 1), 1.0, None, within_us=20),
    Wait("s.sync()", _BLOCKS, (5, 50), 1.0, 0.8, core_within=_CORE, note=_MAY_LOOK),
)


@dataclass(frozen=True)
class Lateness:
    """Microseconds from the end of the work to the next line of the program, and shares of a core.

    Medians. ``core_at_most`` is None where any share will do.
    """

    name: str
    against: str
    work_ms: float
    ours_us: float
    theirs_us: float
    ours_core: float
    theirs_core: float
    at_most_us: float
    aim_us: float | None
    core_at_most: float | None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether it is early enough, and leaves enough of the core."""
        busy = self.core_at_most is not None and self.ours_core > self.core_at_most
        return self.ours_us <= self.at_most_us and not busy


def measure(libraries: Libraries, times: int) -> list[Lateness]:
    """Measure each way of waiting so many times, on an otherwise idle interpreter."""
    stream = libraries.torch.cuda.Stream()
    s: Any = sk.wrap(stream)
    cu, queue = loader.cu, loader.cu.CUstream(stream.cuda_stream)
    event = driver.ask("cuEventCreate", _BLOCKING | _NO_TIMING)

    def by_event() -> None:
        cu.cuEventRecord(event, queue)
        cu.cuEventSynchronize(event)

    def in_executor() -> Any:
        return asyncio.get_running_loop().run_in_executor(None, stream.synchronize)

    ways: dict[str, Callable[[], Any]] = {
        "await s": lambda: s,
        "s.sync()": s.sync,
        _SPINS: stream.synchronize,
        _BLOCKS: by_event,
        _EXECUTOR: in_executor,
    }

    async def all_waits() -> list[Lateness]:
        sleep = Sleep(libraries.torch, stream)
        found = []
        for wait in WAITS:
            for work_ms in wait.work_ms:
                rounds = [
                    (
                        await sleep.late(work_ms, ways[wait.ours]),
                        await sleep.late(work_ms, ways[wait.theirs]),
                    )
                    for _ in range(times + _UNMEASURED)
                ]
                found.append(summary(wait, work_ms, rounds[_UNMEASURED:]))
        return found

    try:
        return asyncio.run(all_waits())
    finally:
        driver.ask("cuEventDestroy", event)


class Sleep:
    """Kernels that run for a given time on one stream of an idle device, and the waits for them."""

    def __init__(self, torch: Any, stream: Any) -> None:
        self._torch, self._stream = torch, stream
        self._cycles_a_ms = 1.0
        for _ in range(2):  # the first round wakes the device
            start, end, _ = self._begin(_CYCLES / self._cycles_a_ms)
            end.synchronize()
            self._cycles_a_ms = _CYCLES / start.elapsed_time(end)

    def _begin(self, work_ms: float) -> tuple[Any, Any, int]:
        """Submit it; return the events around it, and when it began."""
        cuda = self._torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        with cuda.stream(self._stream):
            start.record()
            begun = perf_counter_ns()
            cuda._sleep(int(work_ms * self._cycles_a_ms))
            end.record()
        return start, end, begun

    async def late(self, work_ms: float, wait: Callable[[], Any]) -> tuple[float, float]:
        """Return how many microseconds late a wait was, and its share of a core."""
        start, end, begun = self._begin(work_ms)
        waiting, before = perf_counter_ns(), process_time_ns()
        awaitable = wait()
        if awaitable is not None:
            await awaitable
        now, after = perf_counter_ns(), process_time_ns()
        late = (now - begun) / 1e3 - float(start.elapsed_time(end)) * 1e3
        return late, (after - before) / (now - waiting)


Rounds = list[tuple[tuple[float, float], tuple[float, float]]]


def summary(wait: Wait, work_ms: float, rounds: Rounds) -> Lateness:
    """Return what the rounds come to, each of ours and theirs, lateness and share of a core."""
    ours_us, ours_core = (median(ours[place] for ours, _ in rounds) for place in range(2))
    theirs_us, theirs_core = (median(theirs[place] for _, theirs in rounds) for place in range(2))
    core = None if wait.core_within is None else theirs_core + wait.core_within + _look(work_ms)
    return Lateness(
        f"lateness of {wait.ours} after {work_ms:g} ms of work",
        wait.theirs,
        work_ms,
        ours_us,
        theirs_us,
        ours_core,
        theirs_core,
        at_most_us=wait.at_most * theirs_us + wait.within_us,
        aim_us=None if wait.aim is None else wait.aim * theirs_us,
        core_at_most=core,
        note=wait.note,
    )


def _look(work_ms: float) -> float:
    """Return the look's share of a wait for that work, in which all the time is asked."""
    return min(1.0, waits.LOOK * 1e3 / work_ms)
