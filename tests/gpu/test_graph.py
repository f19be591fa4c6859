# ruff: noqa: PT012, SIM117 - what a capture does is in its block
"""One graph from torch, CuPy and Warp: whole, right at every launch, and harmless when it fails."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from _players import WITH_CURRENT
from _raw import busy, check, driver, make_stream

import streamkit as sk
from _libraries import need

COUNT = 4096
DOUBLE = """
extern "C" __global__ void twice(float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] *= 2;
}
"""


class Workload:
    """Work of every library on each other's results, with temporaries of each."""

    def __init__(self):
        self.torch, self.cupy, self.warp = need("torch"), need("cupy"), need("warp")
        from _warp_kernel import add_one_to_each

        self.add_one = add_one_to_each
        self.twice = self.cupy.RawKernel(DOUBLE, "twice")
        self.torch.manual_seed(1)
        self.weight = self.torch.randn(64, 64, device="cuda") / 8
        self.x = self.torch.randn(COUNT // 64, 64, device="cuda")
        self.run()
        self.torch.cuda.synchronize()

    def hidden(self):
        return self.torch.relu(self.x @ self.weight) + 0.5  # no zeros but the dropped ones

    def rest(self, dropped):
        """What follows the dropout."""
        cupy, warp, torch = self.cupy, self.warp, self.torch
        c = cupy.from_dlpack(dropped).ravel()
        c = cupy.sin(c) * 2 + cupy.cos(c)
        self.twice((COUNT // 256,), (256,), (c, cupy.int32(COUNT)))
        first = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
        last = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
        warp.launch(self.add_one, dim=COUNT, inputs=[warp.from_dlpack(c), first], device="cuda:0")
        warp.launch(self.add_one, dim=COUNT, inputs=[first, last], device="cuda:0")
        total = cupy.from_dlpack(torch.from_dlpack(last)).sum() + cupy.abs(c).max()
        return torch.from_dlpack(last) * 3 + torch.from_dlpack(total)

    def run(self):
        dropped = self.torch.nn.functional.dropout(self.hidden(), 0.5)
        return dropped, self.rest(dropped)

    def press(self):
        """Allocate and write in eager code: what a graph does not own is overwritten."""
        for size in (COUNT, 3 * COUNT):
            self.torch.full((size,), -1.0, device="cuda")
            self.cupy.full(size, -1.0, "f4")
            self.warp.full(size, -1.0, dtype=self.warp.float32, device="cuda:0")


@pytest.fixture(scope="session")
def workload(primary_context):
    return Workload()


@pytest.fixture(autouse=True)
def all_libraries(players):
    for name in WITH_CURRENT:
        players(name)


@pytest.fixture(autouse=True)
def nothing_left(all_libraries):
    before = {name: stream.handle for name, stream in sk.current_streams().items()}
    assert gc.isenabled()
    yield
    assert {name: stream.handle for name, stream in sk.current_streams().items()} == before
    assert gc.isenabled()


def bits(value):
    return {2: 0x40000000, 3: 0x40400000}[value]


def capturing(handle):
    return int(check(driver.cuStreamIsCapturing(handle)))


def nodes_so_far(handle):
    graph = check(driver.cuStreamGetCaptureInfo(handle))[2]
    return check(driver.cuGraphGetNodes(graph))[1]


# -- the whole of it --------------------------------------------------------------------------


@pytest.mark.parametrize("nonblocking", [True, False])
def test_a_mixed_workload_is_right_a_thousand_times(workload, nonblocking):
    torch, stream = workload.torch, sk.new_stream(nonblocking=nonblocking)
    with sk.capture(stream) as g:
        with g.section("all"):
            dropped, result = workload.run()
    launches = 1000 if nonblocking else 50
    targets = [sk.new_stream() for _ in range(3)]
    masks, wrong = set(), []
    for index in range(launches):
        workload.x.uniform_(-1, 1)
        target = targets[index % 3] if index % 2 else None
        if target is not None:
            target.wait(torch.cuda.current_stream())
        g.launch(target)
        if target is not None:
            sk.wrap(torch.cuda.current_stream()).wait(target)
        workload.press()
        mask = dropped != 0
        expected = torch.where(mask, workload.hidden() * 2, 0)
        same = torch.allclose(dropped, expected, atol=1e-5)
        same &= torch.allclose(result, workload.rest(dropped), rtol=1e-4, atol=1e-4)
        if not same:
            wrong.append(index)
        if index < 50:
            masks.add(mask.cpu().numpy().tobytes())
    assert wrong == []
    assert len(masks) == 50


def test_warp_temporaries_and_reductions_on_a_private_stream(workload):
    """What Warp allocates inside its own calls, and a graph on a private stream."""
    warp, torch = workload.warp, workload.torch
    values = warp.full(COUNT, 1.0, dtype=warp.float32, device="cuda:0")
    sums = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
    with sk.capture() as g:
        copy = warp.clone(values)
        warp.utils.array_scan(copy, sums)
        del copy
        cumulated = workload.cupy.cumsum(workload.cupy.asarray(sums))
    g.keep(values, sums)
    for value in (1.0, 2.0, 3.0):
        values.fill_(value)
        g.launch()
        workload.press()
        assert sums.numpy()[-1] == value * COUNT
        assert float(cumulated[-1]) == pytest.approx(value * COUNT * (COUNT + 1) / 2, rel=1e-4)
    torch.cuda.synchronize()


def test_two_graphs_own_different_memory(workload):
    torch = workload.torch
    x = torch.ones(COUNT, device="cuda")
    with sk.capture() as one:
        y = workload.cupy.from_dlpack(x + 1) * 2
    with sk.capture() as two:
        z = workload.cupy.from_dlpack(x + 3) * 5
    for _ in range(3):
        one.launch()
        two.launch()
        workload.press()
        assert float(y.sum()) == 4 * COUNT
        assert float(z.sum()) == 20 * COUNT


# -- who begins, who records ------------------------------------------------------------------


@contextlib.contextmanager
def begun_by_torch(handle):
    torch = need("torch")
    stream, graph = torch.cuda.get_stream_from_external(handle, 0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        yield stream, graph.replay


@contextlib.contextmanager
def begun_by_cupy(handle):
    cupy = need("cupy")
    stream = cupy.cuda.Stream.from_external(sk.from_handle(handle))
    made = []
    with stream:
        stream.begin_capture()
        yield stream, lambda: made[0].launch(stream)
        made.append(stream.end_capture())


@contextlib.contextmanager
def begun_by_warp(handle):
    warp = need("warp")
    stream = sk.from_handle(handle).to("warp")
    made = []
    warp.capture_begin(stream=stream)
    yield stream, lambda: warp.capture_launch(made[0], stream=stream)
    made.append(warp.capture_end(stream=stream))


@contextlib.contextmanager
def begun_by_core(handle):
    core = need("cuda")
    device = core.Device(0)
    device.set_current()
    builder = device.create_stream(sk.from_handle(handle)).create_graph_builder()
    made = []
    builder.begin_building("thread_local")
    yield builder, lambda: made[0].launch(core.Stream.from_handle(handle))
    made.append(builder.end_building().complete())


@contextlib.contextmanager
def begun_by_streamkit(handle):
    with sk.capture(sk.from_handle(handle)) as g:
        yield g.stream, lambda: g.launch(g.stream)


BEGUN = {
    f.__name__: f
    for f in (begun_by_torch, begun_by_cupy, begun_by_warp, begun_by_core, begun_by_streamkit)
}


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize("recorder", WITH_CURRENT)
def test_three_initiators_and_three_recorders(players, cells, begun, recorder):
    player, handle = players(recorder), make_stream()
    src, dst = cells(1), cells(0)
    check(driver.cuCtxSynchronize())
    with BEGUN[begun](handle) as (native, launch):
        stream = sk.wrap(native)
        assert stream.handle == handle
        assert stream.is_capturing
        with sk.use(stream), sk.use(stream, ordered=True), stream:
            sk.assert_one_queue()
            player.add_one_current(src.pointer, dst.pointer)
        side = sk.new_stream(nonblocking=True)
        side.wait(stream)
        with side:
            assert sk.current_stream(recorder) == side
        stream.wait(side)
        assert nodes_so_far(handle) == 1
        for illegal in (stream.sync, lambda stream=stream: stream.done):
            with pytest.raises(sk.CaptureError):
                illegal()
        assert capturing(handle) == 1
    assert not capturing(handle)
    check(driver.cuCtxSynchronize())
    assert dst.read() == 0
    for value in (1, 5):
        src.write(value)
        check(driver.cuCtxSynchronize())  # the copy is on the legacy stream, the graph is not
        launch()
        check(driver.cuCtxSynchronize())
        assert dst.read() == value + 1
    del native, launch, stream
    gc.collect()


def test_a_fork_into_another_librarys_stream(players, cells):
    torch, cupy = players("torch"), players("cupy")
    a, b, c = cells(1), cells(0), cells(0)
    with sk.capture() as g:
        torch.add_one_current(a.pointer, b.pointer)
        side = sk.wrap(cupy.new_stream())
        side.wait(g.stream)
        cupy.add_one(side.native, b.pointer, c.pointer)
        g.stream.wait(side)
    assert g.nodes == 2
    g.launch()
    check(driver.cuCtxSynchronize())
    assert c.read() == 3


# -- what goes wrong --------------------------------------------------------------------------


def left_elsewhere(workload, g):
    workload.x * 2
    workload.torch.cuda.set_stream(workload.torch.cuda.Stream())


def unjoined(workload, g):
    side = sk.new_stream(nonblocking=True)
    side.wait(g.stream)
    with side:
        workload.torch.ones(4, device="cuda")


FAILURES = {
    "torch sync": (lambda w, g: w.torch.cuda.synchronize(), "AcceleratorError"),
    "torch item": (lambda w, g: w.x[0, 0].item(), "AcceleratorError"),
    "cupy matmul": (lambda w, g: w.cupy.ones((4, 4)) @ w.cupy.ones((4, 4)), "no cuBLAS"),
    "cupy random": (lambda w, g: w.cupy.random.rand(4), "cuRAND"),
    "cupy get": (lambda w, g: w.cupy.ones(4).get(), "D2H transfers are disallowed"),
    "warp sync": (lambda w, g: w.warp.synchronize(), "broke|inside the capture"),
    "query": (lambda w, g: driver.cuStreamQuery(g.stream.handle), "broke"),
    "free": (lambda w, g: w.cupy.cuda.Memory(1 << 20), "broke|inside the capture"),
    "unjoined": (unjoined, "not joined"),
    "left elsewhere": (left_elsewhere, "has left torch on another stream"),
    "its own": (lambda w, g: 1 / 0, None),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_inside_leaves_every_library_usable(workload, players, cells, name):
    workload.cupy.ones((4, 4)) @ workload.cupy.ones((4, 4))  # its handles exist: it then refuses
    fail, words = FAILURES[name]
    with (
        pytest.raises(sk.CaptureError if words else ZeroDivisionError, match=words),
        sk.capture() as g,
    ):
        held = workload.torch.rand(8, device="cuda"), workload.warp.zeros(8, device="cuda:0")
        fail(workload, g)
    del held
    assert not capturing(g.stream.handle)
    assert g.closed
    torch = workload.torch
    assert not torch.equal(torch.rand(8, device="cuda"), torch.rand(8, device="cuda"))
    for player in WITH_CURRENT:
        src, dst = cells(1), cells(0)
        players(player).add_one_current(src.pointer, dst.pointer)
        check(driver.cuCtxSynchronize())
        assert dst.read() == 2
    with sk.capture() as again:
        made = torch.rand(8, device="cuda")
    seen = []
    for _ in range(2):
        again.launch()
        seen.append(made.clone())
    assert not torch.equal(*seen)


def test_legacy_work_beside_a_blocking_capture(workload):
    torch = workload.torch
    default, x = torch.cuda.default_stream(), workload.x
    with pytest.raises(sk.CaptureError, match="blocking one"):
        with sk.capture(sk.new_stream()):
            x * 2
            with torch.cuda.stream(default):
                x * 3
    with sk.capture() as g:
        y = x * 2
        with torch.cuda.stream(default):
            z = x * 3
    g.launch()
    assert torch.equal(y, x * 2)
    assert torch.equal(z, x * 3)


def test_a_section_that_ran_elsewhere_is_found(workload, gate):
    torch = workload.torch
    elsewhere = sk.wrap(torch.cuda.Stream())
    with sk.capture() as g:
        workload.x * 2
        gate.hold(elsewhere.handle)
        with pytest.raises(sk.CaptureError, match=f"pending on .*{elsewhere.handle:#x}"):
            with g.section("lost"):
                check(driver.cuMemsetD32Async(workload.x.data_ptr(), 0, 1, elsewhere.handle))
    assert busy(elsewhere.handle)
    gate.open()
    elsewhere.sync()


def test_one_capture_of_torch_at_a_time(workload):
    errors = []

    def second():
        try:
            with sk.capture():
                pass
        except sk.CaptureError as error:
            errors.append(str(error))

    with sk.capture():
        workload.x * 2
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "one at a time" in errors[0]


def test_older_graphs_die_inside_newer_captures(workload):
    stream = sk.new_stream(nonblocking=True)
    for index in range(5):
        with sk.capture(stream) as g:
            y = workload.cupy.from_dlpack(workload.x + index).sum()
        g.launch()
    assert float(y) == pytest.approx(float((workload.x + 4).sum()), rel=1e-3)


def test_a_graph_whose_end_was_interrupted_lets_go_of_what_it_kept(workload):
    class Kept:
        pass

    kept = Kept()
    gone = weakref.ref(kept)
    with sk.capture() as g:
        workload.x * 2
        g.keep(kept)
    del kept
    g._parts.executable.close()  # an interrupt came here, before the rest was let go of
    g.close()
    gc.collect()
    assert gone() is None


@pytest.mark.alone
def test_a_thousand_abandoned_captures_leak_nothing(workload):
    def free():
        gc.collect()
        workload.torch.cuda.synchronize()
        return check(driver.cuMemGetInfo())[0]

    def abandon():
        with contextlib.suppress(KeyError), sk.capture():
            workload.cupy.from_dlpack(workload.torch.rand(COUNT, device="cuda")) * 2
            workload.warp.zeros(COUNT, dtype=workload.warp.float32, device="cuda:0")
            raise KeyError

    for _ in range(20):
        abandon()
    before = free()
    for _ in range(1000):
        abandon()
    assert before - free() < 4 << 20
