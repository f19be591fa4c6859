"""Engines that start processes, such as torchrun, and the examples that use them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import streamkit
from support.documents import ROOT
from support.libraries import lane

# those that need more than NumPy, and the module that they need
ENGINES = {
    "11_torchrun.py": "torch",
    "12_ray.py": "ray",
    "13_dask.py": "distributed",
}


def examples(*, with_engine: bool) -> list[Path]:
    """The examples that need an engine, or those that run with NumPy alone."""
    found = sorted((ROOT / "examples").glob("*.py"))
    return [path for path in found if (path.name in ENGINES) is with_engine]


def need_engine(module: str, lane_name: str) -> None:
    """Skip the file that asks unless the module is there; in its own lane that is a failure."""
    __tracebackhide__ = True
    if importlib.util.find_spec(module) is None:
        if lane_name in lane():
            pytest.fail(f"the lane {lane_name} needs {module}: not installed", pytrace=False)
        pytest.skip(f"not installed: {module}", allow_module_level=True)


def run_with_children(*arguments, seconds=110, **variables):
    """Run Python, and end what it has started too if that takes longer; return how it ended.

    It finds this streamkit. ``variables`` are of its environment.
    """
    here = str(Path(streamkit.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    started = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        out, errors = started.communicate(timeout=seconds)
    except BaseException:
        started.terminate()  # then it ends what is in a group of its own
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.communicate(timeout=10)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing is left
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    return subprocess.CompletedProcess(started.args, started.returncode, out, errors)
