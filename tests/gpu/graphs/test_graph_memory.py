"""Whose the memory of a graph is, how long it lives, and what lets go of it."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

import streamkit as sk
from streamkit._graphs import disposal  # a failure shows what waits for its end
from streamkit._queues import registry  # the control takes the pool away
from support.gpu.raw import check, driver, make_stream
from support.gpu.workload import COUNT, Pressure
from support.programs import run_python
from support.queues import eventually

pytestmark = pytest.mark.usefixtures("libraries_as_before")


def no_pool(*, captures):
    return contextlib.nullcontext()


@pytest.mark.parametrize("owned", [True, False])
def test_memory_that_a_graph_does_not_own_is_given_to_others(workload, monkeypatch, owned):
    """The control arm lets CuPy allocate from its ordinary pool, as it does by itself."""
    stream = sk.new_stream(nonblocking=True)
    with stream:
        workload.run()  # that pool has what it needs on this stream
    check(driver.cuCtxSynchronize())
    with monkeypatch.context() as patch:
        if not owned:
            patch.setattr(registry.adapter("cupy"), "around_capture", no_pool)
        with sk.capture(stream) as g:
            workload.run()
    pressure = Pressure(workload.makers(), stream)
    for _ in range(3 * Pressure.ROUNDS):
        g.launch()
        pressure.add()
    assert pressure.overwritten() == (set() if owned else {"cupy"})


def test_a_graph_of_cupy_and_warp_alone_is_right_a_thousand_times():
    """In a process without torch the driver begins it."""
    tests = Path(__file__).parents[2]
    done = run_python(tests / "support/gpu/without_torch.py", path=[tests])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1000 launches: [] wrong, [] overwritten"


def test_warp_temporaries_and_reductions_on_a_private_stream(workload):
    """What Warp allocates inside its own calls, and a graph on a private stream."""
    warp = workload.warp
    values = warp.full(COUNT, 1.0, dtype=warp.float32, device="cuda:0")
    sums = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
    with sk.capture() as g:
        copy = warp.clone(values)
        warp.utils.array_scan(copy, sums)
        del copy
        cumulated = workload.cupy.cumsum(workload.cupy.asarray(sums))
    g.keep(values, sums)
    pressure = Pressure(workload.makers(), g.stream)
    for value in range(1, 9):
        values.fill_(float(value))
        g.launch()
        pressure.add()
        assert sums.numpy()[-1] == value * COUNT
        assert float(cumulated[-1]) == pytest.approx(value * COUNT * (COUNT + 1) / 2, rel=1e-4)
    assert pressure.overwritten() == set()


def test_two_graphs_own_different_memory(workload):
    torch = workload.torch
    x = torch.ones(COUNT, device="cuda")
    with sk.capture() as one:
        y = workload.cupy.from_dlpack(x + 1) * 2
    with sk.capture() as two:
        z = workload.cupy.from_dlpack(x + 3) * 5
    pressure = Pressure(workload.makers(), two.stream)
    for _ in range(8):
        one.launch()
        two.launch()
        pressure.add()
        assert float(y.sum()) == 4 * COUNT
        assert float(z.sum()) == 20 * COUNT
    assert pressure.overwritten() == set()


def test_a_graph_whose_end_was_interrupted_lets_go_of_what_it_kept(workload):
    class Kept:
        pass

    kept = Kept()
    gone = weakref.ref(kept)
    with sk.capture() as g:
        workload.x * 2
        g.keep(kept)
    del kept
    g._owned.executable.close()  # an interrupt came here, before the rest was let go of
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


# -- Warp's -------------------------------------------------------------------------------------

MEGABYTES = 1 << 20


def graph_memory():
    """How many megabytes the graphs of the device have in use."""
    gc.collect()
    check(driver.cuCtxSynchronize())
    used = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
    return int(check(driver.cuDeviceGetGraphMemAttribute(0, used))) // MEGABYTES


def with_streamkit(warp):
    """An array that is dropped after its graph; Warp frees one dropped inside as a part of it."""
    with sk.capture() as g:
        array = warp.zeros(16 * MEGABYTES, dtype=warp.float32, device="cuda:0")
    g.launch(g.stream)
    g.stream.sync()
    g.close()
    return array


def with_warp(warp):
    with warp.ScopedStream(warp.Stream("cuda:0")), warp.ScopedCapture() as captured:
        array = warp.zeros(16 * MEGABYTES, dtype=warp.float32, device="cuda:0")
    warp.capture_launch(captured.graph)
    check(driver.cuCtxSynchronize())
    del captured
    return array


@pytest.mark.alone
@pytest.mark.parametrize("round_with", [with_streamkit, with_warp], ids=lambda f: f.__name__)
def test_dropped_graphs_give_warps_memory_back(workload, round_with):
    """With Warp's own capture as the control."""
    found = []
    for _ in range(8):
        round_with(workload.warp)
        time.sleep(0.05)  # the driver tells late that a graph has gone
        found.append(graph_memory())
    assert max(found[2:]) == min(found[2:]), found


