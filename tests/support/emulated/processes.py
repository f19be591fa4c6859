"""Programs in a process of their own, where the emulated driver starts afresh."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def start(program, **environment):
    """Run a program in a process of its own, with the driver in another mode; return its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(program, **environment):
    """Run a program as ``start``, which must succeed; return the words of its output."""
    done = start(program, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
