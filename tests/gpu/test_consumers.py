"""Libraries that have no adapter and follow torch's current stream."""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from pathlib import Path

import pytest

import streamkit as sk
from support.gpu.raw import check, driver, held, sync


@pytest.fixture(scope="module")
def triton_kernel():
    pytest.importorskip("triton")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("Triton needs a C compiler when it runs, and there is none")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("Triton needs Python's headers when it runs, and there are none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own modules
        from support.gpu.triton_kernel import add_one
    return add_one


@pytest.fixture
def launch(subjects, cells, triton_kernel):
    """Have Triton launch ``dst = src + 1`` wherever it does; compiled and loaded before."""
    torch = subjects("torch")
    for name in ("cupy", "warp"):  # the scope moves all that are imported
        subjects(name)

    def run(src, dst):
        triton_kernel[(1,)](torch.array(src.pointer), torch.array(dst.pointer))

    src, dst = cells(6), cells(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its compiler
        run(src, dst)
    check(driver.cuCtxSynchronize())
    assert dst.read() == 7
    return run


def test_a_triton_kernel_in_the_scope_runs_on_its_queue(gate, cells, launch, peek):
    stream = sk.new_stream(nonblocking=True)  # which work on the legacy stream does not wait for
    src, dst = cells(1), cells(0)
    with sk.use(stream):
        gate.hold(stream.handle)
        launch(src, dst)
    assert held(stream.handle)
    assert (peek(dst), gate.closed) == (0, True)
    gate.open()
    sync(stream.handle)
    assert peek(dst) == 2


def test_control_outside_the_scope_triton_does_not_wait(subjects, gate, cells, launch, peek):
    stream, torch = sk.new_stream(nonblocking=True), subjects("torch")
    src, dst = cells(1), cells(0)
    with sk.use(stream):
        gate.hold(stream.handle)
    launch(src, dst)
    sync(torch.handle_of(torch.current()))
    assert (peek(dst), gate.closed) == (2, True)
