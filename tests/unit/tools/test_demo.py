"""The demo on the host, with NumPy alone: the numbers, the queue, and what it says is missing."""

from __future__ import annotations

import importlib.resources
import math

import pytest

import streamkit as sk

pytestmark = [pytest.mark.portable, pytest.mark.quick]

np = pytest.importorskip("numpy")

from streamkit._cli import demo, machine  # its numbers  # noqa: E402 - of no use without NumPy


@pytest.fixture(scope="module")
def result():
    return demo.run(device="cpu", libraries=())


def test_the_result_is_right(result):
    assert result.ok
    assert result.max_error < 1e-6
    expected, mean = demo.reference(demo.read_image())
    assert result.image.shape == (256, 256)
    np.testing.assert_allclose(result.image, expected, atol=1e-6)
    assert result.mean == pytest.approx(mean, abs=1e-6)


def test_it_says_what_comes_next_and_how_much_is_done():
    told = []
    demo.run(device="cpu", libraries=(), progress=lambda *step: told.append(step))
    assert told == [
        ("import the libraries", 0, 3),
        ("compile the kernels", 1, 3),
        ("run the stages", 2, 3),
    ]


def test_every_stage_ran_on_the_one_queue_and_took_time(result):
    assert [stage.name for stage in result.stages] == ["luminance", "stretch", "sharpen", "mean"]
    assert {stage.library for stage in result.stages} == {"numpy"}
    assert len({stage.queue for stage in result.stages}) == 1
    assert all(stage.milliseconds > 0 for stage in result.stages)
    assert result.device == "cpu"


def test_the_reference_is_what_the_pipeline_promises():
    image = np.zeros((5, 5, 3), np.uint8)
    image[2, 2] = 255  # one white pixel: the sharpening cannot make it whiter, nor black blacker
    result, mean = demo.reference(image)
    white = np.zeros((5, 5))
    white[2, 2] = 1
    np.testing.assert_allclose(result, white, atol=1e-12)
    assert mean == pytest.approx(1 / 25)

    grey = np.full((4, 6, 3), 128, np.uint8)  # a plain area has nothing to sharpen, at no edge
    light = (128 / 255) ** demo.GAMMA
    level = math.asinh(demo.STRETCH * light) / math.asinh(demo.STRETCH)
    np.testing.assert_allclose(demo.reference(grey)[0], np.full((4, 6), level), atol=1e-12)


def test_the_reference_sharpens_with_its_neighbours():
    image = np.zeros((3, 4, 3), np.uint8)
    image[:, 2:] = 20
    result, _ = demo.reference(image)
    light = (20 / 255) ** demo.GAMMA
    high = math.asinh(demo.STRETCH * light) / math.asinh(demo.STRETCH)
    overshoot = high + demo.SHARPEN * high / 4  # a quarter of the blur comes from black
    np.testing.assert_allclose(result, [[0, 0, overshoot, high]] * 3, atol=1e-12)


@pytest.mark.parametrize("stage", ["luminance", "stretch", "sharpen"])
def test_a_wrong_image_is_noticed(monkeypatch, stage):
    right = getattr(demo._NumPy, stage)
    monkeypatch.setattr(demo._NumPy, stage, lambda self, x: right(self, x) * np.float32(1.001))
    result = demo.run(device="cpu", libraries=())
    assert not result.ok
    assert result.max_error > result.tolerance


@pytest.mark.parametrize("wrong", [0.5, math.nan])
def test_a_wrong_mean_is_noticed(monkeypatch, wrong):
    monkeypatch.setattr(demo._NumPy, "mean", lambda _, x: x.mean() * 0 + np.float32(wrong))
    assert not demo.run(device="cpu", libraries=()).ok


def test_an_error_in_a_stage_is_raised(monkeypatch):
    def fail(self, x):
        raise ZeroDivisionError("in a stage")

    monkeypatch.setattr(demo._NumPy, "stretch", fail)
    with pytest.raises(ZeroDivisionError, match="in a stage"):
        demo.run(device="cpu", libraries=())


def test_what_stood_in_is_said(monkeypatch, no_driver):
    def load(name, device):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        if name == "warp":
            raise OSError("libsomething.so: not found")
        return real(name, device)

    real = demo.load
    monkeypatch.setattr(demo, "load", load)
    result = demo.run(libraries=("torch", "warp"))
    assert result.ok
    (note,) = result.notes
    assert note.startswith("There is no GPU here: the stages ran on a host stream")
    assert "torch (not installed), Warp (OSError: libsomething.so: not found)" in note


def test_a_driver_without_its_package_is_said_with_the_line_that_installs_it(monkeypatch):
    def new_stream(device=None):
        if device is None:
            raise sk.BackendNotInstalledError("install it", name="cuda.bindings")
        return real(device)

    real = sk.new_stream
    monkeypatch.setattr(sk, "new_stream", new_stream)
    result = demo.run(libraries=())
    assert result.ok
    assert "There is a CUDA driver here, but install it. For now the stages" in result.notes[0]


def test_a_note_on_each_missing_library_says_what_did_its_stage_and_how_to_install_it(no_driver):
    plan = dict.fromkeys(demo.STAGES, demo.load("numpy", "cpu"))  # "run" plans so on a GPU alone
    missing = {"torch": "not installed", "warp": "OSError: libsomething.so: not found"}
    torch, warp = demo._gaps(plan, missing)
    assert torch == (
        "No torch (not installed): NumPy did luminance. "
        f"Install it with: {machine.install_line('torch')}"
    )
    assert warp == "No Warp (OSError: libsomething.so: not found): NumPy did sharpen."


def test_the_image_is_small_and_a_ppm():
    data = (importlib.resources.files("streamkit._cli") / "hubble.ppm").read_bytes()
    assert len(data) < 200_000
    assert data.startswith(b"P6\n256 256\n255\n")
    image = demo.read_image()
    assert image.shape == (256, 256, 3)
    assert image.flags.writeable
    assert image.min() < 10
    assert image.max() > 245


def test_the_result_is_written_as_pgm(tmp_path):
    demo.write_image(np.array([[0.0, 0.5], [0.999, 1.0]]), tmp_path / "x.pgm")
    assert (tmp_path / "x.pgm").read_bytes() == b"P5\n2 2\n255\n" + bytes([0, 128, 255, 255])