@pytest.mark.alone
def test_control_warp_alone_does_not_free_after_a_capture_that_it_joined(workload, monkeypatch):
    from streamkit.backends._warp.capture import WarpPart  # it imports Warp

    monkeypatch.setattr(WarpPart, "free_deferred", lambda _: None)
    found = []
    for _ in range(4):
        with_streamkit(workload.warp)
        time.sleep(0.05)
        found.append(graph_memory())
    assert found[-1] - found[0] == 3 * 64, found
    monkeypatch.undo()
    with_streamkit(workload.warp)  # frees it


def test_an_array_from_before_that_is_dropped_inside_is_freed_after_the_capture(workload):
    warp, torch = workload.warp, workload.torch

    def used():
        check(driver.cuCtxSynchronize())
        return warp.get_mempool_used_mem_current("cuda:0")

    array = warp.zeros(16 * MEGABYTES, dtype=warp.float32, device="cuda:0")
    before = used()
    with sk.capture() as g:
        torch.relu(workload.x)
        del array
    assert before - used() >= 64 * MEGABYTES
    g.close()


@pytest.mark.parametrize("nonblocking", [True, False])
def test_freeing_what_warp_deferred_waits_for_nothing(workload, gate, nonblocking):
    held = make_stream(nonblocking=nonblocking)
    for _ in range(2):
        with_streamkit(workload.warp)
    gate.hold(held)
    with sk.capture() as g:
        workload.warp.zeros(4, device="cuda:0")
    g.close()
    assert gate.closed


# -- CuPy's -------------------------------------------------------------------------------------


def free_memory():
    return int(check(driver.cuMemGetInfo())[0]) // MEGABYTES


def of_cupy(cupy, megabytes=256):
    with sk.capture() as g:
        array = cupy.zeros(megabytes << 18, dtype=cupy.float32)
        array += 1
    g.launch(g.stream)
    g.stream.sync()
    return g, array


def warm_up(cupy):
    array = cupy.zeros(4, dtype=cupy.float32)
    array += 1
    cupy.copyto(array, array + 1)
    array.fill(7)
    check(driver.cuCtxSynchronize())


@pytest.mark.alone
@pytest.mark.parametrize("held", ["nonblocking", "blocking"])
def test_a_graph_of_cupys_is_closed_at_once_and_its_memory_comes_back(workload, gate, held):
    warm_up(workload.cupy)
    g, array = of_cupy(workload.cupy)
    del array
    before = free_memory()
    gate.hold(make_stream(nonblocking=held == "nonblocking"))  # a stream that StreamKit never saw
    g.close()
    assert gate.closed
    if held == "blocking":  # for which the legacy stream waits, and the memory for that
        gate.open()
    # less what CUDA takes for itself meanwhile, for streams and events, in a process that has many
    assert eventually(lambda: sk.new_stream() and free_memory() - before >= 224), (
        free_memory() - before,
        [*disposal.waiting],
    )
    assert gate.closed or held == "blocking"


@pytest.mark.alone
def test_control_cupys_own_free_waits_for_the_device(workload, gate):
    pointer = workload.cupy.cuda.runtime.malloc(1 << 20)
    gate.hold(make_stream())
    threading.Timer(0.5, gate.open).start()
    workload.cupy.cuda.runtime.free(pointer)
    assert not gate.closed


