"""The rows of the speed table that are about scopes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import streamkit as sk
from bench.arranging import ask, each_once, edge, looks, moves, row
from bench.end_to_end import SIDE, STEPS, ways
from bench.timing import Arms, Libraries, Plan, calls_without, each_of
from streamkit.testing import _gate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PLANS: list[Plan] = []
"""The rows in their order. Plans of one name are settings of one operation."""

_row = partial(row, PLANS)


_ALL = "torch", "cupy", "warp"
_TWO = "torch", "cupy"
_MANAGERS = "torch.cuda.stream, CuPy's stream, wp.ScopedStream(sync_enter=False), nested"


def _with(s: Any) -> Callable[[list[Any]], None]:
    def ours(items: list[Any]) -> None:
        for _ in items:
            with s:
                pass

    return ours


def _scopes(libraries: Libraries, s: Any, **others: Any) -> Arms:
    enter_torch, in_cupy = libraries.torch.cuda.stream, s.to("cupy")
    in_torch, in_warp, enter_warp = s.to("torch"), s.to("warp"), libraries.warp.ScopedStream

    def theirs(items: list[Any]) -> None:
        for _ in items:
            with enter_torch(in_torch), in_cupy, enter_warp(in_warp, sync_enter=False):
                pass

    return Arms(_with(s), theirs, **others)


@_row("with s:, three libraries, blocking stream", _MANAGERS, at_most=0.30, aim=0.22)
def _scope(libraries: Libraries) -> Generator[Arms]:
    s = sk.new_stream()
    yield _scopes(libraries, s, bare=each_of(moves(libraries, s, _ALL)))


@_row(
    "with s:, three libraries, torch's pool stream",
    _MANAGERS,
    at_most=0.32,
    aim=0.25,
    note="Warp's memory is made safe on it",
)
def _scope_of_pool(libraries: Libraries) -> Generator[Arms]:
    s = sk.wrap(libraries.torch.cuda.Stream())
    yield _scopes(libraries, s, bare=each_of(moves(libraries, s, _ALL)))


@_row(
    "with s:, three libraries, between other work",
    _MANAGERS,
    at_most=0.45,
    aim=0.35,
    note="on torch's pool stream; before each one a step of the three libraries, as in a program",
)
def _scope_between_work(libraries: Libraries) -> Generator[Arms]:
    torch, cupy, device = libraries.torch, libraries.cupy, f"cuda:{libraries.device}"
    x, y = torch.ones(32, 32, device=device), cupy.ones((32, 32))
    z = libraries.warp.zeros((32, 32), device=device)

    def step() -> None:
        torch.nn.functional.relu(x @ x)
        cupy.sqrt(y + 1)
        z.fill_(1.0)

    s = sk.wrap(torch.cuda.Stream())
    yield _scopes(libraries, s, before=step, turn=1, bare=each_of(moves(libraries, s, _ALL)))


@_row(
    f"{STEPS} steps of the libraries, a scope in each",
    f"the {STEPS} steps in one scope",
    at_most=1.25,
    aim=1.10,
    note="until the GPU has run them",
)
def _scope_in_each_step(libraries: Libraries) -> Generator[Arms]:
    torch = libraries.torch
    runs = ways(libraries, torch.ones(SIDE, SIDE, device=f"cuda:{libraries.device}"))
    ours, theirs = (
        each_of([runs[name], torch.cuda.synchronize]) for name in ("a scope a step", "one scope")
    )
    yield Arms(ours, theirs, one_turn=1)


@_row(
    "with s:, tvm-ffi beside the three",
    "the same managers and tvm_ffi.use_raw_stream, nested",
    at_most=0.40,
    aim=0.30,
    note="needs tvm-ffi",
    is_last=True,  # all scopes move it from then on
)
def _scope_of_four(libraries: Libraries) -> Generator[Arms]:
    s = sk.new_stream()
    s.to("tvm_ffi")  # imports it, or says what is missing
    import tvm_ffi

    enter_torch, in_cupy = libraries.torch.cuda.stream, s.to("cupy")
    in_torch, in_warp, enter_warp = s.to("torch"), s.to("warp"), libraries.warp.ScopedStream
    device, handle = tvm_ffi.device("cuda", libraries.device), s.handle
    enter_raw = tvm_ffi.use_raw_stream

    def theirs(items: list[Any]) -> None:
        for _ in items:
            with (
                enter_torch(in_torch),
                in_cupy,
                enter_warp(in_warp, sync_enter=False),
                enter_raw(device, handle),
            ):
                pass

    yield Arms(_with(s), theirs)


@_row(
    "wrap and first scope of a stream",
    "the same managers, of streams made there",
    at_most=2.5,
    aim=1.5,
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

    def necessary(items: list[Any]) -> None:
        for stream in items:
            ask(stream)
            with in_cupy(stream):
                in_warp(stream)
            for move in back_and_forth:
                move()

    back_and_forth = moves(libraries, sk.new_stream(), ("torch", "warp"))
    return each_once(libraries, ours, theirs, bare=necessary)


_ORDERED = (
    "with sk.use(s, ordered=True), three libraries",
    "the same managers, and the same waits by torch.cuda.Stream.wait_stream",
)


def _ordered(libraries: Libraries, *previous: Any) -> Generator[Arms]:
    """Time scopes beside these torch streams: those on which the three libraries stand."""
    stream, use = libraries.torch.cuda.Stream(), sk.use
    s: Any = sk.wrap(stream)
    enter_torch, in_cupy, in_warp = libraries.torch.cuda.stream, s.to("cupy"), s.to("warp")
    enter_warp = libraries.warp.ScopedStream

    def ours(items: list[Any]) -> None:
        for _ in items:
            with use(s, ordered=True):
                pass

    def theirs(items: list[Any]) -> None:
        for _ in items:
            for before in previous:
                stream.wait_stream(before)
            with enter_torch(stream), in_cupy, enter_warp(in_warp, sync_enter=False):
                pass
            for before in previous:
                before.wait_stream(stream)

    with _gate.raw_event() as event:
        pairs = [pair for one in previous for pair in ((one, stream), (stream, one))]
        bare = [call for pair in pairs for call in edge(event, *pair)]
        bare += moves(libraries, s, _ALL)
        yield Arms(ours, theirs, bare=each_of(bare))


@_row(*_ORDERED, at_most=0.6, aim=0.4, note="the worse of two: as the libraries begin, four waits")
def _ordered_at_first(libraries: Libraries) -> Generator[Arms]:
    cuda, warp = libraries.torch.cuda, libraries.warp
    of_warp = warp.stream_to_torch(warp.get_stream(f"cuda:{libraries.device}"))
    return _ordered(libraries, cuda.default_stream(), of_warp)  # CuPy's is torch's


@_row(*_ORDERED, at_most=0.6, aim=0.4, note="the worse of two: from three queues, six waits")
def _ordered_from_three(libraries: Libraries) -> Generator[Arms]:
    torch, warp = libraries.torch.cuda, libraries.warp
    three = [torch.Stream() for _ in range(3)]
    in_cupy, in_warp = sk.wrap(three[1]).to("cupy"), sk.wrap(three[2]).to("warp")
    with torch.stream(three[0]), in_cupy, warp.ScopedStream(in_warp, sync_enter=False):
        yield from _ordered(libraries, *three)


OF_TWO = "with sk.use(q, libraries=('torch', 'cupy'))"


@_row(OF_TWO, "torch.cuda.stream, CuPy's stream, nested", at_most=0.5, aim=0.35)
def _scope_of_two(libraries: Libraries) -> Generator[Arms]:
    q, use = sk.new_stream(nonblocking=True), sk.use
    enter_torch, in_torch, in_cupy = libraries.torch.cuda.stream, q.to("torch"), q.to("cupy")

    def ours(items: list[Any]) -> None:
        for _ in items:
            with use(q, libraries=_TWO):
                pass

    def theirs(items: list[Any]) -> None:
        for _ in items:
            with enter_torch(in_torch), in_cupy:
                pass

    bare = each_of(moves(libraries, q, _TWO))
    yield Arms(ours, theirs, bare=bare)


_FOLLOW = (
    "with sk.follow('torch', libraries=['cupy']), on one queue already",
    "cupy.cuda.Stream.from_external(torch.cuda.current_stream()) as a scope",
)


def _following(libraries: Libraries) -> Generator[Arms]:
    current = libraries.torch.cuda.current_stream
    external = libraries.cupy.cuda.Stream.from_external
    scope = sk.follow("torch", libraries=["cupy"])

    def ours(items: list[Any]) -> None:
        for _ in items:
            with scope:
                pass

    def theirs(items: list[Any]) -> None:
        for _ in items:
            with external(current()):
                pass

    yield Arms(ours, theirs)


@_row(*_FOLLOW, at_most=0.65, aim=0.5, note="the worse of two: on the default stream")
def _follow_at_first(libraries: Libraries) -> Generator[Arms]:
    return _following(libraries)


@_row(*_FOLLOW, at_most=0.65, aim=0.5, note="the worse of two: inside a scope of both")
def _follow_inside(libraries: Libraries) -> Generator[Arms]:
    with sk.use(sk.new_stream(), libraries=_TWO):
        yield from _following(libraries)


_THREADS = 8
_THREADS_TURN = 500  # scopes of each thread: a tenth of a second, in which they change often


def in_threads(libraries: Libraries, count: int) -> Generator[Arms]:
    """Time the scopes of two libraries in some threads at once, each with a stream of its own."""
    cuda, use = libraries.torch.cuda, sk.use
    streams = [sk.new_stream(nonblocking=True) for _ in range(count)]

    def ours(items: list[Any], q: Any) -> None:
        for _ in items:
            with use(q, libraries=_TWO):
                pass

    def theirs(items: list[Any], q: Any) -> None:
        in_torch, in_cupy = q.to("torch"), q.to("cupy")
        for _ in items:
            with cuda.stream(in_torch), in_cupy:
                pass

    def together(loop: Callable[[list[Any], Any], None], items: list[Any]) -> None:
        here = threading.Barrier(count)  # no thread runs two

        def run(q: Any) -> None:
            here.wait()
            loop(items, q)

        list(pool.map(run, streams))

    def begin() -> None:
        cuda.set_device(libraries.device)

    with ThreadPoolExecutor(count, initializer=begin) as pool:
        yield Arms(
            partial(together, ours),
            partial(together, theirs),
            one_turn=_THREADS_TURN,
            each=count,
        )


@_row(
    f"{OF_TWO} from {_THREADS} threads",
    f"torch.cuda.stream, CuPy's stream, nested, from {_THREADS} threads",
    at_most=1.0,
    aim=0.67,
    note="time a scope, all threads together",
)
def _scope_in_threads(libraries: Libraries) -> Generator[Arms]:
    return in_threads(libraries, _THREADS)


@_row("with s:, nested in one of s", _MANAGERS, at_most=0.10, aim=0.06, note="both sides nested")
def _scope_nested(libraries: Libraries) -> Generator[Arms]:
    s = sk.new_stream()
    with s:
        yield _scopes(libraries, s, bare=each_of(looks(libraries) * 2))


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

    from streamkit.backends._warp.current_stream import watched

    s, blocking = sk.new_stream(nonblocking=True), sk.new_stream()
    make = calls_without(partial(libraries.warp.empty, 1024, device=f"cuda:{libraries.device}"))
    with ExitStack() as back:
        back.callback(watched.update, watched.copy())
        watched.clear()  # of other queues, for which both sides would wait
        ours, theirs = partial(inside, s), partial(inside, blocking)
        yield Arms(ours, theirs, after=watched.clear)
