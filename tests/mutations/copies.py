"""Copies of the tree, in which a fault is tried, and one run of pytest in a copy."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TIERS = ("unit", "nogpu", "emulated")
JUNK = shutil.ignore_patterns("__pycache__", ".*", "_build")
NEEDED = (".ci", "streamkit", "tests", "docs", "examples")  # and the files beside them
LIMIT = 120.0
"""Seconds that the tests of one fault may take."""

PASSED, FAILED = 0, 1  # pytest's exit statuses; others mean that it could not, or had to end

_DRIVER, _COMPILER = "driver", "cc"  # in a copy: see compile_once
_times = itertools.count(1)


def tier_of(test: str) -> str:
    return test.split("/")[1]


def copy_tree(root: Path, target: Path) -> None:
    for path in root.iterdir():
        if path.name in NEEDED:
            shutil.copytree(path, target / path.name, ignore=JUNK)
        elif path.is_file() and path.name != ".git":
            shutil.copy(path, target / path.name)


def write(path: Path, source: str) -> None:
    """Write a module at a time of its own, or two within a second would share a .pyc."""
    path.write_text(source)
    when = next(_times)
    os.utime(path, (when, when))


def compile_once(tree: Path) -> None:
    """Put a compiler into the copy that hands out the emulated driver, which nobody changes."""
    built, compiler = tree / _DRIVER, tree / _COMPILER
    built.mkdir()
    program = (
        "import pathlib, sys; from emulator import build; "
        "print(build.build(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(built)],
        env={**os.environ, "PYTHONPATH": str(tree / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:  # else each run tries, and says why it cannot
        library = shlex.quote(done.stdout.strip())
        compiler.write_text(
            f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp {library} "$2"\n'
        )
        compiler.chmod(0o755)


def environment(tree: Path, tier: str) -> dict[str, str]:
    """The copy's streamkit is found before an installed one, and what a test needs is there."""
    without = {
        "TOX_ENV_NAME",  # in a lane of tox the tests refuse anything but the wheel
        "STREAMKIT_SANITIZER",
    }
    found = {name: value for name, value in os.environ.items() if name not in without}
    found["PYTHONPATH"] = os.pathsep.join([str(tree), str(tree / "tests")])
    found["PYTEST_TIMEOUT"] = str(LIMIT / 4)
    found["STREAMKIT_REQUIRE"] = "unit" if tier == "unit" else f"all-{tier}"
    if tier != "emulated":
        found["CUDA_VISIBLE_DEVICES"] = "-1"
    elif (tree / _COMPILER).exists():
        found["CC"] = str(tree / _COMPILER)
    return found


def run_tests(tree: Path, tests: Iterable[str]) -> tuple[int | None, str]:
    """pytest's exit status and what it said; None if the time was over."""
    tests = list(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "no:streamkit"]  # our own plugin, with a fault in it, could skip tests
    log = tree / "pytest.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=tree,
            env=environment(tree, tier_of(tests[0])),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group, which can be ended with its children
        )
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, log.read_text(errors="replace")
