"""The rows of the speed table that are about streams: waits, events, views, memory and graphs."""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import streamkit as sk
from bench.after_block import AfterBlock
from bench.arranging import Held, ask, each_once, edge, row
from bench.timing import (
    Arms,
    Libraries,
    Plan,
    calls,
    calls_without,
    dropping_calls,
    each_of,
    same,
)
from streamkit._cuda import loader
from streamkit.testing import _gate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PLANS: list[Plan] = []
"""The rows in their order. Plans of one name are settings of one operation."""

_row = partial(row, PLANS)


# -- waits, events, views --------------------------------------------------------------------


@_row(
    "b.wait(a)", "torch.cuda.Stream.wait_stream", at_most=0.35, aim=0.26, note="a torch's, b CuPy's"
)
def _wait(libraries: Libraries) -> Generator[Arms]:
    torch = libraries.torch
    a, b = sk.wrap(torch.cuda.Stream()), sk.wrap(libraries.cupy.cuda.Stream(non_blocking=True))
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    with _gate.raw_event() as event:
        bare = each_of(edge(event, one, other))
        yield Arms(calls(b.wait), calls(other.wait_stream), same(a), same(one), bare=bare)


_NATIVE = "s.wait(native stream), wrapped by nobody", "torch.cuda.Stream.wait_stream"


def _wait_native(libraries: Libraries, native: Any) -> Generator[Arms]:
    """Time waits for a library's own stream, which its user holds."""
    cuda = libraries.torch.cuda
    stream, one, other = cuda.Stream(), cuda.Stream(), cuda.Stream()
    s = sk.wrap(stream)
    with _gate.raw_event() as event:
        bare = each_of(edge(event, one, other))
        yield Arms(calls(s.wait), calls(other.wait_stream), same(native), same(one), bare=bare)


@_row(*_NATIVE, at_most=0.7, aim=0.35, note="the worse of two: CuPy's stream")
def _wait_cupy(libraries: Libraries) -> Generator[Arms]:
    return _wait_native(libraries, libraries.cupy.cuda.Stream(non_blocking=True))


@_row(*_NATIVE, at_most=0.7, aim=0.35, note="the worse of two: torch's stream")
def _wait_torch(libraries: Libraries) -> Generator[Arms]:
    return _wait_native(libraries, libraries.torch.cuda.Stream())


@_row(
    "sk.wrap(torch stream).wait(CuPy stream), nothing held",
    "torch.cuda.Stream.wait_stream",
    at_most=0.8,
    aim=0.4,
)
def _wrap_and_wait(libraries: Libraries) -> Generator[Arms]:
    cuda, wrap = libraries.torch.cuda, sk.wrap
    stream, one, other = cuda.Stream(), cuda.Stream(), cuda.Stream()
    of_cupy = libraries.cupy.cuda.Stream(non_blocking=True)

    def ours(items: list[Any]) -> None:
        for native in items:
            wrap(stream).wait(native)

    with _gate.raw_event() as event:
        bare = each_of(edge(event, one, other))
        yield Arms(ours, calls(other.wait_stream), same(of_cupy), same(one), bare=bare)


@_row(
    "sk.handoff(x, t, after=s)",
    "t.wait_stream(s) and x.record_stream(t) of torch",
    at_most=1.2,
    aim=0.8,
    note="x, s and t are torch's, s and t wrapped",
)
def _handoff(libraries: Libraries) -> Generator[Arms]:
    cuda, handoff = libraries.torch.cuda, sk.handoff
    one, other = cuda.Stream(), cuda.Stream()
    s, t = sk.wrap(one), sk.wrap(other)
    x = libraries.torch.ones(1, device=f"cuda:{libraries.device}")

    def ours(items: list[Any]) -> None:
        for _ in items:
            handoff(x, t, after=s)

    def theirs(items: list[Any]) -> None:
        for _ in items:
            other.wait_stream(one)
            x.record_stream(other)

    with _gate.raw_event() as event:
        bare = each_of([*edge(event, one, other), partial(x.record_stream, other)])
        yield Arms(ours, theirs, bare=bare)


@_row("s.record(e), e reused", "torch.cuda.Event.record", at_most=0.60, aim=0.53)
def _record(libraries: Libraries) -> Generator[Arms]:
    stream, event = libraries.torch.cuda.Stream(), libraries.torch.cuda.Event()
    s = sk.wrap(stream)
    yield Arms(calls(s.record), calls(event.record), same(s.record()), same(stream))


