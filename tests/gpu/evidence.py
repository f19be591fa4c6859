"""Run the GPU suite and record what it showed: ``docs/evidence/gpu.json``.

python tests/gpu/evidence.py            run the files whose record is stale or absent, record them
python tests/gpu/evidence.py test_a.py  run these files
python tests/gpu/evidence.py --check    say what is recorded of this source, and what is to be run
python tests/gpu/evidence.py --jobs 8   in 8 processes (pytest-xdist), then those marked ``alone``
python tests/gpu/evidence.py --out FILE -- -x    elsewhere, and with options for pytest
python tests/gpu/evidence.py --merge FILE        put such a record into the one of the repository

A file is stale once the meaning of what it reaches has changed: tests/support/meaning.py. What runs
is the checkout around this file, wherever else a streamkit is installed. The check needs the group
``test`` of pyproject.toml, and neither a GPU nor the libraries. Besides 0 it exits with 4 if all is
of this source, and a machine had one GPU or not every consumer, with 3 if files are stale and the
rest is sound, with 1 if a case failed or was skipped for another reason, or a file has no entry,
with 2 if it cannot tell.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tests" / "gpu"
RECORD = ROOT / "docs" / "evidence" / "gpu.json"
HOLDS, SHOWS_NOTHING, CANNOT_TELL, STALE, IN_PART = range(5)  # exit statuses of --check
NEEDS_TWO, NEEDS_CONSUMER = "needs two GPUs", "needs a consumer"
# what came of a case that was skipped for a reason with these words
NEEDS = {
    "one CUDA device": NEEDS_TWO,
    "a consumer that is not installed": NEEDS_CONSUMER,
    "not installed: rmm": NEEDS_CONSUMER,
}
PACKAGES = ("torch", "cupy-cuda12x", "cupy-cuda13x", "warp-lang", "apache-tvm-ffi", "cuda-core",
            "cuda-bindings", "numba-cuda", "jax", "triton", "rmm-cu13", "nvmath-python",
            "cuda-cccl", "cuda-tile", "cvcuda-cu13", "nccl4py", "nvidia-cutlass-dsl",
            "nvidia-dali-cuda130", "pylibcudf-cu13", "pylibraft-cu13", "pynvvideocodec",
            "numpy", "pytest")  # fmt: skip

Record = dict[str, Any]
"""``runs`` by an id; of each of ``files`` by its name the hash of what it ``reaches``, its ``run``,
how many cases ``passed``, the ``others`` by what came of them, and those that an ``earlier`` run of
the same source passed, because ``run`` lacked a GPU or a consumer."""


# -- the suite --------------------------------------------------------------------------------


def files() -> dict[str, Path]:
    """The files of the suite by name: one keeps its record when it moves to another folder."""
    return {path.name: path for path in sorted(SUITE.rglob("test_*.py"), key=lambda one: one.name)}


def meanings() -> dict[str, str]:
    """The files of the suite, each with the hash of what it reaches."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from support import meaning
    finally:
        del sys.path[0]
    meaning.forget()
    paths = {name: path.relative_to(ROOT).as_posix() for name, path in files().items()}
    return {name: meaning.meaning(path) for name, path in paths.items()}


class Cases:
    """A pytest plugin that keeps, by file, its cases and what came of each."""

    def __init__(self) -> None:
        self.collected: dict[str, set[str]] = {}
        self.outcomes: dict[str, dict[str, str]] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            path, _, case = item.nodeid.partition("::")
            self.collected.setdefault(Path(path).name, set()).add(case)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            path, _, case = report.nodeid.partition("::")
            outcome = "failed" if report.failed else report.outcome
            if outcome == "skipped":
                reason = str(report.longrepr)
                outcome = next((NEEDS[words] for words in NEEDS if words in reason), outcome)
            found = self.outcomes.setdefault(Path(path).name, {})
            if found.get(case) != "failed":  # one that crashed its process is tried again
                found[case] = outcome


def run_pytest(cases: Cases, names: list[str], *options: str) -> int:
    import pytest

    suite = [*(str(files()[name]) for name in names), "-q", "--rootdir", str(ROOT)]
    return int(pytest.main([*suite, *options], plugins=[cases]))


