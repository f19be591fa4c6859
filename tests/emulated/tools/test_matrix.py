"""``streamkit matrix`` on the emulated driver, and proof that each part of it can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import itertools

import pytest

import streamkit as sk
from streamkit._cli import matrix  # the command prints no objects
from streamkit.testing import _gate  # how long a gate waits in vain
from streamkit.types import CudaStream
from support.libraries import installed, need

OTHERS = [name for name in ("warp", "tvm_ffi", "numba") if installed(name)]
HERE = [*OTHERS, "cuda.core", "cuda.bindings", "native"]


@pytest.fixture(scope="module")
def report():
    # `need` imports them without their warnings, which are errors of the import in these tests:
    # numba-cuda 0.30 uses what NumPy 2.5 deprecates
    need("cuda", *OTHERS)
    return matrix.run()


def test_every_pair_of_what_runs_here_is_ok(report):
    here = [name for name in report.libraries if name in HERE]
    assert here == HERE
    assert [(pair.first, pair.second) for pair in report.pairs] == list(
        itertools.permutations(report.libraries, 2)
    )
    assert report.ok, [pair for pair in report.pairs if not pair.ok]


def test_only_a_bare_handle_keeps_nothing(report):
    assert {pair.second for pair in report.pairs if pair.owner_kept is None} == {"cuda.bindings"}


def test_what_cannot_take_part_is_listed(report):
    assert set(report.libraries) | set(report.missing) == set(matrix.LABELS)
    assert all(report.missing.values())


def test_it_is_known_what_was_tried_and_where(report):
    assert report.device
    assert "\0" not in report.device
    assert {"streamkit", "python", *HERE} - {"native"} <= set(report.versions)
    if "numba" in HERE:
        assert report.versions["numba"] == importlib.metadata.version("numba-cuda")


def test_progress_is_told_from_nothing_to_all():
    need("cuda")
    told = []
    matrix.run(progress=lambda *step: told.append(step))
    done = [step[1] for step in told]
    assert done == list(range(len(told)))
    assert told[-1][2] == len(told)


# -- it can fail ------------------------------------------------------------------------------


@pytest.fixture
def two():
    """cuda.core and StreamKit itself, in a context of theirs."""
    need("cuda")
    with contextlib.ExitStack() as cleanup, _gate.on_device(0):
        yield [matrix.load(name, 0, cleanup) for name in ("cuda.core", "native")]


def only_problem(pair, part):
    (problem,) = pair.problems
    assert problem.startswith(f"{part}: "), problem
    parts = ("same_queue", "same_device", "owner_kept", "control_ran", "order_kept")
    (wrong,) = [name for name in parts if not getattr(pair, name)]
    return wrong, problem


def test_unchanged_they_work(two):
    assert matrix.examine(*two).ok


def test_a_view_of_another_queue_is_found(two):
    kept = []

    class Astray(matrix.LibraryStreams):
        def view(self, stream):
            kept.extend((stream, sk.new_stream(nonblocking=True)))
            return kept[-1]

    core, native = two
    astray = Astray(**dataclasses.asdict(native))
    wrong, problem = only_problem(matrix.examine(core, astray), "queue")
    assert wrong == "same_queue"
    assert "the driver knows the stream as" in problem


class Forgetful(matrix.LibraryStreams):
    def view(self, stream):
        from cuda.bindings import driver

        return driver.CUstream(stream.handle)  # holds nothing, and does not say so


def test_a_view_that_does_not_keep_the_stream_is_found(two):
    core, native = two
    forgetful = Forgetful(**dataclasses.asdict(native))
    wrong, problem = only_problem(matrix.examine(core, forgetful), "owner")
    assert wrong == "owner_kept"
    assert "the stream died" in problem


def test_a_view_that_does_not_keep_streamkits_own_queue_is_found(two):
    _, native = two
    forgetful = Forgetful(**dataclasses.asdict(native))
    wrong, problem = only_problem(matrix.examine(native, forgetful), "owner")
    assert wrong == "owner_kept"
    assert "while its view was in use" in problem


def test_a_dropped_wait_is_found(two, monkeypatch):
    monkeypatch.setattr(CudaStream, "wait", lambda *_: None)
    wrong, problem = only_problem(matrix.examine(*two), "order")
    assert wrong == "order_kept"
    assert "ran before" in problem


def test_a_wait_that_blocks_the_host_is_found(two, monkeypatch):
    monkeypatch.setattr(_gate, "LIMIT", 0.5)  # seconds that it waits in vain
    monkeypatch.setattr(CudaStream, "wait", lambda _, other: sk.wrap(other).sync())
    wrong, problem = only_problem(matrix.examine(*two), "order")
    assert wrong == "order_kept"
    assert "blocked the host" in problem


def test_a_control_arm_that_hangs_is_found(two, monkeypatch):
    monkeypatch.setattr(_gate, "LIMIT", 0.5)  # seconds that the control arm waits in vain
    core, native = two
    stream = core.new_stream()
    same = dataclasses.replace(native, new_stream=lambda: sk.wrap(stream))
    wrong, problem = only_problem(
        matrix.examine(dataclasses.replace(core, new_stream=lambda: stream), same), "control"
    )
    assert wrong == "control_ran"
    assert "proves nothing" in problem


def test_an_error_of_one_pair_is_told_and_ends_nothing(two):
    def fail():
        raise RuntimeError("no more streams")

    core, native = two
    pair = matrix.examine(core, dataclasses.replace(native, new_stream=fail))
    assert (pair.same_queue, pair.control_ran, pair.order_kept) == (True, False, False)
    assert pair.problems == [
        "control: RuntimeError: no more streams",
        "order: RuntimeError: no more streams",
    ]