_BY_HAND = "a list of (torch.cuda.Event, x), looked through by hand"
_KEPT_RIGHT = "ours is right beside a capture and at exit too"


def keeping(libraries: Libraries, *, busy: bool, count: int = 0) -> Generator[Arms]:
    """Time ``keep`` on an idle stream, or on one that is busy all the time."""
    stream, event_of = libraries.torch.cuda.Stream(), libraries.torch.cuda.Event
    s, x = sk.wrap(stream), libraries.torch.ones(1, device=f"cuda:{libraries.device}")
    pending: deque[tuple[Any, Any]] = deque()

    def by_hand(kept: Any) -> None:
        event = event_of()
        event.record(stream)
        pending.append((event, kept))
        while pending and pending[0][0].query():
            pending.popleft()

    cu, queue = loader.cu, loader.cu.CUstream(stream.cuda_stream)
    with _gate.raw_event() as event:
        mark = cu.CUevent(event)
        bare = each_of([partial(cu.cuEventRecord, mark, queue), partial(cu.cuEventQuery, mark)])
        arms = Arms(calls(s.keep), calls(by_hand), same(x), same(x), bare)
        if busy:
            held = Held(stream)
            arms = replace(arms, before=held.hold, after=held.end, one_turn=count)
        yield arms


@_row("s.keep(x), idle", _BY_HAND, at_most=1.0, aim=0.5, note=f"{_KEPT_RIGHT}; on an idle stream")
def _keep_idle(libraries: Libraries) -> Generator[Arms]:
    return keeping(libraries, busy=False)


@_row("s.keep(x), busy", _BY_HAND, at_most=1.0, aim=0.5, note=f"{_KEPT_RIGHT}; on a busy stream")
def _keep_busy(libraries: Libraries) -> Generator[Arms]:
    return keeping(libraries, busy=True)


@_row(
    "s.then(fn), the call",
    "CuPy's launch_host_func",
    at_most=3.0,
    aim=1.5,
    note="fn makes an int; ours gives a future, and has its own threads call fn, not the driver's",
)
def _then(libraries: Libraries) -> Generator[Arms]:
    s = sk.wrap(libraries.torch.cuda.Stream())
    launch = partial(libraries.cupy.cuda.Stream(non_blocking=True).launch_host_func, int)

    def all_called() -> None:
        s.then(int).result()  # the functions of a stream are called in their order

    yield Arms(calls(s.then), calls(launch), same(int), same(0), after=all_called)


@_row(
    "wrap(torch stream), never seen",
    "wp.stream_from_torch",
    at_most=0.6,
    aim=0.45,
    note="each stream wrapped once, the results held",
)
def _wrap_new(libraries: Libraries) -> Generator[Arms]:
    return each_once(libraries, sk.wrap, libraries.warp.stream_from_torch, bare=calls(ask))


_CURRENT_WRAPPED = (
    "sk.wrap(torch.cuda.current_stream()), result dropped: the wrap alone",
    "torch.cuda.current_stream()",
)


def _wrap_current(libraries: Libraries, stream: Any) -> Generator[Arms]:
    cuda = libraries.torch.cuda

    def fresh(count: int) -> list[Any]:
        return [cuda.current_stream() for _ in range(count)]

    with cuda.stream(stream):
        theirs = calls_without(cuda.current_stream)
        yield Arms(dropping_calls(sk.wrap), theirs, fresh)


@_row(
    *_CURRENT_WRAPPED,
    at_most=0.25,
    aim=0.15,
    note="the worse of two: on torch's default stream, each object new and dropped too",
)
def _wrap_current_default(libraries: Libraries) -> Generator[Arms]:
    return _wrap_current(libraries, libraries.torch.cuda.default_stream())


@_row(
    *_CURRENT_WRAPPED,
    at_most=0.25,
    aim=0.15,
    note="the worse of two: inside a pool stream, each object new and dropped too",
)
def _wrap_current_pool(libraries: Libraries) -> Generator[Arms]:
    return _wrap_current(libraries, libraries.torch.cuda.Stream())


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
    raw = libraries.torch._C._cuda_getCurrentRawStream
    yield Arms(
        calls(s.to), calls(raw), lambda count: (names * count)[:count], same(libraries.device)
    )


