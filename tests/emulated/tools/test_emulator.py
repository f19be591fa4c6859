"""The emulated driver itself: its modes, its faults, its counters, and whom it refuses."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import emulator
from emulator import build
from support.emulated.processes import run, start
from support.gpu.raw import Gate, check, destroy_stream, driver, make_stream, stream_id

INVALID_VALUE = driver.CUresult.CUDA_ERROR_INVALID_VALUE
INVALID_HANDLE = driver.CUresult.CUDA_ERROR_INVALID_HANDLE


def test_two_devices_and_the_version_that_is_asked_for():
    program = """
        from cuda.bindings import driver
        print(int(driver.cuInit(0)[0]))
        print(driver.cuDeviceGetCount()[1], driver.cuDriverGetVersion()[1])
    """
    assert run(program) == ["0", "2", "13000"]
    changed = run(program, EMULATED_DEVICES="5", EMULATED_VERSION="12040")
    assert changed == ["0", "5", "12040"]


def test_no_device():
    program = "from cuda.bindings import driver; print(int(driver.cuInit(0)[0]))"
    assert run(program, EMULATED_DEVICES="0") == ["100"]


def test_an_old_driver_lacks_what_came_later():
    program = """
        from cuda.bindings import driver
        driver.cuInit(0)
        try:
            driver.cuStreamGetDevice(1)
        except RuntimeError as error:
            print(type(error).__name__)
    """
    assert run(program, EMULATED_VERSION="12040")[0].endswith("Error")
    assert run(program) == []


def test_the_n_th_call_fails_and_does_nothing():
    streams = emulator.live("streams")
    emulator.fail("cuStreamCreate", INVALID_VALUE, nth=2)
    first = check(driver.cuStreamCreate(0))
    assert driver.cuStreamCreate(0)[0] == INVALID_VALUE
    assert emulator.live("streams") == streams + 1
    second = check(driver.cuStreamCreate(0))
    destroy_stream(first)
    destroy_stream(second)


def test_a_fault_from_the_environment():
    program = "from cuda.bindings import driver; print(*[int(driver.cuInit(0)[0]) for _ in '123'])"
    assert run(program, EMULATED_FAIL="cuInit:2:999") == ["0", "999", "0"]


def test_a_fault_that_never_comes_is_counted():
    emulator.fail("cuMemAlloc", INVALID_VALUE)
    assert emulator.clear_faults() == 1
    assert emulator.clear_faults() == 0


def test_calls_are_counted_under_their_public_name():
    emulator.reset_calls()
    destroy_stream(make_stream())
    assert emulator.all_calls() == {"cuStreamCreateWithPriority": 1, "cuStreamDestroy": 1}
    assert emulator.calls("cuStreamDestroy") == 1
    assert emulator.calls("cuEventCreate") == 0


def test_a_child_may_ask_whatever_the_other_threads_of_its_parent_did():
    program = """
        import os, signal, threading
        import emulator

        asked = emulator._library()
        is_over = threading.Event()

        def ask():
            while not is_over.is_set():
                asked.emulated_all_calls()

        thread = threading.Thread(target=ask)
        thread.start()
        hung = 0
        for _ in range(100):
            child = os.fork()
            if not child:
                signal.alarm(20)
                asked.emulated_reset_calls()
                os._exit(0)
            hung = os.waitpid(child, 0)[1]
            if hung:
                break
        is_over.set()
        thread.join()
        print(hung)
    """
    assert run(program, PYTHONPATH=str(Path(__file__).parents[2])) == ["0"]


def test_what_lives_is_counted():
    kinds = ("streams", "events", "contexts", "graphs", "nodes", "executables")
    before = {kind: emulator.live(kind) for kind in kinds}
    raw, event = make_stream(), check(driver.cuEventCreate(2))
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    check(driver.cuEventRecordWithFlags(event, raw, 1))
    graph = check(driver.cuStreamEndCapture(raw))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    grown = {kind: emulator.live(kind) - before[kind] for kind in kinds}
    expected = {"streams": 1, "events": 1, "graphs": 1, "nodes": 1, "executables": 1}
    assert grown == {**expected, "contexts": 0}
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))
    check(driver.cuEventDestroy(event))
    destroy_stream(raw)
    assert {kind: emulator.live(kind) for kind in kinds} == before
    with pytest.raises(ValueError, match="unicorns"):
        emulator.live("unicorns")


def test_destroying_the_stream_that_began_a_capture_ends_it():
    graphs, nodes = emulator.live("graphs"), emulator.live("nodes")
    raw, side, event = make_stream(), make_stream(), check(driver.cuEventCreate(2))
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    check(driver.cuEventRecord(event, raw))
    check(driver.cuStreamWaitEvent(side, event, 0))
    check(driver.cuEventRecordWithFlags(event, side, 1))
    destroy_stream(raw)
    assert int(check(driver.cuStreamIsCapturing(side))) == 0
    check(driver.cuStreamSynchronize(side))
    assert (emulator.live("graphs"), emulator.live("nodes")) == (graphs, nodes)
    check(driver.cuEventDestroy(event))
    destroy_stream(side)


def test_recycled_handles_have_new_ids():
    emulator.recycle(True)
    try:
        first = make_stream()
        number = stream_id(first)
        destroy_stream(first)
        second = make_stream()
        assert second == first
        assert stream_id(second) != number
        destroy_stream(second)
    finally:
        emulator.recycle(False)


DEAD = {
    "stream": ("cuStreamQuery", "made = do(cu.cuStreamCreate, 1); do(cu.cuStreamDestroy, made)"),
    "event": ("cuEventQuery", "made = do(cu.cuEventCreate, 2); do(cu.cuEventDestroy, made)"),
    "context": ("cuCtxSetCurrent", "made = do(cu.cuCtxCreate, *new); do(cu.cuCtxDestroy, made)"),
    "event of a dead context": (
        "cuEventQuery",
        "c = do(cu.cuCtxCreate, *new); made = do(cu.cuEventCreate, 2); do(cu.cuCtxDestroy, c)",
    ),
}


@pytest.mark.parametrize("recycled", ["0", "1"])
@pytest.mark.parametrize("kind", DEAD)
def test_the_use_of_what_is_dead_ends_the_process_and_names_the_call(kind, recycled):
    call, ends_it = DEAD[kind]
    program = f"""
