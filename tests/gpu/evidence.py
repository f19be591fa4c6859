"""Run the GPU suite and record what it showed: ``docs/evidence/gpu.json``.

python tests/gpu/evidence.py            run the files whose record is stale or absent, record them
python tests/gpu/evidence.py test_a.py  run these files; --all runs each
python tests/gpu/evidence.py --check    say what is recorded of this source, and what is to be run
python tests/gpu/evidence.py --jobs 8   in 8 processes (pytest-xdist), then those marked ``alone``
python tests/gpu/evidence.py --out FILE -- -x    elsewhere, and with options for pytest
python tests/gpu/evidence.py --merge FILE        put such a record into the one of the repository

A file is stale once the meaning of what it reaches has changed: tests/support/meaning.py. What runs
is the checkout around this file, wherever else a streamkit is installed. The check needs no GPU,
but the libraries: it asks pytest for the cases. Besides 0 it exits with 4 if all is of this source,
and a machine had one GPU or not every consumer, with 3 if files are stale and the rest is sound,
with 1 if a case failed or an entry cannot be explained, with 2 if it cannot tell.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUITE = "tests/gpu"
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
            "cupti-python", "numpy", "pytest")  # fmt: skip

EVERYTHING = "Use the Python of a lane with all libraries: tox -e 3.13-all-cu13-nogpu-emulated."

Record = dict[str, Any]


# -- the source -------------------------------------------------------------------------------


def meanings() -> dict[str, str]:
    """The files of the suite, each with the hash of what it reaches."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from support import meaning
    finally:
        del sys.path[0]
    meaning.forget()
    names = sorted(path.name for path in (ROOT / SUITE).glob("test_*.py"))
    return {name: meaning.meaning(f"{SUITE}/{name}") for name in names}


def name_of(nodeid: str) -> str:
    return nodeid.removeprefix(f"{SUITE}/")


