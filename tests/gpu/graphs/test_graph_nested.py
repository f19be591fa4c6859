"""A graph that is launched inside a capture, whoever captures, is a part of what is captured."""

from __future__ import annotations

import gc
import weakref

import pytest

import streamkit as sk
from streamkit._graphs import disposal  # what waits for its end goes at once
from support.gpu.raw import check, driver
from support.keepalive import Thing
from support.libraries import need
from support.queues import eventually

pytestmark = pytest.mark.usefixtures("libraries_as_before")
COUNT, ROUNDS = 1 << 16, 50


@pytest.fixture
def torch():
    return need("torch")


class OfStreamKit:
    """A capture of StreamKit."""

    def __init__(self, torch, block):
        with sk.capture() as self.graph:
            self.result = block()
        self.launch, self.close = self.graph.launch, self.graph.close


class OfTorch:
    """A capture of torch alone."""

    def __init__(self, torch, block):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = block()
        self.launch, self.close = self.graph.replay, self.graph.reset


OUTER = pytest.mark.parametrize("outer", [OfStreamKit, OfTorch], ids=lambda outer: outer.__name__)


def wait_for_all():
    check(driver.cuCtxSynchronize())


class Inner:
    """A graph with memory of its own: ``result`` is twice ``x`` and 1."""

    def __init__(self, torch):
        self.x = torch.zeros(COUNT, device="cuda")
        self.kept = Thing()
        with sk.capture() as self.graph:
            self.result = self.x * 2 + 1
            self.graph.keep(self.kept, self.x)
        self.graph.launch()  # tells that it draws no random numbers
        wait_for_all()


def with_a_part(torch, outer, source, *, is_launched=True):
    """A graph whose result is twice ``source`` and 11, and the one that is a part of it."""
    inner = Inner(torch)

    def block():
        inner.x.copy_(source)
        if is_launched:
            inner.graph.launch(torch.cuda.current_stream())
        return inner.result + 10

    return outer(torch, block), inner


@OUTER
@pytest.mark.parametrize("is_launched", [True, False], ids=["launched", "control"])
def test_each_run_of_the_outer_graph_runs_the_inner_one(torch, outer, is_launched):
    source = torch.zeros(COUNT, device="cuda")
    whole, inner = with_a_part(torch, outer, source, is_launched=is_launched)
    right = 0
    for value in range(1, ROUNDS + 1):
        source.fill_(value)
        whole.launch()
        wait_for_all()
        right += bool((whole.result == 2.0 * value + 11).all())
    assert right == (ROUNDS if is_launched else 0)
    whole.close()
    inner.graph.close()


@OUTER
def test_an_inner_graph_that_was_dropped_lives_as_long_as_the_outer_one(torch, outer):
    source = torch.zeros(COUNT, device="cuda")
    whole, inner = with_a_part(torch, outer, source)
    kept = weakref.ref(inner.kept)
    del inner
    gc.collect()
    others = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(64)]
    with sk.capture() as another:
        others.append(others[0] - 1)
    another.launch()
    for value in range(1, ROUNDS + 1):
        source.fill_(value)
        whole.launch()
        wait_for_all()
        assert bool((whole.result == 2.0 * value + 11).all())
    assert kept() is not None
    assert all(bool((other < 0).all()) for other in others)
    whole.close()

    def has_gone():
        wait_for_all()
        disposal.sweep()
        return kept() is None

    assert eventually(has_gone)


@OUTER
def test_random_numbers_of_an_inner_graph_are_refused(torch, outer):
    x = torch.zeros(COUNT, device="cuda")
    with sk.capture() as drawing:
        torch.rand_like(x)
    with sk.capture() as unknown:
        x.add_(1)
    drawing.launch()
    wait_for_all()

    def block():
        for graph in (drawing, unknown):
            with pytest.raises(sk.CaptureError, match="random numbers"):
                graph.launch(torch.cuda.current_stream())
        return x + 1

    whole = outer(torch, block)
    whole.launch()
    wait_for_all()
    assert bool((whole.result == 1).all())
    whole.close()


def test_memory_nodes_of_an_inner_graph_are_refused(torch):
    warp = need("warp")
    with sk.capture() as allocating:
        warp.zeros(COUNT, dtype=warp.float32, device="cuda:0")
    allocating.launch()
    x = torch.zeros(COUNT, device="cuda")
    with sk.capture() as g:
        x.add_(1)
        with pytest.raises(sk.CaptureError, match="allocates memory"):
            allocating.launch()
    g.launch()
    wait_for_all()
    assert bool((x == 1).all())


def test_a_graphed_function_is_a_part_of_the_outer_graph(torch):
    calls = []

    @sk.graphed
    def function(x):
        calls.append(1)
        return x * 2 + 1

    x, source = torch.zeros(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
    for _ in range(3):
        function(x)
    wait_for_all()
    count = len(calls)

    def block():
        x.copy_(source)
        return function(x) + 10

    whole = OfStreamKit(torch, block)
    assert len(calls) == count
    function.clear()
    for value in range(1, ROUNDS + 1):
        source.fill_(value)
        whole.launch()
        wait_for_all()
        assert bool((whole.result == 2.0 * value + 11).all())
    whole.close()


def test_one_graph_in_two_branches_of_another_has_no_race(torch):
    x = torch.zeros(COUNT, device="cuda")
    with sk.capture() as inner:
        for _ in range(20):
            x.add_(1)
    inner.launch()
    wait_for_all()
    x.zero_()
    other = sk.new_stream(nonblocking=True)
    with sk.capture() as g:
        other.wait(g.stream)
        inner.launch(other)
        inner.launch()
        g.stream.wait(other)
    assert g.nodes == 2
    for _ in range(ROUNDS):
        g.launch()
    wait_for_all()
    assert bool((x == 40 * ROUNDS).all())
