"""Programs that run in a Python of their own, to see what an import or a missing library does."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import streamkit
from streamkit._queues import registry  # its rows name the libraries

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

ROOTS = tuple(dict.fromkeys(row.root for row in registry.LIBRARIES))
"""The root package of every library that StreamKit knows."""
LOOK = """
import sys
import streamkit as sk
from streamkit._queues import loaded_libraries, registry  # the public calls need a device

def raised(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError("no error")
"""
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


def run_python(*arguments, path=(), folder=".", **variables):
    """Run Python in such an ``environment``; return how it ended."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(path=path, **variables),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def run_program(program):
    """Run a program, indented as in a test, without its warnings; return how it ended."""
    return run_python("-W", "ignore", "-c", textwrap.dedent(program))


FORK_SERVER = Path(__file__).with_name("fork_server.py")


@functools.cache
def _server(options, loaded, _safe_path):
    """Start a Python that forks; return how to have it run a program."""
    folder = tempfile.TemporaryDirectory()
    server = subprocess.Popen(
        [sys.executable, *options, FORK_SERVER, folder.name, *loaded],
        env=environment(OPENBLAS_NUM_THREADS="1"),  # NumPy's threads are in no fork
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    process = os.getpid()

    @atexit.register
    def stop():
        if os.getpid() == process:  # and not a fork of it, which a test has made
            server.kill()
            server.communicate()
            folder.cleanup()

    def run(program):
        server.stdin.write(json.dumps([[program], 1]) + "\n")
        server.stdin.flush()
        ((status, out, err),) = json.loads(server.stdout.readline())
        return subprocess.CompletedProcess([], status, out, err)

    return run


def forked(code, *arguments, loaded, blocked=(), path=(), folder=".", options=("-P",), **variables):
    """Run code as ``python -c`` does, in a process that has imported ``loaded`` already.

    That takes a tenth of the time that a Python of its own takes, which runs the code where there
    are no forks.
    """
    if blocked:
        code = BLOCKER.format(blocked=tuple(blocked)) + code
    if not hasattr(os, "fork"):
        return run_python(*options, "-c", code, *arguments, path=path, folder=folder, **variables)
    loaded = tuple(one for one in loaded if one.partition(".")[0] not in blocked)
    run = _server(options, loaded, os.environ.get("PYTHONSAFEPATH"))
    return run({
        "code": code,
        "arguments": [*map(str, arguments)],
        "path": [*map(str, path)],
        "folder": str(Path(folder).resolve()),
        "environment": environment(path=path, **variables),
    })  # fmt: skip


def python(code, *, blocked=(), path=(), options=(), loaded=()):
    """Run code in a Python which cannot import ``blocked``; return its output.

    It is a fresh one, or a fork of one that has imported what is ``loaded``. An error that the code
    raises fails the test, with its traceback.
    """
    __tracebackhide__ = True
    options = ("-P", *options)
    if loaded:
        done = forked(code, blocked=blocked, path=path, options=options, loaded=loaded)
    else:
        code = BLOCKER.format(blocked=tuple(blocked)) + code if blocked else code
        done = run_python(*options, "-c", code, path=path)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def streamkit_(*arguments, blocked=("torch", "cupy", "warp")):
    """Run ``streamkit ARGUMENTS`` where ``blocked``, slow to import, cannot be imported."""
    from support.command import COMMAND, OF_COMMANDS

    variables = {"CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "100"}
    return forked(COMMAND, *arguments, loaded=OF_COMMANDS, blocked=blocked, **variables)
