"""Programs that run in a Python of their own, to see what an import or a missing library does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import streamkit
from streamkit._queues import registry  # its rows name the libraries

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

ROOTS = tuple(dict.fromkeys(row.root for row in registry.LIBRARIES))
"""The root package of every library that StreamKit knows."""
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in {blocked!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}: blocked by the test", name=name)

sys.meta_path.insert(0, Blocker())
"""


def environment(*, path=(), **variables):
    """Return this environment for a Python that finds ``path`` and this streamkit first."""
    here = Path(streamkit.__file__).parents[1]
    found = [*map(str, path), str(here), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found)), **variables}


def run_python(*arguments, path=(), **variables):
    """Run Python in such an ``environment``; return how it ended."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(path=path, **variables),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def run_program(program):
    """Run a program, indented as in a test, without its warnings; return how it ended."""
    return run_python("-W", "ignore", "-c", textwrap.dedent(program))


def python(code, *, blocked=(), path=(), options=()):
    """Run code in a fresh Python, which cannot import ``blocked``; return its output.

    An error that it raises fails the test, with its traceback.
    """
    __tracebackhide__ = True
    if blocked:
        code = BLOCKER.format(blocked=tuple(blocked)) + code
    done = run_python("-P", *options, "-c", code, path=path)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def streamkit_(*arguments, blocked=("torch", "cupy", "warp")):
    """Run ``streamkit ARGUMENTS`` where ``blocked``, slow to import, cannot be imported."""
    from support.command import COMMAND

    code = BLOCKER.format(blocked=tuple(blocked)) + COMMAND
    return run_python("-P", "-c", code, *arguments, CUDA_VISIBLE_DEVICES="-1", COLUMNS="100")
