"""How late the host wakes up when a queue has run: ours beside torch's own wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import streamkit as sk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamkit._bench_timing import Libraries

_CYCLES = 2_000_000  # of the kernel that is waited for: about a millisecond, longer than a look
_TIMES = 40


@dataclass(frozen=True)
class WakeUp:
    """Microseconds from the end of the work to the next line of the program: median, extremes."""

    name: str
    us: float
    us_low: float
    us_high: float


def measure(libraries: Libraries, times: int = _TIMES) -> list[WakeUp]:
    """Measure each way of waiting, on an otherwise idle interpreter; a tenth goes unmeasured."""
    torch = libraries.torch
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    s: Any = sk.wrap(stream)

    def by_event() -> None:
        event.record(stream)
        event.synchronize()

    def late(begun: int, marks: tuple[Any, Any]) -> float:
        took = perf_counter_ns() - begun
        return took / 1e3 - float(marks[0].elapsed_time(marks[1])) * 1e3

    def rounds() -> Iterator[tuple[int, tuple[Any, Any]]]:
        for _ in range(times + times // 10):
            marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begun = perf_counter_ns()
            with torch.cuda.stream(stream):
                marks[0].record()
                torch.cuda._sleep(_CYCLES)  # noqa: SLF001 - what torch's own tests spin with
                marks[1].record()
            yield begun, marks

    def blocking(wait: Callable[[], object]) -> list[float]:
        found: list[float] = []
        for begun, marks in rounds():
            wait()
            found.append(late(begun, marks))
        return found

    async def suspended() -> list[float]:
        found: list[float] = []
        for begun, marks in rounds():
            await s
            found.append(late(begun, marks))
        return found

    lists = {
        "await s": asyncio.run(suspended()),
        "s.sync()": blocking(s.sync),
        "torch.cuda.Event.synchronize": blocking(by_event),
    }
    measured = {name: found[times // 10 :] for name, found in lists.items()}
    return [WakeUp(name, median(found), min(found), max(found)) for name, found in measured.items()]
