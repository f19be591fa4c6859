"""A missing wait in a graph of several libraries is found, and nothing is if none is missing."""

from __future__ import annotations

import functools
import itertools

import pytest

import streamkit as sk
from support.gpu.library_subjects import SUBJECTS
from support.gpu.raw import check, driver
from support.libraries import need

pytestmark = pytest.mark.usefixtures("libraries_as_before")

TOLD = {"torch", "cupy", "copy", "fill"}
"""Those of which it is known what they read and write."""
WORK = ["torch", "cupy", "warp", "numba", "copy", "fill"]


def work(name, stream, source, target):
    """Let a library write a cell, from another one."""
    if name == "copy":
        check(driver.cuMemcpyDtoDAsync(target.pointer, source.pointer, 4, stream.handle))
    elif name == "fill":
        check(driver.cuMemsetD32Async(target.pointer, 0, 1, stream.handle))
    else:
        _subject(name).add_one(stream.to(name), source.pointer, target.pointer)


@functools.cache
def _subject(name):
    return SUBJECTS[name]()


def captured(first, second, cells, *, waits):
    """A graph in which the first writes a cell that the second uses, on another stream."""
    a, x, b = cells(1), cells(2), cells(3)
    ends = (x, b) if second != "fill" else (b, x)
    side = sk.new_stream(nonblocking=True)
    for name, source, target in ((first, a, x), (second, *ends)):
        work(name, side, source, target)  # what a library makes at its first use
    side.sync()
    with sk.capture() as g:
        side.wait(g.stream)
        work(first, g.stream, a, x)
        if waits:
            side.wait(g.stream)
        work(second, side, *ends)
        g.stream.wait(side)
    return g


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WORK, WORK)))
def test_a_missing_wait_between_any_two_is_found(first, second, cells):
    report = captured(first, second, cells, waits=False).races()
    (race,) = report.races
    assert race.certain == ({first, second} <= TOLD)
    assert (race.first.node, race.second.node) == (0, 1)
    assert (race.first.library or first, race.second.library or second) == (first, second)
    assert report.coverage.total == 2
    assert report.coverage.understood == sum(name in TOLD for name in (first, second))


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WORK, WORK)))
def test_with_the_wait_there_is_none(first, second, cells):
    captured(first, second, cells, waits=True).races().assert_none(possible=True)


def test_tensors_have_names_and_slices_are_told_apart():
    torch = need("torch")
    x = torch.zeros(1000, device="cuda")
    y = torch.ones(40, 40, device="cuda", requires_grad=True)
    for wrong in (False, True):
        side = sk.new_stream(nonblocking=True)
        (x[:500] * 2, y.sum())
        with sk.capture() as g:
            side.wait(g.stream)
            x[:500].mul_(2)
            y.detach().mul_(2)
            with sk.use(side):
                x[500 - wrong :].add_(1)
                x.view(10, 100)[5 + wrong :, ::2].copy_(x.view(10, 100)[5 + wrong :, 1::2])
                if wrong:
                    y.detach().t().add_(1)
            g.stream.wait(side)
        races = g.races().races
        if not wrong:
            assert races == ()
            continue
        assert {(race.array.name, race.certain) for race in races} == {
            ("part of x", True), ("y", True)
        }  # fmt: skip


def test_memory_that_its_stream_gives_again_too_early_is_found():
    torch = need("torch")
    found = []
    for keeps in (False, True):
        side = sk.new_stream(nonblocking=True)
        out = torch.zeros(1 << 20, device="cuda")
        with sk.capture() as g:
            a = torch.ones(1 << 20, device="cuda")
            side.wait(g.stream)
            with sk.use(side):
                torch.add(a, 1, out=out)
            if keeps:
                g.keep(a)
            del a
            b = torch.full((1 << 20,), 7.0, device="cuda")  # of the memory that was a's
            g.stream.wait(side)
        found.append(g.races().certain)
        del b
    assert [(race.first.mode, race.second.mode) for race in found[0]] == [("read", "write")]
    assert found[1] == ()


def add_as_a_node(graph, stream):
    """Let a graph be the next node of the one that a stream captures."""
    found = check(driver.cuStreamGetCaptureInfo(stream.handle))
    before = list(found[3] or ())[: int(found[-1])]
    child = driver.CUgraph(graph._owned.executable.graph)
    node = check(driver.cuGraphAddChildGraphNode(found[2], before, len(before), child))
    edges = (None,) if driver.CUDA_VERSION >= 13000 else ()
    check(driver.cuStreamUpdateCaptureDependencies(stream.handle, [node], *edges, 1, 1))


def test_a_graph_inside_of_the_graph_is_a_part_of_it(cells):
    a, x = cells(1), cells(2)
    side = sk.new_stream(nonblocking=True)
    inner = captured("fill", "fill", lambda _: x, waits=False)
    for waits in (False, True):
        with sk.capture() as g:
            side.wait(g.stream)
            add_as_a_node(inner, g.stream)
            if waits:
                side.wait(g.stream)
            work("copy", side, a, x)
            g.stream.wait(side)
        races = g.races().races
        assert {(race.first.node, race.second.node, race.count) for race in races} == (
            {(0, 0, 1)} if waits else {(0, 0, 1), (0, 1, 2)}
        )


def test_a_workload_of_three_libraries_has_no_certain_race(workload):
    with sk.capture() as g:
        workload.run()
    report = g.races()
    assert report.races == ()  # all of it is on one stream
    assert report.coverage.total > report.coverage.understood > 0
