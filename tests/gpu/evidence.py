"""Run the GPU suite and record what it showed: ``docs/evidence/gpu.json``.

python tests/gpu/evidence.py            run, and write the record
python tests/gpu/evidence.py --check    exit 0 only if every case of this source has passed
python tests/gpu/evidence.py --jobs 8   in 8 processes (pytest-xdist), then those marked ``alone``
python tests/gpu/evidence.py --out FILE -- -k pairs    elsewhere, and with options for pytest

What runs is the checkout around this file, wherever else a streamkit is installed. The check needs
no GPU, but the libraries: it asks pytest for the cases. Besides 0 it exits with 4 if the record
holds for all that its machine could run, which had one GPU or not every consumer, with 3 if it is
sound and of another source, with 1 if it shows nothing, with 2 if it cannot tell.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SUITE = "tests/gpu"
RECORD = ROOT / "docs" / "evidence" / "gpu.json"
HOLDS, SHOWS_NOTHING, CANNOT_TELL, OTHER_SOURCE, IN_PART = range(5)  # exit statuses of --check
NEEDS_TWO, NEEDS_CONSUMER = "needs two GPUs", "needs a consumer"
# what came of a case that was skipped for a reason with these words
NEEDS = {
    "one CUDA device": NEEDS_TWO,
    "a consumer that is not installed": NEEDS_CONSUMER,
    "not installed: rmm": NEEDS_CONSUMER,
}
OUTCOMES = ("passed", "failed", "skipped", NEEDS_TWO, NEEDS_CONSUMER)
# What the suite reads; of the pages, the code that it runs. tests/unit/test_evidence.py compares.
READ = ("streamkit", SUITE, "tests/support", "tests/plugin", "tests/conftest.py", "pyproject.toml",
        "examples")  # fmt: skip
NOT_READ = ("tests/support/emulated", "tests/plugin/build")
PACKAGES = ("torch", "cupy-cuda12x", "cupy-cuda13x", "warp-lang", "apache-tvm-ffi", "cuda-core",
            "cuda-bindings", "numba-cuda", "jax", "triton", "rmm-cu13", "nvmath-python",
            "cuda-cccl", "cuda-tile", "cvcuda-cu13", "nccl4py", "nvidia-cutlass-dsl",
            "nvidia-dali-cuda130", "pylibcudf-cu13", "pylibraft-cu13", "pynvvideocodec",
            "cupti-python", "numpy", "pytest")  # fmt: skip


def files() -> Iterator[Path]:
    """Every file that the suite reads, but for the pages."""
    left_out = [ROOT / name for name in NOT_READ]
    for name in READ:
        for path in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            derived = {"__pycache__", ".pytest_cache"}.intersection(path.relative_to(ROOT).parts)
            if path.is_file() and not derived and not any(map(path.is_relative_to, left_out)):
                yield path


def code_of_pages() -> Iterator[tuple[Path, str]]:
    """The pages with code that the suite runs, and that code: prose may change without a GPU."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from support.documents import PAGES, blocks
    finally:
        del sys.path[0]
    for path in PAGES:
        if code := [block for block in blocks(path.read_text(encoding="utf-8")) if block.runs(99)]:
            told = [(block.language, block.code, block.marks, block.prints) for block in code]
            yield path, repr(told)


def source_hash() -> str:
    """Hash the names and bytes of what the suite reads: the package, the tests, the pages' code."""
    digest = hashlib.sha256()
    for path in files():
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    for path, code in code_of_pages():
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0{code}\0".encode())
    return digest.hexdigest()


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


def run_pytest(collector: Collector, *options: str) -> int:
    import pytest

    suite = [str(ROOT / SUITE), "-q", "--rootdir", str(ROOT)]
    return int(pytest.main([*suite, *options], plugins=[collector]))


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


def first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def flaw_of(record: dict[str, Any]) -> str | None:
    """Why a record shows nothing, whatever its source; None if it does."""
    if record.get("options"):
        return f"it is of a run with the options {' '.join(record['options'])}"
    if not record["cases"]:
        return "it has no case"
    allowed = {"passed", NEEDS_CONSUMER}
    if len(record["devices"]) == 1:
        allowed.add(NEEDS_TWO)
    if bad := [name for name, outcome in record["cases"].items() if outcome not in allowed]:
        return f"{len(bad)} of {len(record['cases'])} cases did not pass: {first(bad)}"
    return None


def check() -> int:
    if not RECORD.exists():
        print(f"no record at {RECORD.relative_to(ROOT)}")
        return SHOWS_NOTHING
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    told = f"the record of {record['date']} on {len(record['devices'])} GPUs"
    if flaw := flaw_of(record):
        print(f"{told} shows nothing: {flaw}")
        return SHOWS_NOTHING
    try:
        return compare(record, told)
    except ModuleNotFoundError as missing:
        print(f"{told} cannot be compared: {missing}")
        return CANNOT_TELL


def compare(record: dict[str, Any], told: str) -> int:
    """Whether it is of the source and of the cases that are here."""
    if record["source"] != source_hash():
        print(f"{told} is of another source: run the suite again")
        return OTHER_SOURCE
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said):
        status = run_pytest(collector, "--collect-only")
    if status or collector.left_out:
        print(f"{told} cannot be compared: not collected here: {first(collector.left_out)}")
        print(said.getvalue()[-2000:])
        return CANNOT_TELL
    if wrong := sorted(collector.collected ^ record["cases"].keys()):
        print(f"{told} shows nothing: its cases are not those of the suite: {first(wrong)}")
        return SHOWS_NOTHING
    outcomes = list(record["cases"].values())
    passed = outcomes.count("passed")
    if passed == len(outcomes):
        print(f"{told} is of this source: {passed} cases, all passed")
        return HOLDS
    skipped = [
        f"{outcomes.count(need)} {need}" for need in (NEEDS_TWO, NEEDS_CONSUMER) if need in outcomes
    ]
    print(f"{told} is of this source: {passed} cases passed, none failed, {', '.join(skipped)}")
    return IN_PART


def run(out: Path, jobs: int, options: list[str]) -> int:
    collector = Collector()
    source = source_hash()
    passes = [["-m", "gpu"]]
    if jobs > 1:
        parallel = ["-n", str(jobs), "--dist", "loadfile"]
        passes = [["-m", "gpu and not alone", *parallel], ["-m", "gpu and alone"]]
    statuses = [run_pytest(collector, *chosen, *options) for chosen in passes]
    if source_hash() != source:
        print("the source has changed since the suite began: nothing is recorded")
        return 1
    names, cuda = devices()
    outcomes = list(collector.cases.values())
    record = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "source": source,
        "options": options,
        "devices": names,
        "cuda_driver": cuda,
        "versions": versions(),
        "tally": {kind: outcomes.count(kind) for kind in OUTCOMES},
        "cases": dict(sorted(collector.cases.items())),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{out}: {record['tally']} on {names}")
    return max(statuses)


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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="does the record hold?")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--out", type=Path, default=RECORD, help="where to write the record")
    parser.add_argument("options", nargs="*", help="options for pytest, after --")
    given = parser.parse_args(arguments)
    if given.options and given.out.resolve() == RECORD:
        parser.error("the record is of the whole suite: with options, name another file by --out")
    use_the_checkout()
    return check() if given.check else run(given.out, given.jobs, given.options)


if __name__ == "__main__":
    sys.exit(main())