from cuda.bindings import driver as cu

def do(call, *arguments):
    code, *found = call(*arguments)
    assert not code, code
    return found[0] if found else None

do(cu.cuInit, 0)
do(cu.cuCtxSetCurrent, do(cu.cuDevicePrimaryCtxRetain, 0))
new = (None, 0, 0) if cu.CUDA_VERSION >= 13000 else (0, 0)
{ends_it}
print(cu.{call}(0xdead00)[0].name.rpartition("_")[0], flush=True)  # never given, so refused
cu.{call}(made)
print("it went on", flush=True)
"""
    done = start(program, EMULATED_RECYCLE=recycled)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "CUDA_ERROR_INVALID\n")
    assert f"emulated driver: {call} was given a dead {kind.split()[0]}, 0x" in done.stderr
    allowed = start(program, EMULATED_RECYCLE=recycled, EMULATED_REFUSE_DEAD="1")
    assert allowed.stdout.endswith("it went on\n")


def test_it_refuses_to_work_beside_another_driver(tmp_path):
    source = tmp_path / "other.c"
    source.write_text("int cuInit(unsigned flags) { return flags; }\n")
    other = tmp_path / "libcuda.so.2"
    subprocess.run([build.compiler(), "-shared", "-o", other, source], check=True)
    ours = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(build.SONAME)
    )
    program = f"""
        import ctypes
        ctypes.CDLL({str(other)!r})
        print(ctypes.CDLL({ours!r}).cuInit(0))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "803\n"  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    assert "refuses to work beside" in done.stderr
    assert "libcuda.so.2" in done.stderr


def test_what_is_unordered_comes_in_more_than_one_order():
    streams = [make_stream() for _ in range(6)]
    order, functions = [], []
    for _ in range(20):
        order.append([])
        gate = Gate()
        for raw in streams:
            gate.hold(raw)  # so that all of them are there when the first one runs
            function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
                lambda _, raw=raw: order[-1].append(raw)
            )
            functions.append(function)
            address = ctypes.cast(function, ctypes.c_void_p).value
            check(driver.cuLaunchHostFunc(raw, driver.CUhostFn(address), 0))
        gate.open()
        check(driver.cuCtxSynchronize())
        gate.free()
    assert all(sorted(round_) == sorted(streams) for round_ in order)
    assert len({tuple(round_) for round_ in order}) > 1
    for raw in streams:
        destroy_stream(raw)


def test_captures_left_open_can_be_ended():
    stream, graphs = make_stream(), emulator.live("graphs")
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(0)))
    assert (
        driver.cuStreamSynchronize(stream)[0]
        == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    )
    assert emulator.end_captures() == 1
    check(driver.cuStreamSynchronize(stream))
    assert emulator.live("graphs") == graphs
    destroy_stream(stream)
