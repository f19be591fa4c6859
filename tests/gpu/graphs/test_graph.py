# ruff: noqa: SIM117 - what a capture does is in its block
"""One graph from torch, CuPy and Warp: right at every launch, on any stream, whoever begins it."""

from __future__ import annotations

import contextlib
import ctypes
import gc

import pytest

import streamkit as sk
from streamkit.diagnostics.pictures.styles import STYLES  # the colours that pictures share
from support.gpu.library_subjects import WITH_CURRENT
from support.gpu.raw import Gate, check, destroy_stream, driver, held, make_stream, sync
from support.gpu.workload import Pressure
from support.libraries import need

pytestmark = pytest.mark.usefixtures("libraries_as_before")


def bits(value):
    return {2: 0x40000000, 3: 0x40400000}[value]


def capturing(handle):
    return int(check(driver.cuStreamIsCapturing(handle)))


def nodes_so_far(handle):
    graph = check(driver.cuStreamGetCaptureInfo(handle))[2]
    return check(driver.cuGraphGetNodes(graph))[1]


# -- the whole of it --------------------------------------------------------------------------


def is_right(workload, dropped, result):
    """Whether a run's results are those of eager code, but for which numbers dropout dropped."""
    torch = workload.torch
    expected = torch.where(dropped != 0, workload.hidden() * 2, 0)
    same = torch.allclose(dropped, expected, atol=1e-5)
    return same and torch.allclose(result, workload.rest(dropped), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nonblocking", [True, False])
def test_a_mixed_workload_is_right_a_thousand_times(workload, nonblocking):
    torch, stream = workload.torch, sk.new_stream(nonblocking=nonblocking)
    with sk.capture(stream) as g:
        with g.section("all"):
            dropped, result = workload.run()
    launches = 1000 if nonblocking else 50
    targets = [sk.new_stream() for _ in range(3)]
    pressure = Pressure(workload.makers(), stream)
    masks, wrong = set(), []
    for index in range(launches):
        workload.x.uniform_(-1, 1)
        target = targets[index % 3] if index % 2 else None
        if target is not None:
            target.wait(torch.cuda.current_stream())
        g.launch(target)
        if target is not None:
            sk.wrap(torch.cuda.current_stream()).wait(target)
        pressure.add()
        if not is_right(workload, dropped, result):
            wrong.append(index)
        masks.add((dropped != 0).cpu().numpy().tobytes())
    assert wrong == []
    assert pressure.overwritten() == set()
    assert len(masks) == launches


@pytest.mark.parametrize("mode", ["global", "relaxed"])
def test_the_other_modes_capture_the_same(workload, mode):
    with sk.capture(mode=mode) as g:
        dropped, result = workload.run()
    pressure = Pressure(workload.makers(), g.stream)
    for _ in range(10):
        workload.x.uniform_(-1, 1)
        g.launch()
        pressure.add()
        assert is_right(workload, dropped, result)
    assert pressure.overwritten() == set()


# -- where it runs ----------------------------------------------------------------------------

TARGETS = {
    "torch": lambda subjects: subjects("torch").new_stream(),
    "CuPy": lambda subjects: subjects("cupy").new_stream(),
    "Warp": lambda subjects: subjects("warp").new_stream(),
    "cuda.core": lambda subjects: subjects("cuda.core").new_stream(),
    "legacy": lambda subjects: sk.default_stream(),
    "blocking": lambda subjects: sk.new_stream(),
    "nonblocking": lambda subjects: sk.new_stream(nonblocking=True),
}


def through_all(subjects, cells):
    """Cells, of which each but the first is one more after the work of one library."""
    chain = [cells(1), cells(0), cells(0), cells(0)]

    def work():
        for name, src, dst in zip(WITH_CURRENT, chain, chain[1:], strict=False):
            subjects(name).add_one_current(src.pointer, dst.pointer)

    return chain, work


@pytest.mark.parametrize("kind", TARGETS)
def test_a_graph_runs_on_streams_of_every_library(subjects, cells, gate, kind):
    native = TARGETS[kind](subjects)
    target, aside = sk.wrap(native), make_stream()
    chain, work = through_all(subjects, cells)
    with sk.capture() as g:
        work()
    g.launch()  # the first one brings it to the device, which could wait for what is held
    check(driver.cuCtxSynchronize())
    for cell in chain[1:]:
        cell.write(0)
    found = ctypes.c_float(-1)
    gate.hold(target.handle)
    g.launch(native)
    assert held(target.handle)
    check(driver.cuMemcpyDtoHAsync(ctypes.addressof(found), chain[-1].pointer, 4, aside))
    sync(aside)
    assert found.value == 0
    gate.open()
    sync(target.handle)
    assert [cell.read() for cell in chain] == [1, 2, 3, 4]
    destroy_stream(aside)


def test_a_graph_of_torchs_does_not_run_on_the_per_thread_stream(subjects, cells):
    chain, work = through_all(subjects, cells)
    with sk.capture() as g:
        work()
    with pytest.raises(sk.errors.UnsupportedStreamError, match="per-thread default stream"):
        g.launch(sk.default_stream(per_thread=True))
    g.launch()
    check(driver.cuCtxSynchronize())
    assert chain[-1].read() == 4


# -- external records and waits -----------------------------------------------------------------


def test_each_launch_makes_an_external_record(subjects, cells):
    """Others wait for a point of the graph that a launch is still held before."""
    chain, work = through_all(subjects, cells)
    copy, event, other = cells(0), sk.new_event(), make_stream()
    with sk.capture() as g:
        work()
        g.stream.record(event, external=True)
    g.launch()
    check(driver.cuCtxSynchronize())
    for value in (5, 7):
        chain[0].write(value)
        check(driver.cuCtxSynchronize())
        gate = Gate()
        gate.hold(g.stream.handle)
        g.launch(g.stream)
        check(driver.cuStreamWaitEvent(other, event.handle, 0))
        check(driver.cuMemcpyDtoDAsync(copy.pointer, chain[-1].pointer, 4, other))
        assert held(other)
        gate.open()
        sync(other)
        assert copy.read() == value + 3
        gate.free()
    destroy_stream(other)


def test_each_launch_waits_for_the_last_record_outside(subjects, cells):
    chain, work = through_all(subjects, cells)
    event, other = sk.new_event(), make_stream()
    check(driver.cuEventRecord(event.handle, other))
    with sk.capture() as g:
        g.stream.wait(event, external=True)
        work()
    g.launch()
    check(driver.cuCtxSynchronize())
    for value in (2, 3):
        gate = Gate()
        gate.hold(other)
        check(driver.cuMemsetD32Async(chain[0].pointer, bits(value), 1, other))
        check(driver.cuEventRecord(event.handle, other))
        g.launch(g.stream)
        assert held(g.stream.handle)
        gate.open()
        sync(g.stream.handle)
        assert chain[-1].read() == value + 3
        gate.free()
    destroy_stream(other)


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
def test_three_initiators_and_three_recorders(subjects, cells, begun, recorder):
    subject, handle = subjects(recorder), make_stream()
    src, dst, copy = cells(1), cells(0), cells(0)
    check(driver.cuCtxSynchronize())
    with BEGUN[begun](handle) as (native, launch):
        stream = sk.wrap(native)
        assert stream.handle == handle
        assert stream.is_capturing
        with sk.use(stream), sk.use(stream, ordered=True), stream:
            sk.assert_one_queue()
            subject.add_one_current(src.pointer, dst.pointer)
        side = sk.new_stream(nonblocking=True)
        side.wait(stream)
        with side:
            assert sk.current_stream(recorder) == side
        stream.wait(side)
        assert nodes_so_far(handle) == 1
        side.wait(stream.record())
        check(driver.cuMemcpyDtoDAsync(copy.pointer, dst.pointer, 4, side.handle))
        stream.wait(side.record())
        assert nodes_so_far(handle) == 2
        for illegal in (stream.sync, lambda stream=stream: stream.done):
            with pytest.raises(sk.errors.CaptureError):
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
        assert (dst.read(), copy.read()) == (value + 1, value + 1)
    del native, launch, stream
    gc.collect()


def two_more(subject, src, dst):
    """Write ``src + 2`` through an array of the library's own."""
    if subject.name == "warp":
        between = subject.warp.empty(1, dtype=subject.warp.float32, device=subject.device)
        subject.warp.launch(subject.kernel, dim=1, inputs=[subject.array(src), between])
        subject.warp.launch(subject.kernel, dim=1, inputs=[between, subject.array(dst)])
        return
    between = subject.array(src) + 1
    library = subject.torch if subject.name == "torch" else subject.cupy
    library.add(between, 1, out=subject.array(dst))


# in a capture that somebody else began, torch and Warp would not keep the memory for it
ALLOCATES = [
    ("begun_by_torch", "torch"),
    ("begun_by_torch", "cupy"),
    ("begun_by_cupy", "cupy"),
    ("begun_by_warp", "warp"),
    ("begun_by_warp", "cupy"),
    ("begun_by_core", "cupy"),
    *(("begun_by_streamkit", name) for name in WITH_CURRENT),
]


@pytest.mark.parametrize(("begun", "recorder"), ALLOCATES)
def test_a_recorder_allocates_in_a_scope_inside(subjects, cells, begun, recorder):
    subject, handle = subjects(recorder), make_stream()
    src, dst = cells(1), cells(0)
    with sk.from_handle(handle):  # the library's pool for this stream has what it will need
        two_more(subject, src.pointer, dst.pointer)
    check(driver.cuCtxSynchronize())
    dst.write(0)
    with BEGUN[begun](handle) as (native, launch):
        with sk.wrap(native):
            two_more(subject, src.pointer, dst.pointer)
        assert capturing(handle) == 1
    check(driver.cuCtxSynchronize())
    assert dst.read() == 0
    for value in (1, 5):
        src.write(value)
        check(driver.cuCtxSynchronize())
        launch()
        check(driver.cuCtxSynchronize())
        assert dst.read() == value + 2
    del native, launch
    gc.collect()


def test_a_fork_into_another_librarys_stream(subjects, cells):
    torch, cupy = subjects("torch"), subjects("cupy")
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


def test_the_picture_of_a_graph_has_each_librarys_kernels_in_its_colour():
    torch, cupy = need("torch", "cupy")
    s = sk.new_stream(nonblocking=True)

    def work():
        x = torch.sin(torch.ones(64, device=s.device))
        return cupy.from_dlpack(x) * 2

    s.submit(work)
    with sk.capture(s) as graph:
        graph.keep(work())
    picture = graph.to_svg()
    for library, name in (("torch", "sin"), ("cupy", "multiply")):
        style = STYLES[library]
        assert f'style="fill: {style.colour}"' in picture
        assert f">{name}</text>" in picture
        assert f">{style.label}, node " in picture
    assert graph._repr_svg_() == picture
    graph.close()
