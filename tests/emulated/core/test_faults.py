"""Each driver call of each operation fails in turn, with each code that it can fail with."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamkit as sk
from streamkit._queues import waits  # the watchdog's calls would be counted
from streamkit.types import CudaStream
from support.emulated.faults import ACCEPTED, needed, try_all
from support.emulated.faulty_operations import FAULTY, SOUND
from support.emulated.operations import (
    OPERATIONS,
    Operation,
    fresh,
    graphs,  # noqa: F401 - its operations are in the table
    libraries,
    memory,  # noqa: F401 - its operations are in the table
    order,  # noqa: F401 - the same
    scopes,  # noqa: F401 - the same
    streams,  # noqa: F401 - the same
)
from support.emulated.waits import warm_up
from support.libraries import installed, need

pytestmark = pytest.mark.versions

tried = set()


@pytest.fixture(scope="module", autouse=True)
def quick_collections(primary_context):
    """Collect garbage when it is asked for only, and only what is made from now on.

    Nor does another thread call the driver: a failure that is meant for the operation would hit
    it, and a stream that it makes would look like one that is left.
    """
    warm_up()
    if installed("warp"):
        libraries.warp()
        from streamkit.backends._warp import memory  # its records would be counted

        memory.watched.clear()  # of the tests before: Warp's frees would call for them too
    if installed("tvm_ffi"):
        need("tvm_ffi")
    if installed("numba"):
        libraries.numba()
    gc.collect()
    gc.freeze()
    gc.disable()
    look, waits.LOOK = waits.LOOK, 10.0  # else the dispatcher would call too, now and then
    yield
    waits.LOOK = look
    gc.enable()
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # again, or each collection from here on would go through all libraries


def printed(capfd):
    """What was printed, but for what Warp has to say of its own calls."""
    out, err = capfd.readouterr()
    return [line for line in (out + err).splitlines() if not line.startswith("Warp CUDA error")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_that_fails_is_told_and_leaves_nothing(name, capfd):
    problems = try_all(name, OPERATIONS[name])
    tried.add(name)
    assert not problems, "\n".join(problems)
    assert printed(capfd) == []


def test_every_exception_is_needed():
    if untried := set(OPERATIONS) - tried:
        pytest.skip(f"{len(untried)} operations were not tried")
    assert [accepted for accepted in ACCEPTED if accepted not in needed] == []


# two seconds: each of more than a hundred faults has a process of its own, forked
def test_what_is_asked_once_for_the_process():
    script = Path(__file__).parents[2] / "support/emulated/first_calls.py"
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    *problems, trials = done.stdout.splitlines()
    assert not problems, done.stdout
    assert int(trials.split()[0]) > 100
    assert done.stderr == ""


# -- the suite can fail -----------------------------------------------------------------------


def test_a_sound_operation_passes():
    assert try_all("sound", SOUND) == []


@pytest.mark.parametrize(("prepare", "problem"), FAULTY.items())
def test_a_faulty_operation_is_found(prepare, problem):
    problems = try_all(prepare.__name__, Operation(prepare, ends=False))
    assert any(problem in found for found in problems), problems


def test_an_error_that_streamkit_swallows_is_found(monkeypatch):
    wait = CudaStream.wait

    def swallow(*arguments):
        with contextlib.suppress(sk.errors.DriverError):
            wait(*arguments)

    monkeypatch.setattr(CudaStream, "wait", swallow)
    problems = try_all("wait", OPERATIONS["wait_for_a_stream_again"])
    assert problems
    assert all(problem.endswith(": succeeded all the same") for problem in problems)


def test_a_stream_that_streamkit_leaks_is_found(monkeypatch):
    wait, leaks = CudaStream.wait, []

    def leak(*arguments):
        try:
            wait(*arguments)
        except sk.errors.DriverError:
            leaks.append(fresh())
            raise

    monkeypatch.setattr(CudaStream, "wait", leak)
    problems = try_all("wait", OPERATIONS["wait_for_a_stream_again"])
    assert problems
    assert all(problem.endswith(": left alive: {'streams': 1}") for problem in problems)


def test_what_is_printed_is_found(capfd):
    print("Warp CUDA error 1: its own")
    print("something else")
    assert printed(capfd) == ["something else"]
