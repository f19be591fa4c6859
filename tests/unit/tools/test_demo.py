"""The demo on the host, with NumPy alone: the numbers, the queue, and what it says is missing."""

from __future__ import annotations

import math

import pytest

import streamkit as sk

pytestmark = [pytest.mark.portable, pytest.mark.quick]

np = pytest.importorskip("numpy")

from streamkit._cli import demo, machine  # its numbers  # noqa: E402 - of no use without NumPy


@pytest.fixture
def result(no_driver):
    return demo.run(libraries=())


def test_the_result_is_right_and_every_stage_ran_on_the_one_queue(result):
    assert result["ok"]
    assert 0 < result["max_error"] < 1e-6
    assert [stage["name"] for stage in result["stages"]] == ["make", "stretch", "blur"]
    assert {stage["library"] for stage in result["stages"]} == {"numpy"}
    assert len({stage["queue"] for stage in result["stages"]}) == 1
    assert result["notes"] == ["There is no GPU: the stages ran on a host stream."]


def test_the_reference_is_what_the_stages_promise(monkeypatch):
    monkeypatch.setattr(demo, "SIZE", (3, 2))
    monkeypatch.setattr(demo, "STAGES", {"make": (4,), "stretch": (50.0,), "blur": ()})
    low, mid, high = (math.asinh(50 * part / 4) / math.asinh(50) for part in (1, 2, 3))
    # made are the rows 0 1, 2 3, 0 1, of 4
    expected = [[mid / 4, low * 3 / 4 + high / 4], [mid / 2, low / 2 + high / 2]]
    np.testing.assert_allclose(demo.reference(), [*expected, expected[0]], atol=1e-12)


@pytest.mark.parametrize("wrong", [1.001, math.nan])
@pytest.mark.parametrize("stage", demo.STAGES)
def test_a_wrong_stage_is_noticed(monkeypatch, no_driver, stage, wrong):
    right = demo._by_arrays

    def compute(xp, where, name, *inputs):
        return right(xp, where, name, *inputs) * np.float32(wrong if name == stage else 1)

    monkeypatch.setattr(demo, "_by_arrays", compute)
    result = demo.run(libraries=())
    assert not result["ok"]
    assert result["max_error"] is None or result["max_error"] > demo.TOLERANCE
    assert (result["max_error"] is None) is math.isnan(wrong)


def test_a_stage_on_another_queue_is_noticed(monkeypatch, no_driver):
    other = sk.new_stream("cpu")
    monkeypatch.setattr(sk, "current_stream", lambda *_: other)
    result = demo.run(libraries=())
    assert result["max_error"] <= demo.TOLERANCE
    assert not result["ok"]


def test_an_error_in_a_stage_is_raised(monkeypatch, no_driver):
    def fail(*_):
        raise ZeroDivisionError("in a stage")

    monkeypatch.setattr(demo, "_by_arrays", fail)
    with pytest.raises(ZeroDivisionError, match="in a stage"):
        demo.run(libraries=())


def test_a_driver_without_its_package_is_said_with_the_line_that_installs_it(monkeypatch):
    def new_stream(device=None):
        if device is None:
            raise sk.errors.BackendNotInstalledError("install it", name="cuda.bindings")
        return real(device)

    real = sk.new_stream
    monkeypatch.setattr(sk, "new_stream", new_stream)
    result = demo.run(libraries=())
    assert result["ok"]
    assert result["notes"] == [
        "There is a CUDA driver here, but install it.",
        "For now the stages ran on a host stream.",
    ]


def test_beside_a_gpu_each_missing_library_is_said_with_the_line_that_installs_it(monkeypatch):
    class OnGpu:
        device = "cuda:0"

    def new_stream(device=None):
        return real(device) if device else OnGpu()

    def load(name, device):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        raise OSError("libsomething.so: not found")

    real = sk.new_stream
    monkeypatch.setattr(sk, "new_stream", new_stream)
    monkeypatch.setattr(machine, "install_line", "pip install {}".format)
    monkeypatch.setattr(
        demo, "load", lambda name, device: numpy if name == "numpy" else load(name, device)
    )
    numpy = demo.Library(np, None, None)
    stream, found, notes = demo._equip(("torch", "warp"))
    assert (stream.device, list(found)) == ("cpu", ["numpy"])
    assert notes == [
        "No torch: not installed. Install it with: pip install torch",
        "No Warp: OSError: libsomething.so: not found. Install it with: pip install warp",
        "For now the stages ran on a host stream.",
    ]
    monkeypatch.setattr(
        demo, "load", lambda name, device: load(name, device) if name == "torch" else numpy
    )
    stream, found, notes = demo._equip(("torch", "warp"))
    assert (stream.device, list(found)) == ("cuda:0", ["warp"])
    assert notes == ["No torch: not installed. Install it with: pip install torch"]
