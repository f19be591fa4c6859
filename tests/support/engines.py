"""Engines that start processes, such as torchrun, and the examples that use them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.documents import ROOT
from support.libraries import lane
from support.programs import environment

if TYPE_CHECKING:
    from pathlib import Path

# the examples that need more than NumPy, and the module that each of them needs
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
    """Skip the file that calls this if the module is missing; in its own lane that is a failure."""
    __tracebackhide__ = True
    if importlib.util.find_spec(module) is None:
        if lane_name in lane():
            pytest.fail(f"the lane {lane_name} needs {module}: not installed", pytrace=False)
        pytest.skip(f"not installed: {module}", allow_module_level=True)


def run_with_children(*arguments, seconds=110, **variables):
    """Run Python in an ``environment``; after so many seconds end it and all that it has started.

    Return how it ended.
    """
    started = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        out, errors = started.communicate(timeout=seconds)
    except BaseException:
        started.terminate()  # which lets it end children that are in a group of their own
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.communicate(timeout=10)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing is left
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    return subprocess.CompletedProcess(started.args, started.returncode, out, errors)
