"""The rows of the speed table that enter scopes."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._tools.bench import rows
from streamkit._tools.bench.rows import each_once
from streamkit._tools.bench.timing import Arms, Libraries, Plan, calls_without, same

if TYPE_CHECKING:
    from collections.abc import Generator

PLANS: list[Plan] = []
_row = partial(rows.row, PLANS)

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

    yield from each_once(libraries, ours, theirs)


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

    from streamkit.backends.warp.lent_queues import watched

    s, blocking = sk.new_stream(nonblocking=True), sk.new_stream()
    make = calls_without(partial(libraries.warp.empty, 1024, device=f"cuda:{libraries.device}"))
    with ExitStack() as back:
        back.callback(watched.update, watched.copy())
        watched.clear()  # of other queues, for which both sides would wait
        ours, theirs = partial(inside, s), partial(inside, blocking)
        yield Arms(ours, theirs, same(None), same(None), between=watched.clear)
