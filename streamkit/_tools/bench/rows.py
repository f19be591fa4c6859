"""The rows of the speed table: for each operation, StreamKit's call and the libraries' own."""

from __future__ import annotations

import gc
from collections import deque
from contextlib import ExitStack, contextmanager
from functools import partial
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
    from collections.abc import Callable, Generator

PLANS: list[Plan] = []
"""The rows in their order. Plans of one name are settings of one operation."""


def _row(
    name: str, against: str, **fields: Any
) -> Callable[[Callable[[Libraries], Generator[Arms]]], None]:
    """Add a plan of these fields, which the decorated function arranges."""

    def register(arrange: Callable[[Libraries], Generator[Arms]]) -> None:
        PLANS.append(Plan(name, against, arrange=contextmanager(arrange), **fields))

    return register


def _each_once(
    libraries: Libraries, ours: Callable[[Any], Any], theirs: Callable[[Any], Any]
) -> Generator[Arms]:
    """Give each side torch streams that no library has seen."""
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


# -- scopes ------------------------------------------------------------------------------------

_MANAGERS = "torch.cuda.stream, CuPy's stream, wp.ScopedStream(sync_enter=False), nested"


def _scopes(libraries: Libraries, s: Any) -> Arms:
    enter_torch, in_cupy = libraries.torch.cuda.stream, s.to("cupy")
    in_torch, in_warp, enter_warp = s.to("torch"), s.to("warp"), libraries.warp.ScopedStream

    def ours(items: list[Any]) -> None:
        for _ in items:
            with s:
                pass

    def theirs(items: list[Any]) -> None:
        for _ in items:
            with enter_torch(in_torch), in_cupy, enter_warp(in_warp, sync_enter=False):
                pass

    return Arms(ours, theirs, same(None), same(None))


@_row("with s:, blocking s", _MANAGERS, at_most=0.30, aim=0.25)
def _scope(libraries: Libraries) -> Generator[Arms]:
    yield _scopes(libraries, sk.new_stream())


@_row(
    "with s:, torch pool stream",
    _MANAGERS,
    at_most=0.42,
    aim=0.35,
    note="Warp's memory is made safe on it",
)
def _scope_of_pool(libraries: Libraries) -> Generator[Arms]:
    yield _scopes(libraries, sk.wrap(libraries.torch.cuda.Stream()))


@_row(
    "wrap and the first with s:",
    "the same managers, of streams made there",
    at_most=6.0,
    aim=4.0,
    note="each stream used once; the libraries' own views of it are made on both sides",
)
def _scope_new(libraries: Libraries) -> Generator[Arms]:
    torch, warp = libraries.torch.cuda, libraries.warp
    in_cupy, in_warp = libraries.cupy.cuda.Stream.from_external, warp.stream_from_torch

    def ours(stream: Any) -> Any:
        s = sk.wrap(stream)
        with s:
            return s

    def theirs(stream: Any) -> Any:
        views = in_cupy(stream), in_warp(stream)
        with torch.stream(stream), views[0], warp.ScopedStream(views[1], sync_enter=False):
            return views

    return _each_once(libraries, ours, theirs)


@_row("with s:, nested in one of s", _MANAGERS, at_most=0.10, aim=0.06, note="both sides nested")
def _scope_nested(libraries: Libraries) -> Generator[Arms]:
    s = sk.new_stream()
    with s:
        yield _scopes(libraries, s)


@_row(
    "a Warp array made and dropped, non-blocking s",
    "the same on a blocking s",
    at_most=3.0,
    aim=2.0,
    note="each side inside its scope; Warp's memory is made safe on ours",
)
def _warp_array(libraries: Libraries) -> Generator[Arms]:
    def inside(scope: Any, items: list[Any]) -> None:
        with scope:
            make(items)

    from streamkit.backends._warp.memory import watched

    s, blocking = sk.new_stream(nonblocking=True), sk.new_stream()
    make = calls_without(partial(libraries.warp.empty, 1024, device=f"cuda:{libraries.device}"))
    with ExitStack() as back:
        back.callback(watched.update, watched.copy())
        watched.clear()  # of other queues, for which both sides would wait
        ours, theirs = partial(inside, s), partial(inside, blocking)
        yield Arms(ours, theirs, same(None), same(None), between=watched.clear)


# -- waits, events, views --------------------------------------------------------------------


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
    return _each_once(libraries, sk.wrap, libraries.warp.stream_from_torch)


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


_CURRENT = "current_stream('torch')", "torch.cuda.current_stream()"


def _current(libraries: Libraries, stream: Any) -> Generator[Arms]:
    cuda = libraries.torch.cuda
    with cuda.stream(stream):
        theirs = calls_without(cuda.current_stream)
        yield Arms(calls(sk.current_stream), theirs, same("torch"), same(None))


@_row(*_CURRENT, at_most=0.20, aim=0.12, note="the worse of two: on torch's default stream")
def _current_default(libraries: Libraries) -> Generator[Arms]:
    return _current(libraries, libraries.torch.cuda.default_stream())


@_row(*_CURRENT, at_most=0.20, aim=0.12, note="the worse of two: inside a pool stream")
def _current_pool(libraries: Libraries) -> Generator[Arms]:
    return _current(libraries, libraries.torch.cuda.Stream())


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
