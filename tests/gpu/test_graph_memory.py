"""Whose the memory of a graph is, how long it lives, and what lets go of it."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path

import pytest

import streamkit as sk
from streamkit._queues import registry  # the control takes the pool away
from support.gpu.raw import check, driver
from support.gpu.workload import COUNT, Pressure
from support.programs import run_python

pytestmark = pytest.mark.usefixtures("libraries_as_before")


@pytest.mark.parametrize("owned", [True, False])
def test_memory_that_a_graph_does_not_own_is_given_to_others(workload, monkeypatch, owned):
    """The control arm lets CuPy allocate from its ordinary pool, as it does by itself."""
    stream = sk.new_stream(nonblocking=True)
    with stream:
        workload.run()  # that pool has what it needs on this stream
    check(driver.cuCtxSynchronize())
    with monkeypatch.context() as patch:
        if not owned:
            patch.setattr(registry.adapter("cupy"), "pool", contextlib.nullcontext)
        with sk.capture(stream) as g:
            workload.run()
    pressure = Pressure(workload.makers(), stream)
    for _ in range(3 * Pressure.ROUNDS):
        g.launch()
        pressure.add()
    assert pressure.overwritten() == (set() if owned else {"cupy"})


def test_a_graph_of_cupy_and_warp_alone_is_right_a_thousand_times():
    """In a process without torch the driver begins it."""
    tests = Path(__file__).parents[1]
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
