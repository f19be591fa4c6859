"""Graphs that are launched inside captures, which become parts of what is captured."""

from __future__ import annotations

import gc

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import graphs  # the edges are looked at
from support.emulated.captures import (  # noqa: F401 - a fixture
    capturing,
    fill,
    graph_writing_a_two,
    nothing_left,
    settle,
)
from support.gpu.raw import check, driver
from support.queues import eventually

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")


def copy(to, source, handle):
    check(driver.cuMemcpyDtoDAsync(to.pointer, source.pointer, 4, handle))


class OfStreamKit:
    """A capture of StreamKit."""

    def __init__(self, block, stream):
        with sk.capture(stream) as self.graph:
            block(self.graph.stream)

    def launch(self, stream):
        self.graph.launch(stream)

    def end(self):
        self.graph.close()


class OfOthers:
    """A capture that StreamKit has not begun."""

    def __init__(self, block, stream):
        handle = stream.handle
        check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(1)))
        try:
            block(stream)
        finally:
            code, graph = driver.cuStreamEndCapture(handle)
        assert not code
        self.executable = check(driver.cuGraphInstantiate(graph, 0))
        check(driver.cuGraphDestroy(graph))

    def launch(self, stream):
        check(driver.cuGraphLaunch(self.executable, stream.handle))

    def end(self):
        check(driver.cuGraphExecDestroy(self.executable))


OUTER = pytest.mark.parametrize("outer", [OfStreamKit, OfOthers], ids=lambda outer: outer.__name__)


@pytest.fixture
def stream():
    return sk.new_stream(nonblocking=True)


def has_gone(seen):
    """Whether what a graph kept goes by and by, as CUDA tells the end of the outer one late."""

    def gone():
        settle()
        return seen() is None

    return eventually(gone)


@OUTER
def test_the_inner_work_comes_between_what_is_before_and_after(cells, outer, stream):
    first, second, third = cells(0), cells(0), cells(0)
    with sk.capture() as inner:
        copy(second, first, inner.stream.handle)

    def block(target):
        fill(first, 2, target.handle)
        inner.launch(target)
        assert capturing(target.handle) == 1
        copy(third, second, target.handle)

    whole = outer(block, stream)
    assert third.read() == 0
    for _ in range(2):
        whole.launch(stream)
        stream.sync()
        assert third.read() == 2
        fill(third, 1, stream.handle)
        stream.sync()
    whole.end()


def test_without_a_stream_it_joins_the_capture_around_it(cells):
    cell = cells(1)
    inner, _ = graph_writing_a_two(cell)
    with sk.capture() as g:
        inner.launch()
        inner.launch()
    assert g.nodes == 2
    assert cell.read() == 1
    g.launch()
    g.stream.sync()
    assert cell.read() == 2


def test_the_per_thread_stream_is_that_of_the_graphs_device(cells):
    """Its handle means another stream while the context of another device is current."""
    inner, _ = graph_writing_a_two(cells(1))
    s, other = sk.per_thread_stream(), check(driver.cuDevicePrimaryCtxRetain(1))
    check(driver.cuStreamBeginCapture(s.handle, driver.CUstreamCaptureMode(1)))
    check(driver.cuCtxPushCurrent(other))
    try:
        inner.launch(s)
    finally:
        check(driver.cuCtxPopCurrent())
        graph = check(driver.cuStreamEndCapture(s.handle))
        check(driver.cuDevicePrimaryCtxRelease(1))
    assert graphs.count(graph) == 1
    check(driver.cuGraphDestroy(graph))


def test_a_part_of_a_part_runs_too(cells):
    cell = cells(1)
    inner, seen = graph_writing_a_two(cell)
    with sk.capture() as middle:
        inner.launch()
    with sk.capture() as g:
        middle.launch()
    inner.close()
    middle.close()
    settle()
    assert seen() is not None
    g.launch()
    g.stream.sync()
    assert cell.read() == 2
    g.close()
    assert has_gone(seen)


@OUTER
def test_what_a_dropped_inner_graph_uses_lives_as_long_as_the_outer_one(cells, outer, stream):
    cell = cells(1)
    inner, seen = graph_writing_a_two(cell)
    whole = outer(inner.launch, stream)
    del inner
    gc.collect()
    settle()
    assert seen() is not None
    whole.launch(stream)
    stream.sync()
    assert cell.read() == 2
    assert seen() is not None
    whole.end()
    assert has_gone(seen)