_CURRENT = "current_stream('torch')", "torch.cuda.current_stream()"


def _current(libraries: Libraries, stream: Any) -> Generator[Arms]:
    cuda = libraries.torch.cuda
    with cuda.stream(stream):
        theirs = calls_without(cuda.current_stream)
        yield Arms(calls(sk.current_stream), theirs, same("torch"))


@_row(*_CURRENT, at_most=0.20, aim=0.12, note="the worse of two: on torch's default stream")
def _current_default(libraries: Libraries) -> Generator[Arms]:
    return _current(libraries, libraries.torch.cuda.default_stream())


@_row(*_CURRENT, at_most=0.20, aim=0.12, note="the worse of two: inside a pool stream")
def _current_pool(libraries: Libraries) -> Generator[Arms]:
    return _current(libraries, libraries.torch.cuda.Stream())


PLANS.extend(
    AfterBlock(
        f"any CUDA call of the process after {block} has ended",
        "the same call before it",
        at_most=1.05,
        aim=1.0,
        note="the worse of a launch by torch and a query by the driver's bindings; needs CUPTI",
        block=block,
    )
    for block in ("audit()", "races()")  # of which nothing is left
)


@_row(
    "a launch inside audit()",
    "the same launch outside",
    at_most=1.2,
    aim=1.1,
    note="torch's fill_ of one number",
)
def _audited(libraries: Libraries) -> Generator[Arms]:
    x = libraries.torch.zeros(1, device=f"cuda:{libraries.device}")
    yield from _inside(sk.audit, partial(x.fill_, 1))


def _inside(block: Callable[[], Any], launch: Callable[[], object]) -> Generator[Arms]:
    """Time a launch in such a block, and outside of one."""
    loop = calls_without(launch)
    with ExitStack() as blocks:

        def entered(count: int) -> list[Any]:
            blocks.enter_context(block())
            return [None] * count

        yield Arms(loop, loop, entered, after=blocks.close)


_RACES = "a launch inside races()", "the same launch outside"


@_row(*_RACES, at_most=1.3, aim=1.15, note="the worst of three: a small kernel of CuPy's")
def _races_cupy(libraries: Libraries) -> Generator[Arms]:
    source = 'extern "C" __global__ void set_one(float* x) { x[0] = 1; }'
    with libraries.cupy.cuda.Device(libraries.device):
        kernel = libraries.cupy.RawKernel(source, "set_one")
        arguments = (libraries.cupy.zeros(1, "f4"),)
        kernel((1,), (1,), arguments)
        yield from _inside(sk.races, lambda: kernel((1,), (1,), arguments))


@_row(*_RACES, at_most=1.3, aim=1.15, note="the worst of three: a small kernel of Warp's")
def _races_warp(libraries: Libraries) -> Generator[Arms]:
    from streamkit._cli.demo_kernels import stretch

    warp, device = libraries.warp, f"cuda:{libraries.device}"
    x = warp.zeros((32, 32), dtype=warp.float32, device=device)
    given = {"dim": (32, 32), "inputs": [x, 2.0, x], "device": device}
    warp.launch(stretch, **given)
    yield from _inside(sk.races, lambda: warp.launch(stretch, **given))


@_row(*_RACES, at_most=1.3, aim=1.15, note="the worst of three: torch's fill_ of one number")
def _races_torch(libraries: Libraries) -> Generator[Arms]:
    x = libraries.torch.zeros(1, device=f"cuda:{libraries.device}")
    yield from _inside(sk.races, partial(x.fill_, 1))


# -- graphs -----------------------------------------------------------------------------------


def _pipeline(libraries: Libraries) -> Callable[[Any], object]:
    """Return small work of all three libraries, on each other's results."""
    from streamkit._cli.demo_kernels import stretch

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
        yield Arms(calls(g.launch), calls(run), same(s))


