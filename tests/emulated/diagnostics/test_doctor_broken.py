"""Broken installations with a driver that answers: the doctor names the cause and the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.libraries import installed, need

pytestmark = pytest.mark.versions

PROGRAM = """
import json
import streamkit as sk
from streamkit.diagnostics.doctor import toolkit  # what is missing is made up here
lacking = {lacking!r}
toolkit.has = lambda name, *majors: name not in lacking
toolkit.has_headers = lambda: "headers" not in lacking
report = sk.doctor()
try:
    sk.new_stream("cuda")
    error = ""
except Exception as raised:
    error = str(raised)
print(json.dumps([[found._asdict() for found in report.findings], error]))
"""


@pytest.fixture
def look():
    """Return the findings by their codes, and the error of a stream that a program makes."""
    need("cuda")

    def look(*, lacking=(), path=(), **variables):
        paths = os.pathsep.join([*map(str, path), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM.format(lacking=lacking)],
            env={**os.environ, "PYTHONPATH": paths, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        findings, error = json.loads(done.stdout)
        return {found["code"]: found for found in findings}, error

    return look


CAUSES = {"driver-fails", "no-device", "no-cuda-python", "no-cupti", "no-driver"}


def test_control_nothing_of_this_is_found_where_all_is_right(look):
    found, error = look()
    assert CAUSES.isdisjoint(found)
    assert error == ""


def test_the_stub_of_a_toolkit_in_the_place_of_the_driver(look):
    found, _ = look(EMULATED_FAIL="cuInit:1:34")
    told = found["driver-fails"]
    assert "CUDA_ERROR_STUB_LIBRARY (34)" in told["what"]
    assert "libcuda.so" in told["what"]
    assert "stubs, off LD_LIBRARY_PATH" in told["remedy"]
    assert "restart" not in told["remedy"]


@pytest.mark.parametrize(
    "line",
    [
        "raise ImportError('libnvJitLink.so.13: undefined symbol: x')",
        "raise RuntimeError('libnvJitLink.so.13: undefined symbol: x')",
        "import libnvJitLink_so_13_undefined_symbol",
    ],
)
def test_a_cuda_bindings_that_cannot_be_imported(look, tmp_path, line):
    (tmp_path / "cuda/bindings").mkdir(parents=True)
    (tmp_path / "cuda/bindings/__init__.py").write_text(line)
    found, error = look(path=[tmp_path])
    (told,) = [found[code] for code in ("no-cuda-python", "driver-fails") if code in found]
    assert "libnvJitLink" in told["what"]
    assert "undefined" in error
    assert told["library"] == "cuda.bindings"
    assert "nstall it" in told["remedy"] or "install it again" in told["remedy"]


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_all_devices(look, value):
    found, error = look(EMULATED_DEVICES="0", CUDA_VISIBLE_DEVICES=value)
    assert f"CUDA_VISIBLE_DEVICES={value!r} can hide them" in found["no-device"]["what"]
    assert "Unset CUDA_VISIBLE_DEVICES" in found["no-device"]["remedy"]
    assert f"CUDA_VISIBLE_DEVICES={value!r} can hide them" in error
    assert "streamkit doctor" in error


def test_no_libcupti(look):
    found, error = look(lacking=("cupti",))
    assert "pip install nvidia-cuda-cupti" in found["no-cupti"]["remedy"]
    assert error == ""  # all else works


def test_no_nvrtc(look):
    if not installed("cupy"):  # which is not imported here: it stays for the tests after this
        pytest.skip("not installed: cupy")
    found, _ = look(lacking=("nvrtc",))
    assert found["no-nvrtc"]["library"] == "cupy"
    assert "pip install nvidia-cuda-nvrtc" in found["no-nvrtc"]["remedy"]
    found, _ = look(lacking=("headers",))
    assert "pip install nvidia-cuda-runtime" in found["no-cuda-headers"]["remedy"]
