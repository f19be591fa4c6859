"""How late the host wakes up when a queue has run: ours beside torch's own wait."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cuda import driver
from streamkit._tools.bench.timing import (
    Arms,
    Libraries,
    Plan,
    calls,
    calls_without,
    held_calls,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from streamkit._tools.bench.timing import Libraries


def row(  # noqa: PLR0913 - what a row of the table says
    plans: list[Plan],
    name: str,
    against: str,
    *,
    at_most: float,
    aim: float,
    note: str = "",
    slows_what_follows: bool = False,
) -> Callable[[Callable[[Libraries], Generator[Arms]]], None]:
    """Add what arranges the two sides to these plans; of one name are an operation's settings."""

    def register(arrange: Callable[[Libraries], Generator[Arms]]) -> None:
        ready = contextmanager(arrange)
        plans.append(Plan(name, against, at_most, aim, note, ready, slows_what_follows))

    return register


def each_once(
    libraries: Libraries, ours: Callable[[Any], Any], theirs: Callable[[Any], Any]
) -> Generator[Arms]:
    """Give each side streams of torch's that nobody has seen."""
    device, from_handle = libraries.device, libraries.torch.cuda.get_stream_from_external
    handles: list[int] = []

    def fresh(count: int) -> list[Any]:
        made = [driver.create_stream(device, nonblocking=True, priority=0) for _ in range(count)]
        handles.extend(made)
        return [from_handle(handle, device) for handle in made]

    def clear() -> None:
        gc.collect()  # a library may hold its view in a cycle, and the handle must outlive the view
        while handles:
            driver.destroy_stream(handles.pop())

    try:
        yield Arms(held_calls(ours), held_calls(theirs), fresh, fresh, clear, one_turn=True)
    finally:
        clear()


PLANS: list[Plan] = []
_row = partial(row, PLANS)


@_row(
    "b.wait(a)", "torch.cuda.Stream.wait_stream", at_most=0.35, aim=0.26, note="a torch's, b CuPy's"
)
def _wait(libraries: Libraries) -> Generator[Arms]:
    torch = libraries.torch
    a, b = sk.wrap(torch.cuda.Stream()), sk.wrap(libraries.cupy.cuda.Stream(non_blocking=True))
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    yield Arms(calls(b.wait), calls(other.wait_stream), same(a), same(one))


@_row("s.record(e), e reused", "torch.cuda.Event.record", at_most=0.60, aim=0.53)
def _record(libraries: Libraries) -> Generator[Arms]:
    stream, event = libraries.torch.cuda.Stream(), libraries.torch.cuda.Event()
    s = sk.wrap(stream)
    yield Arms(calls(s.record), calls(event.record), same(s.record()), same(stream))


@_row(
    "s.keep(x)",
    "a list of (torch.cuda.Event, x), looked through by hand",
    at_most=2.0,
    aim=1.5,
    note="ours is right beside a capture and at exit too; on an idle stream",
)
def _keep(libraries: Libraries) -> Generator[Arms]:
    stream, event_of = libraries.torch.cuda.Stream(), libraries.torch.cuda.Event
    s, x = sk.wrap(stream), libraries.torch.ones(1, device=f"cuda:{libraries.device}")
    pending: deque[tuple[Any, Any]] = deque()

    def by_hand(kept: Any) -> None:
        event = event_of()
        event.record(stream)
        pending.append((event, kept))
        while pending and pending[0][0].query():
            pending.popleft()

    yield Arms(calls(s.keep), calls(by_hand), same(x), same(x))


@_row(
    "wrap(torch stream), never seen",
    "wp.stream_from_torch",
    at_most=0.50,
    aim=0.40,
    note="each stream wrapped once, the results held",
)
def _wrap_new(libraries: Libraries) -> Generator[Arms]:
    yield from each_once(libraries, sk.wrap, libraries.warp.stream_from_torch)


@_row(
    "wrap(fresh object of a known queue)",
    "cupy.cuda.Stream.from_external",
    at_most=1.8,
    aim=1.4,
    note="torch.cuda.current_stream() makes the objects beforehand, inside a pool stream",
)
def _wrap_known(libraries: Libraries) -> Generator[Arms]:
    cuda = libraries.torch.cuda
    from_external = libraries.cupy.cuda.Stream.from_external

    def fresh(count: int) -> list[Any]:
        return [cuda.current_stream() for _ in range(count)]

    with cuda.stream(cuda.Stream()):
        yield Arms(calls(sk.wrap), calls(from_external), fresh, fresh)