# -- the record -------------------------------------------------------------------------------


def read(path: Path) -> Record:
    empty: Record = {"runs": {}, "files": {}}
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty


def write(path: Path, record: Record) -> None:
    """Write a line for each run and for each file."""
    parts = (
        f'"{part}": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in entries.items())
        + "\n}"
        for part, entries in record.items()
    )
    path.write_text("{" + ",\n".join(parts) + "}\n")


def entry(reaches: str, run: str, outcomes: dict[str, str]) -> Record:
    """What is recorded of a file that has just run."""
    others: dict[str, list[str]] = {}
    for case, outcome in sorted(outcomes.items()):
        if outcome != "passed":
            others.setdefault(outcome, []).append(case)
    passed = list(outcomes.values()).count("passed")
    return {"reaches": reaches, "run": run, "passed": passed, "others": others, "earlier": {}}


def together(was: Record, one: Record) -> Record:
    """The later entry, and what the one before shows beyond it: a consumer or a GPU was there."""
    lacked = {case for cases in was["others"].values() for case in cases}
    others, earlier = dict(one["others"]), dict(one["earlier"])
    for need in (NEEDS_TWO, NEEDS_CONSUMER):
        cases = others.pop(need, [])
        shown = [case for case in cases if case not in lacked]
        earlier |= {case: was["earlier"].get(case, was["run"]) for case in shown}
        if left := [case for case in cases if case in lacked]:
            others[need] = left
    passed = one["passed"] + len(earlier) - len(one["earlier"])
    return {**one, "passed": passed, "others": others, "earlier": earlier}


def merged(old: Record, new: Record, now: dict[str, str]) -> Record:
    """Both in one: of each file the new entry, unless only the old one is of this source."""
    found = dict(old["files"])
    for name, one in new["files"].items():
        was = found.get(name)
        if was and was["reaches"] == one["reaches"]:
            found[name] = together(was, one)
        elif not was or was["reaches"] != now.get(name):
            found[name] = one
    found = {name: found[name] for name in sorted(found.keys() & now.keys())}
    used = {run for one in found.values() for run in (one["run"], *one["earlier"].values())}
    runs = {**old["runs"], **new["runs"]}
    return {"runs": {run: runs[run] for run in runs if run in used}, "files": found}


def tally(entries: Any) -> Counter[str]:
    """How many cases ended how."""
    found = Counter[str]()
    for one in entries:
        found["passed"] += one["passed"]
        found.update({outcome: len(cases) for outcome, cases in one["others"].items()})
    return found


def fresh(record: Record, now: dict[str, str]) -> list[str]:
    """The files whose entry is of this source."""
    return [name for name in now if record["files"].get(name, {}).get("reaches") == now[name]]


def share(record: Record, now: dict[str, str]) -> str:
    """How much of a record is of this source."""
    names, entries = fresh(record, now), record["files"]
    count = tally(entries[name] for name in names).total()
    total = tally(entries.values()).total()
    return f"{len(names)} of {len(now)} files, {count:,} of {total:,} cases"


def flaws(record: Record, now: dict[str, str]) -> list[str]:
    """What in a record is failed or unexplained, whatever its source."""
    found = [f"{name} has no entry" for name in now if name not in record["files"]]
    for name, one in record["files"].items():
        has_two = len(record["runs"][one["run"]]["devices"]) > 1
        allowed = {NEEDS_CONSUMER} if has_two else {NEEDS_CONSUMER, NEEDS_TWO}
        for outcome in one["others"].keys() - allowed:
            found += [f"{name}::{case} {outcome}" for case in one["others"][outcome]]
    return sorted(found)


