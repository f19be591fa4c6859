"""Run other projects' suites beside StreamKit, by hand: what differs is explained, or is a fault.

python tests/gpu/peers/run.py --out peers.json              Warp's and numba-cuda's, as installed
python tests/gpu/peers/run.py --out peers.json warp         one of them, or files: warp/test_array
python tests/gpu/peers/run.py --out peers.json --seconds 540    as much as fits; again goes on

Each file runs in five processes at the same time, one for each mode, because what else a machine
does changes what a race does: as it is; on a non-blocking stream of torch's, which is the control;
in a scope of StreamKit's on such a stream; inside ``audit()``; inside ``races()``. The table has
the tests that end otherwise than as they are, or that ``races`` accuses, with the reason that
``reasons.toml`` gives. A test in a scope that ends so on the control too is not among them. A file
that reaches its limit in any mode is named, and left. The exit status is 1 if a difference has no
reason, and 3 if files are left.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__)
ROOT = HERE.parents[3]
PACKAGES = {"warp": "warp.tests", "numba": "numba.cuda.tests"}
AS_IS, CONTROL, SCOPE, AUDIT, RACES = MODES = ("as it is", "control", "scope", "audit", "races")


# -- in a process of its own: one file in one mode --------------------------------------------


@contextlib.contextmanager
def on_a_stream_without_streamkit():
    """Put torch, CuPy and Warp, as far as they are there, on a new non-blocking stream."""
    import torch

    stream = torch.cuda.Stream()
    with contextlib.ExitStack() as blocks:
        blocks.enter_context(torch.cuda.stream(stream))
        if cupy := sys.modules.get("cupy"):
            blocks.enter_context(cupy.cuda.ExternalStream(stream.cuda_stream))
        if warp := sys.modules.get("warp"):
            blocks.enter_context(warp.ScopedStream(warp.stream_from_torch(stream)))
        yield


def block_of(mode):
    """Return the block in which each test of a mode runs."""
    if mode == AS_IS:
        return contextlib.nullcontext()
    if mode == CONTROL:
        return on_a_stream_without_streamkit()
    import torch

    import streamkit as sk

    if mode == SCOPE:
        return sk.use(torch.cuda.Stream())
    return sk.audit() if mode == AUDIT else sk.races()


class Plugin:
    """Runs each test inside the block, and writes a line when it begins and when it has ended."""

    def __init__(self, mode, told):
        self.mode, self.told, self.accused = mode, told, ""

    def tell(self, *words):
        self.told.write(json.dumps(words) + "\n")
        self.told.flush()  # a crash is to leave the name of its test

    def pytest_runtest_logstart(self, nodeid):
        self.accused = ""
        self.tell(nodeid.partition("::")[2], "began")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        """Run the test inside the block, and note the races that it is accused of."""
        with block_of(self.mode) as found:
            result = yield
        if self.mode == RACES and (certain := [race for race in found.races if race.certain]):
            self.accused = f"; {len(certain)} races: {certain[0]}"
        return result

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None) if report.failed else None
            said = f"{report.outcome} {crash.message if crash else ''}".split("\n")[0].strip()
            self.tell(report.nodeid.partition("::")[2], (said + self.accused)[:400])


def run_here(mode, file, told):
    suite()  # imports the packages, of which pytest would else import parts by their paths
    plugin = Plugin(mode, told.open("w", encoding="utf-8"))
    options = ("-q", "--tb=short", "-W", "ignore", "--import-mode=importlib")
    return pytest.main([*options, f"--rootdir={told.parent}", file], plugins=[plugin])


# -- all modes of a file, beside one another --------------------------------------------------


def ends_of(told, status):
    """Return how each test ended; one that had begun ended with its process."""
    found = {}
    for line in told.read_text(encoding="utf-8").splitlines() if told.exists() else ():
        name, how = json.loads(line)
        if how != "began" or name not in found:
            found[name] = how
    return {
        name: f"process ended: {status}" if how == "began" else how for name, how in found.items()
    }


def run_file(file, limit, end):
    """Return by mode how each test of a file ended; None if one mode reached a limit."""
    if time.monotonic() + limit > end:
        return None
    found, started, late = {}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            told = Path(folder, mode)
            command = [sys.executable, "-X", "faulthandler", HERE, "--run", mode, file, told]
            paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            started[mode] = told, subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": paths}, cwd=folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        until = time.monotonic() + limit
        for mode, (told, process) in started.items():
            try:
                status = process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
                late.append(mode)
            found[mode] = ends_of(told, status)
    for mode in late:
        print(f"{file} reached {limit:g} s in {mode}, in {[*found[mode]][-1:]}", flush=True)
    return None if late else found


def end_of(found, mode, test):
    """Return how a test ended, without the words of its error; None for a later one of a crash."""
    ends = found[mode]
    if test not in ends and any(how.startswith("process") for how in ends.values()):
        return None
    return re.split(r"[:;]", ends.get(test, "not run"))[0]


def differences(name, found, reasons):
    """Return a row for each test and mode that ends otherwise than the test as it is."""
    rows = []
    for test in sorted({test for ends in found.values() for test in ends}):
        full = f"{name}::{test}"
        as_is, control, *others = (end_of(found, mode, test) for mode in MODES)
        for mode, how in zip(MODES[2:], others, strict=True):
            said = found[mode].get(test, "not run")
            is_accused = " races: " in said
            same = (as_is, control) if mode == SCOPE else (as_is,)
            if None in (as_is, how) or (how in same and not is_accused):
                continue
            why = (why for test_is, modes, why in reasons
                   if fnmatch.fnmatch(full, test_is) and mode in modes)  # fmt: skip
            row = {"test": full, "mode": mode, "as it is": as_is, "control": control}
            rows.append({**row, "seen": said, "reason": next(why, None)})
    return rows


def suite():
    """Return the files of the suites that are installed, by name."""
    found = {}
    for library, package in PACKAGES.items():
        with contextlib.suppress(ImportError):
            for folder in importlib.import_module(package).__path__:
                for file in sorted(Path(folder).rglob("test_*.py")):
                    found[f"{library}/{file.relative_to(folder).with_suffix('')}"] = file
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="a library, or files by library and name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a file")
    parser.add_argument("--jobs", type=int, default=1, help="files at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no file begins")
    asked, end = parser.parse_args(), time.monotonic()
    end += asked.seconds
    reasons = tomllib.loads(HERE.with_name("reasons.toml").read_text(encoding="utf-8"))["reason"]
    reasons = [(one["test"], one["modes"], one["why"]) for one in reasons]
    table = json.loads(asked.out.read_text()) if asked.out.exists() else {"files": {}, "rows": []}
    wanted = {name: file for name, file in suite().items()
              if not asked.names or {name, name.partition("/")[0]} & {*asked.names}}  # fmt: skip
    names = [name for name in wanted if name not in table["files"]]
    run = partial(run_file, limit=asked.limit, end=end)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for name, found in zip(names, pool.map(run, map(wanted.get, names)), strict=True):
            if found is not None:
                table["files"][name] = {mode: len(ends) for mode, ends in found.items()}
                table["rows"] += differences(name, found, reasons)
                asked.out.write_text(json.dumps(table, indent=1))
    faults = [row for row in table["rows"] if row["reason"] is None]
    for row in faults:
        print(f"{row['test']} in {row['mode']}: {row['seen']} (as it is: {row['as it is']})")
    empty = [name for name, counts in table["files"].items() if not counts[AS_IS]]
    print("no test could be collected from", ", ".join(empty) or "none")
    left = len(wanted.keys() - table["files"].keys())
    tests = sum(counts[AS_IS] for counts in table["files"].values())
    print(f"{tests} tests in {len(table['files'])} files: {len(table['rows'])} differences, "
          f"{len(faults)} without a reason; {left} files left")  # fmt: skip
    return 1 if faults else 3 if left else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        sys.exit(run_here(*sys.argv[2:4], Path(sys.argv[4])))
    sys.exit(main())
