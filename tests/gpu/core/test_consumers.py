"""Libraries that have no adapter: Triton follows torch's stream, and JAX lends XLA's."""

from __future__ import annotations

import os
import shutil
import sysconfig
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import streamkit as sk
from support.gpu.raw import Gate, busy, check, driver, held, sync


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


# -- JAX, whose callbacks get XLA's stream ------------------------------------------------------

SIZE = 256


@pytest.fixture
def callback(subjects):
    """Let JAX call a function with CuPy's views of the result and of the argument."""
    cupy = subjects("cupy").cupy
    subjects("torch"), subjects("warp")  # the scope moves all that are imported
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its plugins
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of the memory
        jax = pytest.importorskip("jax")
        module = pytest.importorskip("jax.experimental.buffer_callback")
        try:
            x = jax.device_put(jax.numpy.ones(SIZE, "float32"), jax.devices("gpu")[0])
        except RuntimeError as error:
            pytest.skip(f"JAX has no GPU here, or cannot use it: {error}")
    x.block_until_ready()

    def prepare(function):
        def called(context, out, argument):
            function(context, cupy.asarray(out), cupy.asarray(argument))

        call = module.buffer_callback(called, jax.ShapeDtypeStruct.like(x))
        return lambda: call(x)

    return prepare


@pytest.mark.parametrize("inside", [True, False])
def test_work_in_a_callback_of_jax_runs_on_xlas_stream(subjects, cells, peek, callback, inside):
    """A failure shows what each call of the callback has seen."""
    cupy, written = subjects("cupy").cupy, cells(0)
    other, called, gates, calls = subjects("cupy").new_stream(), threading.Event(), [], []

    def add(context, out, argument):
        handle = context.stream
        told = {"stage": str(context.stage), "thread": threading.get_ident(), "handle": handle}
        calls.append(told)
        try:
            for gate in gates:
                gate.hold(handle)
            told["held before"], told["current"] = busy(handle), []
            with sk.use(sk.from_handle(handle)) if inside else other:
                told["current"].append(cupy.cuda.get_current_stream().ptr)
                cupy.add(argument, cupy.float32(1), out=out)
                told["current"].append(cupy.cuda.get_current_stream().ptr)
                cupy.copyto(subjects("cupy").array(written.pointer), out[:1])
            told["held after"] = busy(handle)
        finally:
            called.set()  # an error is XLA's, which raises it where the result is read

    run = callback(add)
    assert set(np.asarray(run()).tolist()) == {2.0}  # compiled and loaded
    check(driver.cuCtxSynchronize())
    written.write(0)
    assert peek(written) == 0
    called.clear()
    gates.append(gate := Gate())  # not before: the compiler may be slow
    result = run()
    assert called.wait(60)
    if not inside:  # the control
        sync(other.ptr)
    state = peek(written), gate.closed
    _, *held_calls = calls
    assert len(held_calls) == 1, calls
    (told,) = held_calls
    where = told["handle"] if inside else other.ptr
    assert told.get("current") == [where, where], calls
    assert (told.get("held before"), told.get("held after")) == (True, True), calls
    assert state == (0 if inside else 2, True), calls
    gate.free()
    assert set(np.asarray(result).tolist()) == {2.0}
