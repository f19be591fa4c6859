"""The conformance kit on the emulated driver, and proof that each of its checks can fail."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys

import pytest

from streamkit import testing
from streamkit.testing import _gate  # how long a gate waits in vain
from support.conformance_cases import CASES, ON_AN_EMULATED_DRIVER, cuda_core
from support.conformance_cases import check_library as check
from support.conformance_mutants import MUTANTS, RIGHT, run_kit
from support.gpu import raw
from support.gpu.raw import driver
from support.libraries import need

pytestmark = pytest.mark.versions


@pytest.mark.parametrize("library", sorted({*ON_AN_EMULATED_DRIVER} - {"toylib"}))
def test_the_adapter_conforms(library):
    check(library)


def test_the_plugins_adapter_conforms():
    if importlib.util.find_spec("streamkit_toylib") is None:
        pytest.skip("the plugin of tests/plugin is not installed")
    # in a process of its own: once toylib is imported, every scope there moves it too
    program = "from support.conformance_cases import check_library; check_library('toylib')"
    paths = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, check=True
    )


def test_every_library_is_tried_that_runs_here():
    assert set(CASES) - set(ON_AN_EMULATED_DRIVER) == {"torch", "cupy"}
    assert {"warp", "tvm_ffi", "numba", "cuda.core", "cuda.bindings"} <= {*ON_AN_EMULATED_DRIVER}


# -- the kit can fail -------------------------------------------------------------------------


# ten seconds: the whole kit on the unchanged adapter, and on each mutant the checks that find it
@pytest.fixture(scope="module")
def found(tmp_path_factory):
    need("cuda")
    # of a mutant that destroys what it borrows, the kit asks the driver whether the stream is there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMULATED_REFUSE_DEAD", "1")
        return run_kit(tmp_path_factory.mktemp("mutants"), MUTANTS)


@pytest.mark.parametrize("adapter", RIGHT)
def test_a_right_adapter_passes_the_checks(found, adapter):
    assert found[adapter] == {}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_adapter_is_found_out_by_the_check_it_breaks(found, mutant):
    _, _, expected = MUTANTS[mutant]
    assert set(found[mutant]) == set(expected)
    for message in found[mutant].values():
        assert message.startswith("AssertionError: adapter 'toy"), message


def test_every_check_finds_some_mutant():
    need("cuda")
    killers = {name for _, _, expected in MUTANTS.values() for name in expected}
    assert killers == {check.name for check in testing.checks("cuda.core", object)}


# -- what is told -----------------------------------------------------------------------------


def test_all_that_is_wrong_is_told_at_once():
    def always_the_same(*, of=[]):  # noqa: B006 - the one stream
        of[:] = of or [cuda_core().make_stream()]
        return of[0]

    with pytest.raises(AssertionError) as raised:
        testing.check_adapter("cuda.core", always_the_same)
    first, *lines = str(raised.value).splitlines()
    assert first == f"{len(lines)} checks failed"
    assert {line.partition(":")[0] for line in lines} >= {"round_trip", "wait_orders"}
    assert "make_stream() gave one queue twice" in lines[0]


@pytest.mark.parametrize("call", ["enter", "leave"])
def test_what_blocks_the_host_is_told_from_what_orders(found, call):
    assert f"{call} waited for" in found[f"{call} blocks the host"]["enter_adds_no_wait"]


def test_a_control_arm_that_hangs_proves_nothing(monkeypatch):
    monkeypatch.setattr(_gate, "LIMIT", 0.2)  # seconds that the control arm waits in vain
    core = need("cuda")
    device = core.Device(0)
    device.set_current()
    blocking = device.create_stream(options=core.StreamOptions(nonblocking=False))
    streams = iter((core.LEGACY_DEFAULT_STREAM, blocking))
    (check,) = [
        check
        for check in testing.checks("cuda.core", lambda: next(streams))
        if check.name == "wait_orders"
    ]
    with pytest.raises(AssertionError, match="the control arm hangs"):
        check()


def test_that_nothing_orders_is_found_however_the_two_queues_run(monkeypatch):
    """Also if the first has run by the time that the host has waited for the later."""
    first, later = raw.make_stream(), raw.make_stream()
    sync = _gate.sync

    def sync_both(stream):
        sync(stream)
        if stream == later:
            sync(first)

    monkeypatch.setattr(_gate, "sync", sync_both)
    assert not _gate.runs_after(first, later, lambda: None)
    raw.destroy_stream(first)
    raw.destroy_stream(later)


def test_a_wait_for_an_earlier_point_of_the_first_queue_orders_nothing(monkeypatch):
    """Though it holds the later queue until the gate opens."""
    first, later = raw.make_stream(), raw.make_stream()
    event = raw.check(driver.cuEventCreate(0))
    rest = _gate.Gate()  # of the first queue's work, which goes on after the later queue's

    class GateBeforeARest(_gate.Gate):
        def hold(self, stream):
            super().hold(stream)
            raw.check(driver.cuEventRecord(event, stream))
            rest.hold(stream)

        def __exit__(self, *about):
            rest.open()
            super().__exit__(*about)

    monkeypatch.setattr(_gate, "Gate", GateBeforeARest)
    with rest:
        assert not _gate.runs_after(
            first, later, lambda: raw.check(driver.cuStreamWaitEvent(later, event, 0))
        )
    raw.check(driver.cuEventDestroy(event))
    raw.destroy_stream(first)
    raw.destroy_stream(later)


def test_a_gate_ends_after_what_it_held_though_another_device_is_current():
    """As an adapter may leave it. Its memory would be unmapped while a queue asks for it."""
    stream, gate = raw.make_stream(), _gate.Gate()
    gate.hold(stream)
    pause = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    raw.check(driver.cuLaunchHostFunc(stream, driver.CUhostFn(pause), 200_000))  # microseconds
    with raw.on_device(1):
        gate.__exit__()
        assert not raw.busy(stream)
    raw.destroy_stream(stream)


def test_what_does_not_apply_says_why():
    case = cuda_core()
    report = testing.check_adapter("cuda.core", case.make_stream)
    assert report.library == "cuda.core"
    assert report.not_applicable["enter_adds_no_wait"] == "cuda.core has no CurrentStream"
    assert "make_event" in report.not_applicable["event_orders"]
    assert "cannot wrap an event" in report.not_applicable["borrowed_event_lets_go"]


def test_a_waived_promise_that_is_kept_fails():
    case = cuda_core()
    (check,) = [
        check
        for check in testing.checks(
            "cuda.core", case.make_stream, waive={"borrow_keeps_owner": "it cannot"}
        )
        if check.name == "borrow_keeps_owner"
    ]
    with pytest.raises(AssertionError, match="is waived, and kept: drop the waiver"):
        check()