@_row(
    "wrap(the same object again)",
    "cupy.cuda.Stream.from_external",
    at_most=0.6,
    aim=0.4,
    note="the first wrap's result is held",
)
def _wrap_again(libraries: Libraries) -> Generator[Arms]:
    stream = libraries.torch.cuda.Stream()
    held = sk.wrap(stream)
    from_external = libraries.cupy.cuda.Stream.from_external
    yield Arms(calls(sk.wrap), calls(from_external), same(held.native), same(stream))


@_row(
    "s.to(library), cached",
    "torch._C._cuda_getCurrentRawStream",
    at_most=1.0,
    aim=0.7,
    note="torch, CuPy and Warp in turn",
)
def _to(libraries: Libraries) -> Generator[Arms]:
    s: Any = sk.new_stream()
    names = ["torch", "cupy", "warp"]
    for name in names:
        s.to(name)
    raw = libraries.torch._C._cuda_getCurrentRawStream  # noqa: SLF001 - what kernels are given
    yield Arms(
        calls(s.to), calls(raw), lambda count: (names * count)[:count], same(libraries.device)
    )


def _current(libraries: Libraries) -> Arms:
    theirs = calls_without(libraries.torch.cuda.current_stream)
    return Arms(calls(sk.current_stream), theirs, same("torch"), same(None))


_CURRENT = "current_stream('torch')", "torch.cuda.current_stream()"


@_row(*_CURRENT, at_most=0.20, aim=0.12, note="the worse of two: on torch's default stream")
def _current_default(libraries: Libraries) -> Generator[Arms]:
    cuda = libraries.torch.cuda
    with cuda.stream(cuda.default_stream()):
        yield _current(libraries)


@_row(*_CURRENT, at_most=0.20, aim=0.12, note="the worse of two: inside a pool stream")
def _current_pool(libraries: Libraries) -> Generator[Arms]:
    cuda = libraries.torch.cuda
    with cuda.stream(cuda.Stream()):
        yield _current(libraries)


@_row(
    "a launch inside audit()",
    "the same launch outside",
    at_most=1.5,
    aim=1.2,
    note="torch's fill_ of one number; needs CUPTI",
    slows_what_follows=True,  # CUPTI stays attached
)
def _audited(libraries: Libraries) -> Generator[Arms]:
    x = libraries.torch.zeros(1, device=f"cuda:{libraries.device}")
    fill = calls(x.fill_)
    with ExitStack() as audits:

        def audited(count: int) -> list[Any]:
            audits.enter_context(sk.audit())
            return [1] * count

        yield Arms(fill, fill, audited, same(1), between=audits.close)


# -- graphs -----------------------------------------------------------------------------------


def _pipeline(libraries: Libraries) -> Callable[[Any], object]:
    """Return small work of all three libraries, on each other's results."""
    from streamkit._tools.demo.warp_kernels import stretch

    torch, cupy, warp = libraries.torch, libraries.cupy, libraries.warp
    device = f"cuda:{libraries.device}"
    x = torch.rand(32, 32, device=device)
    out = warp.empty((32, 32), dtype=warp.float32, device=device)

    def run(_: Any) -> object:
        y = cupy.sin(cupy.from_dlpack(torch.relu(x) * 2))
        warp.launch(stretch, dim=(32, 32), inputs=[warp.from_dlpack(y), 2.0, out], device=device)
        return torch.from_dlpack(out) + 1

    return run


@_row(
    "g.launch(s), a small pipeline",
    "the pipeline of torch, CuPy and Warp itself",
    at_most=0.20,
    aim=0.10,
    note="five kernels on 32x32 arrays",
)
def _launch_pipeline(libraries: Libraries) -> Generator[Arms]:
    run, s = _pipeline(libraries), sk.new_stream(nonblocking=True)
    with s:
        run(None)
        with sk.capture(s) as g:
            run(None)
        yield Arms(calls(g.launch), calls(run), same(s), same(None))


@_row("g.launch(s)", "torch.cuda.CUDAGraph.replay", at_most=3.5, aim=2.5, note="one small kernel")
def _launch(libraries: Libraries) -> Generator[Arms]:
    torch, s = libraries.torch, sk.new_stream(nonblocking=True)
    x = torch.rand(32, 32, device=f"cuda:{libraries.device}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=s.to("torch")):
        torch.relu(x)
    with sk.capture(s) as g:
        torch.relu(x)
    with s:
        yield Arms(calls(g.launch), calls_without(graph.replay), same(s), same(None))


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
