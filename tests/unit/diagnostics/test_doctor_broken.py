"""Broken installations, each built here: the doctor names the cause and the remedy of each.

Those that need a driver which answers are in ``tests/emulated/diagnostics/test_doctor_broken.py``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit._cuda import loader  # the system's libraries are made up here
from streamkit.diagnostics.doctor import doctor, toolkit  # a machine is made up here
from support.command import COMMAND
from support.programs import environment, run_python

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="this system is not Linux")


@pytest.fixture
def look(tmp_path, monkeypatch):
    """What the doctor says where the system answers this when it loads the driver's library."""
    monkeypatch.setattr(doctor, "_WSL", tmp_path / "wsl")
    monkeypatch.setattr(doctor, "_ABOUT", tmp_path / "version")
    monkeypatch.setattr(loader, "driver_version", lambda: 0)

    def look(why):
        monkeypatch.setattr(loader, "why_not_loaded", lambda: why)
        return list(doctor._no_device(0))

    return look


ABSENT = "libcuda.so.1: cannot open shared object file: No such file or directory"


def test_control_a_machine_without_a_gpu_is_no_finding(look):
    assert look(ABSENT) == []


@on_linux
def test_wsl_whose_library_folder_is_not_searched(look, tmp_path):
    (tmp_path / "wsl").mkdir()
    (found,) = look(ABSENT)
    assert found.code == "wsl-library"
    assert str(tmp_path / "wsl") in found.what
    assert f"export LD_LIBRARY_PATH={tmp_path / 'wsl'}:" in found.remedy
    assert "Install no NVIDIA driver inside WSL" in found.remedy


@on_linux
def test_a_kernel_module_without_its_library_as_in_a_bare_container(look, tmp_path):
    (tmp_path / "version").write_text("NVRM version: ...")
    (found,) = look(ABSENT)
    assert found.code == "no-driver"
    assert "kernel module is loaded" in found.what
    assert "--gpus all" in found.remedy


def test_a_file_that_is_no_driver_though_it_loads(look, tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 08:01 5   /opt/cuda/lib64/stubs/libcuda.so.1\n")
    monkeypatch.setattr(doctor, "_MAPS", maps)
    (found,) = look("")
    assert found.code == "driver-fails"
    assert "/opt/cuda/lib64/stubs/libcuda.so.1 is loaded as the CUDA driver" in found.what
    assert "LD_LIBRARY_PATH" in found.remedy


def doctor_of(folder, **variables):
    """What the command says that is started in a folder, and how it exits."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMAND, "doctor", "--json"],
        env=environment(**variables),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return {found["code"]: found for found in report["findings"]}


@on_linux
def test_a_real_library_that_is_empty_is_named_by_the_command(tmp_path, no_driver):
    (tmp_path / "libcuda.so.1").write_text("")
    found = doctor_of(tmp_path, LD_LIBRARY_PATH=str(tmp_path))["driver-fails"]
    assert f"{tmp_path}/libcuda.so.1: file too short" in found["what"]


@pytest.mark.parametrize(("found", "expected"), [("/usr/include", True), (None, False)])
def test_cudas_headers_are_where_cuda_pathfinder_finds_them(monkeypatch, found, expected):
    finder = SimpleNamespace(find_nvidia_header_directory={"cudart": found}.get)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    assert toolkit.has_headers() is expected


@on_linux
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the stub")
def test_a_real_library_without_a_drivers_functions_is_named_by_the_command(tmp_path, no_driver):
    (tmp_path / "stub.c").write_text("int cuStub(void) { return 34; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-o", library, tmp_path / "stub.c"], check=True)  # noqa: S607 - as found
    found = doctor_of(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert str(library) in found["driver-fails"]["what"]


# -- parts of the toolkit -------------------------------------------------------------------------


def test_what_the_toolkit_lacks_cannot_be_loaded():
    if sys.platform == "linux":
        assert not toolkit.has("nothing_of_cuda", 13, 12)
    assert toolkit.install_line("nvrtc", 13) == "pip install nvidia-cuda-nvrtc"
    assert toolkit.install_line("nvrtc", 12) == "pip install nvidia-cuda-nvrtc-cu12"


@on_linux
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the library")
def test_what_the_system_finds_is_there(tmp_path):
    (tmp_path / "empty.c").write_text("")
    library = tmp_path / "libnvrtc.so.99"
    subprocess.run(["gcc", "-shared", "-o", library, tmp_path / "empty.c"], check=True)  # noqa: S607 - as found
    program = """
from streamkit.diagnostics.doctor import toolkit  # no public function asks for one library
print(toolkit.has("nvrtc", 98, 99))
"""
    for where, expected in ((tmp_path, "True"), (Path("/nowhere"), "False")):
        done = run_python("-P", "-c", program, LD_LIBRARY_PATH=str(where))
        assert done.stdout.strip() == expected, done.stderr


# -- the errors that lead there -------------------------------------------------------------------


@pytest.mark.parametrize(("value", "is_told"), [("", True), ("-1", True), (None, False)])
def test_the_error_for_hidden_devices_names_the_variable(monkeypatch, value, is_told):
    class Bindings:
        @staticmethod
        def cuInit(_):  # noqa: N802 - CUDA's name
            return (100,)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(sk.errors.NoDeviceError, match="streamkit doctor") as raised:
        loader._initialise(Bindings)
    assert (f"CUDA_VISIBLE_DEVICES={value!r} can hide" in str(raised.value)) is is_told
