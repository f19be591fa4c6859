"""The host backend on any platform: nothing that only POSIX or Linux has is taken for granted.

The lane ``unit-portable`` runs all tests marked ``portable`` so; here each program starts in a
Python from which ``tests/portable`` takes what other platforms lack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import COMMAND
from support.documents import ROOT
from support.programs import BLOCKER, ROOTS, python, run_python

pytestmark = pytest.mark.portable

PORTABLE = Path(__file__).parents[2] / "portable"


def test_control_the_other_platform_lacks_forks_and_libraries():
    python(
        """
import os, signal, time
assert not hasattr(os, "fork") and not hasattr(os, "register_at_fork")
assert not hasattr(signal, "pthread_kill") and not hasattr(time, "clock_gettime")
try:
    import fcntl
except ImportError:
    pass
else:
    raise AssertionError("fcntl can be imported")
""",
        path=[PORTABLE],
    )


def test_a_host_stream_works_without_what_posix_has():
    python(
        """
import asyncio
import streamkit as sk

s, t, seen = sk.new_stream("cpu"), sk.new_stream("cpu"), []
s.submit(seen.append, 1)
t.wait(s)
t.submit(seen.append, 2)
with t:
    assert seen == [1, 2]
assert s.then(int, 3).result(10) == 3

async def main():
    await s
    await t.record()

asyncio.run(main())
s.sync(timeout=10)
assert sk.new_stream().device == "cpu"
""",
        path=[PORTABLE],
        blocked=["cuda"],
    )


def test_a_lock_needs_no_method_that_windows_lacks():
    python(
        """
import threading

class Lock:  # made in C: the method cannot be taken from it
    def __init__(self):
        lock = make()
        self.acquire, self.release = lock.acquire, lock.release
        self.__enter__, self.__exit__ = lock.__enter__, lock.__exit__

make, threading.RLock = threading.RLock, Lock
import streamkit
""",
        path=[PORTABLE],
    )


@pytest.mark.parametrize("command", [["demo"], ["doctor"], ["--version"]])
def test_the_command_works_there_on_a_console_with_few_characters(command):
    pytest.importorskip("numpy")
    code = BLOCKER.format(blocked=ROOTS) + COMMAND
    done = run_python(
        "-P", "-c", code, *command, path=[PORTABLE], COLUMNS="100", PYTHONIOENCODING="cp1252"
    )
    assert done.stderr == ""
    assert done.returncode == 0


# -- a part of CUDA that is missing names the platform's own remedy -------------------------------

# shutil, from 3.12 on, imports what only Windows has if it believes to be there
NO_DRIVER = """
import shutil, sys
sys.platform = {platform!r}
import streamkit as sk
from streamkit._cuda import loader  # this machine may have a driver
loader.why_not_loaded = lambda: "it is not there"
loader.driver_version = int
for make in (lambda: sk.new_stream("cuda"), lambda: sk.current_stream("{library}")):
    try:
        make()
    except sk.errors.NoDeviceError as error:
        print(error)
    except sk.errors.BackendNotInstalledError as error:
        assert error.name == "{library}"
        print(error)
"""


def errors_on(platform, library):
    """What a new CUDA stream and the library's current one raise where nothing is installed."""
    program = NO_DRIVER.format(platform=platform, library=library)
    return python(program, blocked=ROOTS).splitlines()


def test_macos_has_no_cuda_to_install():
    stream, library = errors_on("darwin", "cupy")
    assert "CUDA does not exist on macOS" in stream
    assert "new_stream(device='cpu')" in stream
    assert "CUDA does not exist on macOS" in library
    assert "pip install" not in library


def test_a_library_that_macos_has_is_installed_there_as_anywhere():
    _, library = errors_on("darwin", "torch")
    assert "pip install" in library
    assert "macOS" not in library
    assert "index-url" not in library  # there are no builds for CUDA


@pytest.mark.parametrize(
    ("platform", "driver"), [("win32", "nvcuda.dll"), ("linux", "libcuda.so.1")]
)
def test_a_missing_driver_is_named_with_what_brings_it(platform, driver):
    stream, library = errors_on(platform, "cupy")
    assert f"{driver}, which NVIDIA's driver installs" in stream
    assert "pip install" in library


def test_the_doctor_asks_nobody_on_macos_to_install_a_driver():
    out = python(
        """
import sys
sys.platform = "darwin"
import streamkit as sk
from streamkit._cuda import loader  # this machine may have a driver
loader.why_not_loaded = lambda: "it is not there"
loader.driver_version = int
print(sk.doctor())
""",
        blocked=ROOTS,
    )
    assert "No CUDA driver, so programs run on host streams. CUDA does not exist on m" in out
    assert "OK: nothing wrong was found" in out


def test_an_audit_of_cuda_streams_is_not_to_be_installed_where_cupti_is_not_used():
    out = python(
        """
import shutil, sys  # shutil first, for the same reason
sys.platform = "win32"
from streamkit.errors import BackendNotInstalledError
from streamkit.diagnostics.audit.audit import CallbackRecorder  # as on a GPU
try:
    CallbackRecorder(lambda: True).start()
except BackendNotInstalledError as error:
    print(error)
""",
        blocked=["cuda"],
    )
    assert "used on Linux only" in out
    assert "pip install" not in out


def test_the_package_says_on_which_systems_it_was_run():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    systems = [one for one in project["classifiers"] if one.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
