"""torch's random numbers in graphs that run beside each other, and beside eager work.

The same is done with torch alone, whose graphs share the memory of a generator's seed and offset up
to torch 2.11: that control must be wrong.
"""

from __future__ import annotations

import contextlib
import threading

import pytest

import streamkit as sk
from streamkit.backends._torch.random_numbers import ARE_SHARED  # whether torch alone is wrong
from support.gpu import graph_arms
from support.gpu.graph_arms import WithStreamKit
from support.gpu.raw import check, driver, held
from support.libraries import need
from support.queues import together

pytestmark = pytest.mark.usefixtures("libraries_as_before")
COUNT, ROUNDS, LONG = 1 << 16, 200, 4_000_000  # cycles: milliseconds


@pytest.fixture
def torch():
    return need("torch")


def wait_for_all():
    check(driver.cuCtxSynchronize())


class WithTorch(graph_arms.WithTorch):
    is_wrong = ARE_SHARED


ARMS = pytest.mark.parametrize("arm", [WithStreamKit, WithTorch], ids=lambda arm: arm.__name__)


def draw(torch):
    return torch.rand(COUNT, device="cuda")


def long_draw(torch, cycles=LONG):
    """Numbers that come late: other work comes between the launch and them."""
    torch.cuda._sleep(cycles)
    return draw(torch)


def attention(torch):
    """Attention with dropout, whose result tells which numbers it has drawn."""
    ones = torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.float16)
    torch.cuda._sleep(LONG)
    return torch.nn.functional.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5)


def streams(count):
    return [sk.new_stream(nonblocking=True) for _ in range(count)]


def rounds_with_equal_numbers(graphs, of=ROUNDS):
    """In how many rounds of launches side by side two of the graphs have the same result."""
    sides, wrong = streams(len(graphs)), 0
    for _ in range(of):
        for graph, side in zip(graphs, sides, strict=True):
            graph.launch(side)
        wait_for_all()
        found = {graph.result.cpu().numpy().tobytes() for graph in graphs}
        wrong += len(found) < len(graphs)
    return wrong


@ARMS
@pytest.mark.parametrize("count", [2, 3])
def test_graphs_side_by_side_draw_different_numbers(torch, arm, count):
    works = [long_draw] * (count - 1) + [draw]
    each = zip(works, streams(count), strict=True)
    graphs = [arm(torch, lambda work=work: work(torch), s) for work, s in each]
    wrong = rounds_with_equal_numbers(graphs)
    assert wrong > ROUNDS / 2 if arm.is_wrong else wrong == 0


@ARMS
def test_attention_side_by_side_drops_different_numbers(torch, arm):
    one, two = streams(2)
    with one:
        attention(torch)
    graphs = [arm(torch, lambda: attention(torch), s) for s in (one, two)]
    wrong = rounds_with_equal_numbers(graphs, 50)
    assert wrong > 25 if arm.is_wrong else wrong == 0


def test_launches_draw_what_eager_code_draws(torch):
    """With the same seed, in the order of the launches; eager work beside them too."""
    sides = streams(2)
    with sk.capture() as one:
        first = long_draw(torch)
    with sk.capture() as two:
        second = draw(torch)
    for seed in (1, 2, (1 << 64) - 1):
        torch.manual_seed(seed)
        expected = [draw(torch) for _ in range(5)]
        after = torch.cuda.get_rng_state()
        torch.manual_seed(seed)
        one.launch(sides[0])
        two.launch(sides[1])
        eager = draw(torch)
        wait_for_all()
        found = [first.clone(), second.clone(), eager]
        wait_for_all()
        two.launch(sides[0])
        one.launch(sides[1])
        wait_for_all()
        found += [second, first]
        assert [torch.equal(*pair) for pair in zip(found, expected, strict=True)] == 5 * [True]
        assert torch.equal(torch.cuda.get_rng_state(), after)


@ARMS
def test_a_capture_beside_a_launch_leaves_its_numbers(torch, arm, gate):
    s, (side,) = sk.new_stream(nonblocking=True), streams(1)

    def held_draw():
        gate.hold(torch.cuda.current_stream().cuda_stream)
        return draw(torch)

    graph = arm(torch, held_draw, s)
    torch.manual_seed(5)
    draw(torch)
    expected = draw(torch)
    later = sk.new_stream(nonblocking=True)
    torch.manual_seed(5)
    draw(torch)
    graph.launch(side)
    assert held(side.handle)  # so that the numbers which torch writes before the graph are there
    with torch.cuda.stream(later.to("torch")):  # ``arm`` would wait for the launch
        other = torch.cuda.CUDAGraph()
    if arm is WithTorch:
        with torch.cuda.stream(later.to("torch")):
            other.capture_begin(capture_error_mode="thread_local")
            draw(torch)
            other.capture_end()
    else:
        with sk.capture(later):
            draw(torch)
    torch.cuda.current_stream().synchronize()
    later.sync()
    assert gate.closed
    gate.open()
    wait_for_all()
    assert (not torch.equal(graph.result, expected)) is arm.is_wrong