def check() -> int:
    try:
        now = meanings()
    except ModuleNotFoundError as missing:
        print(f"the record cannot be compared: {missing}. Run: pip install --group test")
        return CANNOT_TELL
    record = read(RECORD)
    print(f"{share(record, now)} are of this source")
    if stale := [name for name in now if name not in fresh(record, now)]:
        print(f"{len(stale)} are stale or absent; to run them:")
        print(f"python tests/gpu/evidence.py {' '.join(stale)}")
    counted = tally(record["files"].values())
    lacking = [f"{counted[need]} {need}" for need in (NEEDS_TWO, NEEDS_CONSUMER) if counted[need]]
    print(f"{counted['passed']:,} cases passed", *lacking, sep=", ")
    if bad := flaws(record, now):
        print(f"{len(bad)} failed or unexplained:", *bad[:3], sep="\n")
        return SHOWS_NOTHING
    return STALE if stale else IN_PART if lacking else HOLDS


# -- a run ------------------------------------------------------------------------------------


def devices() -> tuple[list[str], str]:
    from cuda.bindings import driver

    driver.cuInit(0)
    _, count = driver.cuDeviceGetCount()
    names = [
        driver.cuDeviceGetName(128, index)[1].partition(b"\0")[0].decode() for index in range(count)
    ]
    _, version = driver.cuDriverGetVersion()
    return names, f"{version // 1000}.{version % 1000 // 10}"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def commit() -> str:
    """The commit that is checked out; a copy of the tree on another machine may not know it."""
    ask = ["git", "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return ""


def identity(made: Record) -> str:
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()[:8]


def run(chosen: argparse.Namespace, names: list[str], options: list[str]) -> int:
    """Run files, and record those of which each case ran."""
    now, cases = meanings(), Cases()
    passes = [["-m", "gpu"]]
    if chosen.jobs > 1:
        parallel = ["-n", str(chosen.jobs), "--dist", "loadfile"]
        passes = [["-m", "gpu and not alone", *parallel], ["-m", "gpu and alone"]]
    statuses = [run_pytest(cases, names, *part, *options) for part in passes]
    if meanings() != now:
        print("the source has changed since the suite began: nothing is recorded")
        return 1
    whole = Cases()
    with contextlib.redirect_stdout(io.StringIO()):
        run_pytest(whole, names, "--collect-only")
    gpus, cuda = devices()
    made = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "commit": chosen.commit.strip(),
            "devices": gpus, "cuda_driver": cuda, "versions": versions()}  # fmt: skip
    made_id = identity(made)
    entries = {}
    for name in names:
        outcomes = cases.outcomes.get(name, {})
        if outcomes and outcomes.keys() == whole.collected.get(name):
            entries[name] = entry(now[name], made_id, outcomes)
        else:
            print(f"{name} is not recorded: {len(outcomes)} of its cases ran, and that is not each")
    write(chosen.out, merged(read(chosen.out), {"runs": {made_id: made}, "files": entries}, now))
    ended = Counter(one for outcomes in cases.outcomes.values() for one in outcomes.values())
    print(f"{chosen.out}: {dict(ended)} on {gpus}")
    return next((status for status in statuses if status not in (0, 5)), 0)  # 5: nothing was chosen


def use_the_checkout() -> None:
    """Have this process and those it starts import the streamkit beside this suite."""
    sys.path.insert(0, str(ROOT))
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def main(arguments: list[str] | None = None) -> int:
    given, options = list(sys.argv[1:] if arguments is None else arguments), []
    if "--" in given:
        place = given.index("--")
        given, options = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="does the record hold?")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="add a record made elsewhere")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--out", type=Path, default=RECORD, help="where to write the record")
    parser.add_argument("--commit", default=commit(), help="whose source it is, where git is not")
    parser.add_argument("files", nargs="*", help="those to run; options for pytest follow --")
    chosen = parser.parse_args(given)
    use_the_checkout()
    if chosen.check:
        return check()
    now = meanings()
    if chosen.merge:
        record = merged(read(chosen.out), read(chosen.merge), now)
        write(chosen.out, record)
        print(f"{share(record, now)} are of this source")
        return 0
    names = [Path(name).name for name in chosen.files]
    if unknown := [name for name in names if name not in now]:
        parser.error(f"no file of the suite: {', '.join(unknown)}")
    is_fresh = fresh(read(RECORD), now)
    names = names or [name for name in now if name not in is_fresh]
    if not names:
        print("each file's record is of this source")
        return 0
    return run(chosen, names, options)


if __name__ == "__main__":
    sys.exit(main())