def _launches(libraries: Libraries, work: Callable[[Any], Any]) -> Generator[Arms]:
    """Time launches of a graph with one small kernel beside torch's own."""
    torch, s = libraries.torch, sk.new_stream(nonblocking=True)
    x = torch.rand(32, 32, device=f"cuda:{libraries.device}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=s.to("torch")):
        work(x)
    with sk.capture(s) as g:
        work(x)
    with s:
        yield Arms(calls(g.launch), calls_without(graph.replay), same(s))


@_row("g.launch(s)", "torch.cuda.CUDAGraph.replay", at_most=1.6, aim=1.2, note="one small kernel")
def _launch(libraries: Libraries) -> Generator[Arms]:
    return _launches(libraries, libraries.torch.relu)


@_row(
    "g.launch(s) with random numbers",
    "torch.cuda.CUDAGraph.replay",
    at_most=1.6,
    aim=1.2,
    note="one small kernel",
)
def _launch_with_random_numbers(libraries: Libraries) -> Generator[Arms]:
    return _launches(libraries, libraries.torch.rand_like)


@_row(
    "g.launch(s) without random numbers",
    "cuGraphLaunch of cuda.bindings",
    at_most=1.2,
    aim=1.1,
    note="one small kernel of torch's",
)
def _launch_by_the_driver(libraries: Libraries) -> Generator[Arms]:
    torch, cu, s = libraries.torch, loader.cu, sk.new_stream(nonblocking=True)
    x = torch.rand(32, 32, device=f"cuda:{libraries.device}")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=s.to("torch")):
        torch.relu(x)
    graph.instantiate()
    with sk.capture(s) as g:
        torch.relu(x)
    run, target = cu.CUgraphExec(graph.raw_cuda_graph_exec()), cu.CUstream(s.handle)
    yield Arms(calls(g.launch), calls(partial(cu.cuGraphLaunch, run)), same(s), same(target))


@_row(
    "a training step by graphed",
    "the step with torch.cuda.make_graphed_callables",
    at_most=1.05,
    aim=0.8,
    note="forward, backward and SGD of three layers; torch graphs only the forward and backward",
)
def _training_step(libraries: Libraries) -> Generator[Arms]:
    torch = libraries.torch
    device = f"cuda:{libraries.device}"
    x, target = torch.rand(2, 64, 256, device=device)

    def step_of(graph: Callable[[Any], Any]) -> Callable[..., object]:
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3))).to(device)
        optimizer, run = torch.optim.SGD(model.parameters(), lr=1e-3), graph(model)

        def step(x: Any, target: Any) -> Any:
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.mse_loss(run(x), target)
            loss.backward()
            optimizer.step()
            return loss

        return step

    ours = sk.graphed(step_of(lambda model: model))
    with warnings.catch_warnings():  # of torch, for what make_graphed_callables itself does
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current")
        theirs = step_of(lambda model: torch.cuda.make_graphed_callables(model, (x,)))
        for step in (ours, theirs) * 3:
            step(x, target)
    yield Arms(calls_without(partial(ours, x, target)), calls_without(partial(theirs, x, target)))


_THEIR_FORWARD = "the model by torch.cuda.make_graphed_callables"


def _forward(libraries: Libraries, *, copy: bool) -> Generator[Arms]:
    """Time forward passes, of which torch copies the arguments in, and no result out."""
    torch = libraries.torch
    layers = [torch.nn.Linear(256, 256) for _ in range(3)]
    model = torch.nn.Sequential(*layers).to(f"cuda:{libraries.device}")
    x = torch.rand(64, 256, device=f"cuda:{libraries.device}")
    ours = sk.graphed(lambda x: model(x).detach(), copy=copy)
    with warnings.catch_warnings():  # of torch, as above
        warnings.simplefilter("ignore")
        theirs = torch.cuda.make_graphed_callables(torch.nn.Sequential(*layers), (x,))
    s = sk.new_stream(libraries.device, nonblocking=True)
    with torch.no_grad(), sk.use(s):
        for call in (ours, theirs) * 3:
            call(x)
        yield Arms(calls_without(partial(ours, x)), calls_without(partial(theirs, x)))


@_row("a model by graphed", _THEIR_FORWARD, at_most=3.0, aim=1.5)
def _forward_without_copies(libraries: Libraries) -> Generator[Arms]:
    return _forward(libraries, copy=False)


@_row("a model by graphed, copy=True", _THEIR_FORWARD, at_most=7.0, aim=3.0)
def _forward_with_copies(libraries: Libraries) -> Generator[Arms]:
    return _forward(libraries, copy=True)