def test_the_first_launch_is_right_while_the_capturing_stream_is_busy(torch, gate):
    """What torch puts on that stream before the capture comes late."""
    s, (side,) = sk.new_stream(nonblocking=True), streams(1)
    torch.manual_seed(6)
    draw(torch)
    expected = draw(torch)
    torch.manual_seed(6)
    draw(torch)
    gate.hold(s.handle)
    with sk.capture(s) as g:
        result = long_draw(torch)
    g.launch(side)
    gate.open()
    wait_for_all()
    assert torch.equal(result, expected)


def test_launches_of_one_graph_on_many_streams_draw_new_numbers(torch):
    s, sides = sk.new_stream(nonblocking=True), streams(3)
    torch.manual_seed(7)
    expected = [draw(torch).sum() for _ in range(30)]
    torch.manual_seed(7)
    found = torch.zeros(30, device="cuda")
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    wait_for_all()
    with sk.capture(s) as g:
        found.index_copy_(0, index, draw(torch).sum().reshape(1))
        index.add_(1)
    for number in range(30):
        g.launch(sides[number % 3])
    wait_for_all()
    assert torch.equal(found, torch.stack(expected))


def test_threads_that_launch_draw_different_numbers(torch):
    graphs, seen = [], []
    for _ in range(4):
        with sk.capture() as g:
            result = draw(torch)
        graphs.append((g, result))
    ready = threading.Barrier(4)

    def launch(number):
        (g, result), side = graphs[number], sk.new_stream(nonblocking=True)
        with sk.use(side, libraries=["torch"]):  # Warp's current stream is the process's
            ready.wait(20)
            for _ in range(50):
                g.launch()
                seen.append(result[:64].cpu().numpy().tobytes())

    together(4, launch)
    assert len(set(seen)) == 4 * 50


@contextlib.contextmanager
def another_threads_capture(torch):
    """Let another thread have a capture open, in which torch has drawn."""
    inside, done = threading.Event(), threading.Event()

    def capture():
        with sk.capture() as other:
            draw(torch)
            inside.set()
            done.wait(20)
        other.close()

    thread = threading.Thread(target=capture)
    thread.start()
    assert inside.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_launch_beside_another_threads_capture_moves_the_generator_on(torch):
    s, (side,) = sk.new_stream(nonblocking=True), streams(1)
    with sk.capture(s) as g:
        result = draw(torch)
    g.launch(side)
    torch.manual_seed(8)
    expected = [draw(torch) for _ in range(2)]
    torch.manual_seed(8)
    with another_threads_capture(torch):
        g.launch(side)
    wait_for_all()
    assert torch.equal(result, expected[0])
    assert torch.equal(draw(torch), expected[1])


def test_a_seed_that_another_thread_sets_beside_a_capture_counts(torch):
    torch.manual_seed(9)
    expected = draw(torch)
    torch.manual_seed(10)
    with another_threads_capture(torch):
        torch.cuda.manual_seed(9)
    assert torch.equal(draw(torch), expected)


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_after_a_capture_the_generator_is_as_before(torch, ends):
    torch.manual_seed(11)
    draw(torch)
    before, expected = torch.cuda.get_rng_state(), draw(torch)
    torch.cuda.set_rng_state(before)
    with contextlib.suppress(KeyError), sk.capture() as g:
        draw(torch)
        if ends == "badly":
            raise KeyError
    g.close()
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(draw(torch), expected)


def test_a_graph_without_random_numbers_is_launched_by_the_driver(torch, monkeypatch):
    """Nothing of torch is called from the second launch on."""
    (s,) = streams(1)
    x, y = (torch.zeros(8, device="cuda") for _ in range(2))
    wait_for_all()
    with sk.capture() as plain:
        x.add_(1)
    with sk.capture() as drawing:
        y.copy_(torch.rand(8, device="cuda"))
    for g in (plain, drawing):
        g.launch(s)
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(graph), replay(graph))
    )
    seen = []
    for _ in range(3):
        for g in (plain, drawing):
            g.launch(s)
        s.sync()
        seen.append(y.cpu().numpy().tobytes())
    assert len(replays) == (3 if ARE_SHARED else 6)
    assert x.tolist() == 8 * [4]
    assert len(set(seen)) == 3