@pytest.mark.alone
def test_memory_of_cupy_is_not_given_to_others_while_a_stream_reads_it(workload, gate):
    """The array is dropped and the graph closed; the copy of it has not run yet."""
    cupy, reader = workload.cupy, sk.new_stream(nonblocking=True)
    warm_up(cupy)
    copy = cupy.zeros(64 << 18, dtype=cupy.float32)
    g, array = of_cupy(cupy, 64)
    check(driver.cuCtxSynchronize())
    gate.hold(reader.handle)
    with sk.use(reader, libraries=["cupy"]):
        cupy.copyto(copy, array)
    del array
    g.close()
    second, other = of_cupy(cupy, 64)  # takes what is free, and writes it
    with sk.use(second.stream, libraries=["cupy"]):
        other.fill(7)
    second.stream.sync()
    assert gate.closed
    gate.open()
    reader.sync()
    assert float(copy.min()) == float(copy.max()) == 1
    second.close()


FAILED = """
import contextlib
import cupy
import streamkit as sk
from support.gpu.raw import Gate, check, driver

outside = sk.new_stream(nonblocking=True)
source, copy = cupy.ones(16 << 20, "f4"), cupy.zeros(16 << 20, "f4")

def work():
    with sk.use(outside, libraries=["cupy"]):
        cupy.add(source + 1, 1, out=copy)  # with a temporary

def fail():
    with contextlib.suppress(KeyError), sk.capture():
        work()
        raise KeyError

work()  # what is made at a first use is illegal in a capture, and can wait for what is held
fail()
check(driver.cuCtxSynchronize())
copy.fill(0)
check(driver.cuCtxSynchronize())
gate = Gate()
gate.hold(outside.handle)
fail()
assert gate.closed, "it has waited"
gate.open()
outside.sync()
print(float(copy.min()), float(copy.max()))
gate.free()
"""


def test_memory_of_a_failed_capture_stays_while_a_stream_outside_uses_it():
    """CuPy allocates from the graph's pool in the whole thread. torch would wait for the device."""
    done = run_python("-c", FAILED, path=[Path(__file__).parents[2]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3.0", "3.0"]


def test_memory_that_runs_out_inside_a_capture_leaves_the_graph_what_it_uses(workload):
    """CuPy then frees what it can, and the graph has the addresses of dropped temporaries."""
    cupy = workload.cupy
    source, result = cupy.ones(COUNT, "f4"), cupy.zeros(COUNT, "f4")
    too_much = 2 * check(driver.cuMemGetInfo())[1]
    cupy.add(source + 1, 1, out=result)
    gc.collect()  # CuPy collects too, in the capture
    with sk.capture() as g:
        cupy.add(source + 1, 1, out=result)  # with a temporary
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(too_much, "u1")
    pressure = Pressure(workload.makers(), g.stream)
    for value in range(8):
        source.fill(value)
        g.launch()
        pressure.add()
        assert float(result.min()) == float(result.max()) == value + 2
    assert pressure.overwritten() == set()


# -- the first capture of a process ---------------------------------------------------------------

FIRST = """
import torch, streamkit as sk
torch.cuda.init()
stream, x = sk.new_stream(nonblocking=True), torch.zeros(8, device="cuda")
other = torch.cuda.Stream()
with torch.cuda.stream(other):
    torch.cuda._sleep(1)
with stream:
    x.add_(1)  # once before
if {early}:
    with sk.capture(stream):
        x.add_(1)
torch.cuda.synchronize()
with torch.cuda.stream(other):
    torch.cuda._sleep(4_000_000_000)  # seconds
with sk.capture(stream) as g:
    x.add_(1)
print(other.query())
"""


@pytest.mark.parametrize("early", [True, False])
def test_a_capture_waits_for_busy_streams_if_it_is_the_first_of_its_process(early):
    """Because torch makes a handle and loads a kernel then; what the documentation advises."""
    done = run_python("-c", FIRST.format(early=early))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(not early)]