class Collector:
    """A pytest plugin that keeps the cases, what came of each, and the files without any."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.left_out: list[str] = []
        self.cases: dict[str, str] = {}

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.left_out.append(name_of(report.nodeid))

    def pytest_collection_finish(self, session: Any) -> None:
        self.collected.update(name_of(item.nodeid) for item in session.items)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            name = name_of(report.nodeid)
            outcome = "failed" if report.failed else report.outcome
            if outcome == "skipped":
                reason = str(report.longrepr)
                outcome = next((NEEDS[words] for words in NEEDS if words in reason), outcome)
            if self.cases.get(name) != "failed":  # one that crashed its process is tried again
                self.cases[name] = outcome


def run_pytest(collector: Collector, files: list[str], *options: str) -> int:
    import pytest

    suite = [*(str(ROOT / SUITE / name) for name in files), "-q", "--rootdir", str(ROOT)]
    return int(pytest.main([*suite, *options], plugins=[collector]))


def collect(files: list[str]) -> tuple[Collector, str]:
    """The cases of files, and what pytest said if it could not collect each."""
    collector, said = Collector(), io.StringIO()
    if not files:
        return collector, ""
    with contextlib.redirect_stdout(said):
        status = run_pytest(collector, files, "--collect-only")
    return collector, said.getvalue()[-2000:] if status or collector.left_out else ""


def cases_of(file: str, cases: Any) -> set[str]:
    return {case for case in cases if case.partition("::")[0] == file}


# -- the record -------------------------------------------------------------------------------


def read(path: Path = RECORD) -> Record:
    if not path.exists():
        return {"runs": [], "files": {}}
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def outcomes(record: Record) -> dict[str, str]:
    """Each case with what came of it."""
    return {case: found for one in record["files"].values() for case, found in one["cases"].items()}


def merged(old: Record, new: Record, now: dict[str, str]) -> Record:
    """Both in one: of each file the new entry, unless only the old one is of this source.

    What the old entry shows beyond the new one, of the same source, stays: a consumer was there.
    """
    runs = [*old["runs"], *new["runs"]]
    files = {}
    for name in sorted({*old["files"], *new["files"]} & now.keys()):
        was, one = old["files"].get(name), new["files"].get(name)
        if one is not None:
            one = {**one, "run": one["run"] + len(old["runs"]), "cases": dict(one["cases"])}
            earlier = {case: run + len(old["runs"]) for case, run in one["earlier"].items()}
            if was is not None and was["hash"] == one["hash"]:
                for case, found in one["cases"].items():
                    if found in (NEEDS_TWO, NEEDS_CONSUMER) and was["cases"].get(case) == "passed":
                        one["cases"][case] = "passed"
                        earlier[case] = was["earlier"].get(case, was["run"])
            one["earlier"] = earlier
        files[name] = (
            was if one is None or (was and one["hash"] != now[name] == was["hash"]) else one
        )
    used = sorted({run for one in files.values() for run in (one["run"], *one["earlier"].values())})
    for name, one in files.items():
        earlier = {case: used.index(run) for case, run in one["earlier"].items()}
        files[name] = {**one, "run": used.index(one["run"]), "earlier": earlier}
    return {"runs": [runs[run] for run in used], "files": files}


def first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def is_fresh(record: Record, name: str, now: dict[str, str]) -> bool:
    return name in record["files"] and record["files"][name]["hash"] == now[name]


def share(record: Record, now: dict[str, str]) -> str:
    """How much of a record is of this source."""
    fresh = [name for name in now if is_fresh(record, name, now)]
    count = sum(len(record["files"][name]["cases"]) for name in fresh)
    return f"{len(fresh)} of {len(now)} files, {count:,} of {len(outcomes(record)):,} cases"


def flaws(record: Record, now: dict[str, str]) -> list[str]:
    """What in a record is failed or unexplained, whatever its source."""
    found = [f"{name} has no entry" for name in now if name not in record["files"]]
    for name in now.keys() & record["files"].keys():
        one = record["files"][name]
        if not one["cases"]:
            found.append(f"{name} has no case")
        for case, outcome in one["cases"].items():
            allowed = {"passed", NEEDS_CONSUMER}
            if len(record["runs"][one["earlier"].get(case, one["run"])]["devices"]) == 1:
                allowed.add(NEEDS_TWO)
            if outcome not in allowed:
                found.append(f"{case} {outcome}")
    return sorted(found)


def check() -> int:
    record = read()
    try:
        now = meanings()
        fresh = [name for name in now if is_fresh(record, name, now)]
        collector, said = collect(fresh)
    except ModuleNotFoundError as missing:
        print(f"the record cannot be compared: {missing}. {EVERYTHING}")
        return CANNOT_TELL
    if said:
        left_out = first(collector.left_out)
        print(f"the record cannot be compared: not collected here: {left_out}. {EVERYTHING}")
        print(said)
        return CANNOT_TELL
    print(f"{share(record, now)} are of this source")
    bad = flaws(record, now)
    for name in fresh:
        if wrong := sorted(
            cases_of(name, collector.collected) ^ record["files"][name]["cases"].keys()
        ):
            bad.append(f"the cases of {name} are not those of its record: {first(wrong)}")
    if stale := [name for name in now if name not in fresh]:
        print(f"{len(stale)} are stale or absent; to run them:")
        print(f"python {SUITE}/evidence.py {' '.join(stale)}")
    counted = Counter(outcomes(record).values())
    lacking = [f"{counted[need]} {need}" for need in (NEEDS_TWO, NEEDS_CONSUMER) if counted[need]]
    print(f"{counted['passed']:,} cases passed", *lacking, sep=", ")
    if bad:
        print(f"{len(bad)} failed or unexplained: {first(bad)}")
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


def run(out: Path, files: list[str], jobs: int, options: list[str]) -> int:
    """Run files, and record those of which each case ran."""
    now, collector = meanings(), Collector()
    passes = [["-m", "gpu"]]
    if jobs > 1:
        parallel = ["-n", str(jobs), "--dist", "loadfile"]
        passes = [["-m", "gpu and not alone", *parallel], ["-m", "gpu and alone"]]
    statuses = [run_pytest(collector, files, *chosen, *options) for chosen in passes]
    if meanings() != now:
        print("the source has changed since the suite began: nothing is recorded")
        return 1
    whole, _ = collect(files)
    names, cuda = devices()
    made = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "devices": names,
            "cuda_driver": cuda, "versions": versions()}  # fmt: skip
    entries = {}
    for name in files:
        cases = cases_of(name, collector.cases)
        if cases and cases == cases_of(name, whole.collected):
            found = {case: collector.cases[case] for case in sorted(cases)}
            entries[name] = {"hash": now[name], "run": 0, "earlier": {}, "cases": found}
        else:
            print(f"{name} is not recorded: {len(cases)} of its cases ran, and that is not each")
    write(out, merged(read(out), {"runs": [made], "files": entries}, now))
    print(f"{out}: {dict(Counter(collector.cases.values()))} on {names}")
    return next((status for status in statuses if status not in (0, 5)), 0)  # 5: nothing was chosen


def use_the_checkout() -> None:
    """Have this process and those it starts import the streamkit beside this suite."""
    sys.path.insert(0, str(ROOT))
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    found = importlib.util.find_spec("streamkit")  # pytest warns of a plugin that is imported
    if found is None or Path(found.origin or "").resolve().parent != ROOT / "streamkit":
        where = found.origin if found else "nowhere"
        sys.exit(f"this is the suite of {ROOT}, and streamkit comes from {where}")


def main(arguments: list[str] | None = None) -> int:
    given, options = list(sys.argv[1:] if arguments is None else arguments), []
    if "--" in given:
        place = given.index("--")
        given, options = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="does the record hold?")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="add a record made elsewhere")
    parser.add_argument("--all", action="store_true", help="run each file")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--out", type=Path, default=RECORD, help="where to write the record")
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
    files = [Path(name).name for name in chosen.files]
    if unknown := [name for name in files if name not in now]:
        parser.error(f"no file of the suite: {first(unknown)}")
    record = read()
    files = files or [name for name in now if chosen.all or not is_fresh(record, name, now)]
    if not files:
        print("each file's record is of this source: --all runs them again")
        return 0
    return run(chosen.out, files, chosen.jobs, options)


if __name__ == "__main__":
    sys.exit(main())
