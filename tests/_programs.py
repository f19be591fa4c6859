"""Programs that run in a Python of their own, to see what an import or a missing library does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import streamkit

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in {blocked!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}: blocked by the test", name=name)

sys.meta_path.insert(0, Blocker())
"""


def python(code, *, blocked=(), path=(), options=()):
    """Run code in a fresh Python that finds this streamkit and not ``blocked``; return its output.

    What it raises fails the test, with its traceback.
    """
    __tracebackhide__ = True
    if blocked:
        code = BLOCKER.format(blocked=tuple(blocked)) + code
    here = str(Path(streamkit.__file__).parents[1])
    found = os.pathsep.join([*map(str, path), here])
    done = subprocess.run(
        [sys.executable, "-P", *options, "-c", code],
        env={**os.environ, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def streamkit_(*arguments, blocked=("torch", "cupy", "warp")):
    """Run ``streamkit ARGUMENTS`` where ``blocked``, slow to import, cannot be imported."""
    code = BLOCKER.format(blocked=tuple(blocked)) + "from streamkit._cli import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(streamkit.__file__).parents[1]),
            "CUDA_VISIBLE_DEVICES": "-1",
            "COLUMNS": "100",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
