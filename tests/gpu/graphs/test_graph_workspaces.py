"""The scratch memory of cuBLAS in graphs that run beside each other, and beside eager work.

The same is done with torch alone, whose graphs share it with all that their stream was given: that
control must be wrong. Products of long rows write much scratch memory: two at once disturb another.
"""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest

import streamkit as sk
from streamkit.backends._torch import workspaces  # whether this torch's are known
from support.gpu.graph_arms import WithStreamKit, WithTorch
from support.gpu.raw import check, driver
from support.libraries import need

pytestmark = pytest.mark.usefixtures("libraries_as_before")
ROUNDS, LENGTH, MEGABYTES = 200, 1 << 20, 1 << 20


@pytest.fixture
def torch():
    torch = need("torch")
    if not workspaces._maps():
        pytest.skip("this torch's workspaces are not laid out as known")
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublas")
    yield torch
    torch.backends.cuda.preferred_blas_library(before)


class Product:
    """A product of matrices, and its right result."""

    def __init__(self, torch):
        self.x = torch.randn(32, LENGTH, device="cuda")
        self.y = torch.randn(LENGTH, 32, device="cuda")
        self.right = self.x @ self.y
        self.torch = torch

    def __call__(self):
        return self.x @ self.y

    def is_right(self, result):
        return self.torch.allclose(result, self.right, rtol=1e-3, atol=1e-1)


ARMS = pytest.mark.parametrize("arm", [WithStreamKit, WithTorch], ids=lambda arm: arm.__name__)


def streams(count):
    return [sk.new_stream(nonblocking=True) for _ in range(count)]


def wait_for_all():
    check(driver.cuCtxSynchronize())


@ARMS
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("warm", [True, False])
def test_graphs_of_one_stream_are_right_side_by_side(torch, arm, count, warm):
    (s,), sides, wrong = streams(1), streams(count), 0
    products = [Product(torch) for _ in range(count)]
    if warm:
        with s:
            products[0]()
    wait_for_all()
    graphs = [arm(torch, product, s) for product in products]
    for _ in range(ROUNDS):
        for graph, side in zip(graphs, sides, strict=True):
            graph.launch(side)
        wait_for_all()
        wrong += not all(graph.work.is_right(graph.result) for graph in graphs)
    assert wrong > ROUNDS // 2 if arm.is_wrong else wrong == 0


@ARMS
def test_eager_work_beside_a_launch_is_right(torch, arm):
    (s, side), wrong = streams(2), 0
    one, two = Product(torch), Product(torch)
    with s:
        one()
    wait_for_all()
    graph = arm(torch, one, s)
    for _ in range(ROUNDS):
        graph.launch(side)
        with s:
            eager = two()
        wait_for_all()
        wrong += not (one.is_right(graph.result) and two.is_right(eager))
    assert wrong > ROUNDS // 2 if arm.is_wrong else wrong == 0


def test_work_forked_inside_has_scratch_memory_of_the_graph(torch):
    s, fork, side = streams(3)
    one, two = Product(torch), Product(torch)
    with fork:
        one()
    wait_for_all()
    with sk.capture(s) as g:
        fork.wait(s)
        with fork:
            result = one()
        s.wait(fork)
    wrong = 0
    for _ in range(ROUNDS):
        g.launch(side)
        with fork:
            eager = two()
        wait_for_all()
        wrong += not (one.is_right(result) and two.is_right(eager))
    assert wrong == 0


def test_a_backward_pass_has_scratch_memory_of_the_graph(torch):
    """Its products come from another thread, with a handle of cuBLAS of its own."""
    s, one, two = streams(3)
    x = [torch.randn(32, LENGTH, device="cuda") for _ in range(2)]
    y = torch.randn(LENGTH, 32, device="cuda")

    def gradient(x):
        weight = torch.ones(32, 32, device="cuda", requires_grad=True)
        ((weight @ x) @ y).sum().backward()
        return weight.grad

    with s:
        right = [gradient(values) for values in x]
    wait_for_all()
    graphs, results, wrong = [], [], 0
    for values in x:
        with sk.capture(s) as g:
            results.append(gradient(values))
        graphs.append(g)
    for _ in range(50):
        for graph, side in zip(graphs, (one, two), strict=True):
            graph.launch(side)
        wait_for_all()
        pairs = zip(results, right, strict=True)
        wrong += not all(torch.allclose(*pair, rtol=1e-2, atol=1.0) for pair in pairs)
    assert wrong == 0


def used(torch):
    gc.collect()
    sk.new_stream()  # ends what waits for that
    return torch.cuda.memory_allocated() // MEGABYTES


@pytest.mark.parametrize("private", [True, False])
def test_a_graphs_scratch_memory_goes_with_it(torch, private):
    product, s = Product(torch), sk.new_stream(nonblocking=True)
    for stream in (torch.cuda.current_stream(), s):
        with sk.use(stream):
            product()
    with sk.capture(None if private else s) as g:
        product()
    g.close()
    wait_for_all()
    del g
    before = used(torch)
    graphs = []
    for _ in range(4):
        with sk.capture(None if private else s) as g:
            product()
        graphs.append(g)
    assert used(torch) - before >= 4 * 8
    for g in graphs:
        g.close()
    del g, graphs
    assert used(torch) == before


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_what_the_programs_own_graphs_use_stays(torch, ends):
    """The workspace of the stream is theirs before a capture there, and after it."""
    s, side = streams(2)
    one, two = Product(torch), Product(torch)
    with s:
        one()
    wait_for_all()
    own = WithTorch(torch, one, s)
    allocated = torch.cuda.memory_allocated()
    with contextlib.suppress(KeyError), sk.capture(s) as g:
        two()
        if ends == "badly":
            raise KeyError
    g.close()
    gc.collect()
    sk.new_stream()
    with s:
        assert one.is_right(one())
    assert torch.cuda.memory_allocated() <= allocated + 2 * MEGABYTES
    pressure = [torch.full((8 * MEGABYTES,), -1.0, device="cuda") for _ in range(8)]
    wait_for_all()
    own.launch(side)
    wait_for_all()
    assert one.is_right(own.result)
    assert all(float(block.min()) == float(block.max()) == -1 for block in pressure)


def test_a_capture_leaves_another_threads_workspaces(torch):
    """Eager work in a thread whose handle the capture does not hide."""
    product, results, failed = Product(torch), [], []
    wait_for_all()  # the thread's stream does not wait for what made it
    end = threading.Event()

    def work():
        try:
            stream = sk.new_stream(nonblocking=True)
            with sk.use(stream, libraries=["torch"]):  # Warp's current stream is the process's
                while not end.is_set():
                    result = product()
                    stream.sync()
                    results.append(product.is_right(result))
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        with sk.capture() as g:
            product()
        g.close()
    end.set()
    thread.join()
    assert failed == []
    assert results
    assert all(results)