@OUTER
def test_it_lives_until_the_last_run_has_ended(cells, outer, stream, gate):
    cell = cells(1)
    inner, seen = graph_writing_a_two(cell)
    whole = outer(inner.launch, stream)
    inner.close()
    gate.hold(stream.handle)
    whole.launch(stream)
    whole.end()
    gc.collect()
    for _ in range(3):
        sk.new_stream(nonblocking=True).sync()
        with sk.capture() as g:  # a look at what was given up
            fill(cell, 3, g.stream.handle)
        g.close()
    assert seen() is not None
    gate.open()
    stream.sync()
    assert cell.read() == 2
    assert has_gone(seen)


def test_one_that_has_run_alone_does_not_wait_for_later_work_of_that_stream(cells, stream, gate):
    cell = cells(1)
    inner, seen = graph_writing_a_two(cell)
    with sk.capture() as g:
        inner.launch()
    inner.launch(stream)
    stream.sync()
    inner.close()
    assert seen() is not None
    gate.hold(stream.handle)
    g.close()
    # the end of another graph is a look at what was given up
    assert eventually(lambda: graph_writing_a_two(cell) and seen() is None)


@OUTER
def test_an_inner_graph_that_is_held_goes_when_it_is_closed(cells, outer, stream):
    inner, seen = graph_writing_a_two(cells(1))
    whole = outer(inner.launch, stream)
    whole.end()
    settle()
    assert seen() is not None
    inner.launch(stream)
    stream.sync()
    inner.close()
    assert has_gone(seen)


def test_the_parts_of_one_graph_follow_each_other(cells, stream):
    inner, _ = graph_writing_a_two(cells(1))
    with sk.capture() as g:
        stream.wait(g.stream)
        inner.launch(stream)
        inner.launch()
        g.stream.wait(stream)
        nodes, edges = graphs.structure(graphs.captured(g.stream.handle).graph)
    assert [node.kind for node in nodes] == ["graph", "graph"]
    assert edges == [(0, 1)]


def test_an_update_has_parts_too(cells):
    cell = cells(1)
    inner, first = graph_writing_a_two(cell)
    other, second = graph_writing_a_two(cell)
    with sk.capture() as g:
        inner.launch()
    with g.update():
        other.launch()
    assert g.updated_in_place
    inner.close()
    other.close()
    assert has_gone(first)
    assert second() is not None
    g.launch()
    g.stream.sync()
    assert cell.read() == 2
    g.close()
    assert has_gone(second)


# -- what cannot be a part --------------------------------------------------------------------


def test_a_graph_that_allocates_is_refused_and_the_capture_stays_whole(cells, stream):
    cell = cells(1)
    with sk.capture() as inner:
        handle = inner.stream.handle
        memory = check(driver.cuMemAllocAsync(64, handle))
        check(driver.cuMemsetD32Async(memory, 1, 4, handle))
        check(driver.cuMemFreeAsync(memory, handle))
    with sk.capture(stream) as g:
        with pytest.raises(sk.CaptureError, match=r"allocates memory .* Launch it outside"):
            inner.launch()
        fill(cell, 2, stream.handle)
    assert g.nodes == 1
    g.launch(stream)
    stream.sync()
    assert cell.read() == 2


def test_a_broken_capture_takes_no_part(cells, stream):
    inner, seen = graph_writing_a_two(cells(1))
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    code, *_ = driver.cuStreamQuery(stream.handle)  # illegal
    assert code
    with pytest.raises(sk.CaptureError, match="broken"):
        inner.launch(stream)
    driver.cuStreamEndCapture(stream.handle)
    inner.close()
    assert has_gone(seen)


@pytest.mark.parametrize(
    "call", ["cuUserObjectCreate", "cuGraphRetainUserObject", "cuGraphAddChildGraphNode"]
)
def test_a_failed_call_leaves_the_capture_and_the_graph_as_they_were(cells, stream, call):
    cell = cells(1)
    inner, seen = graph_writing_a_two(cell)
    with sk.capture(stream) as g:
        emulator.fail(call, 2)
        with pytest.raises(sk.DriverError, match=call):
            inner.launch()
        inner.launch()
    assert g.nodes == 1
    inner.close()
    g.launch(stream)
    stream.sync()
    assert cell.read() == 2
    g.close()
    assert has_gone(seen)


def test_what_the_capture_could_not_keep_is_given_back(cells, stream):
    inner, _ = graph_writing_a_two(cells(1))
    with sk.capture(stream):
        emulator.reset_calls()
        emulator.fail("cuGraphRetainUserObject", 2)
        with pytest.raises(sk.DriverError):
            inner.launch()
        assert emulator.calls("cuUserObjectRelease") == emulator.calls("cuUserObjectCreate") == 1
        inner.launch()
