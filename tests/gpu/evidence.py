"""Run the GPU suite and record what it showed: ``docs/evidence/gpu.json``.

python tests/gpu/evidence.py            run, and write the record
python tests/gpu/evidence.py --check    exit 0 only if the record is of this source
python tests/gpu/evidence.py --jobs 8   in 8 processes (pytest-xdist), then those marked ``alone``
python tests/gpu/evidence.py --out FILE -- -k pairs    elsewhere, and with options for pytest
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "evidence" / "gpu.json"
PACKAGES = ("torch", "cupy-cuda12x", "cupy-cuda13x", "warp-lang", "cuda-core", "cuda-bindings",
            "numba-cuda", "jax", "triton", "cupti-python", "numpy", "pytest")  # fmt: skip


def source_hash() -> str:
    """Hash the names and bytes of every file of the package and of this suite."""
    digest = hashlib.sha256()
    for folder in ("streamkit", "tests/gpu", "tests/support/gpu"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


class Collector:
    """A pytest plugin that keeps each case's outcome."""

    def __init__(self) -> None:
        self.cases: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.removeprefix("tests/gpu/")
            if self.cases.get(name) != "failed":  # one that crashed its process is tried again
                self.cases[name] = "failed" if report.failed else report.outcome


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


def check() -> int:
    if not RECORD.exists():
        print(f"no record at {RECORD.relative_to(ROOT)}")
        return 1
    record = json.loads(RECORD.read_text())
    if record["source"] != source_hash():
        print(f"the record of {record['date']} is of another source: run the suite again")
        return 1
    print(f"the record of {record['date']} on {record['devices']} is of this source")
    return 0


def run(out: Path, jobs: int, options: list[str]) -> int:
    import pytest

    collector = Collector()
    source = source_hash()
    passes = [["-m", "gpu"]]
    if jobs > 1:
        parallel = ["-n", str(jobs), "--dist", "loadfile"]
        passes = [["-m", "gpu and not alone", *parallel], ["-m", "gpu and alone"]]
    statuses = [
        pytest.main(
            [str(ROOT / "tests" / "gpu"), *chosen, "-q", "--rootdir", str(ROOT), *options],
            plugins=[collector],
        )
        for chosen in passes
    ]
    names, cuda = devices()
    outcomes = list(collector.cases.values())
    record = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "source": source,
        "devices": names,
        "cuda_driver": cuda,
        "versions": versions(),
        "tally": {kind: outcomes.count(kind) for kind in ("passed", "failed", "skipped")},
        "cases": dict(sorted(collector.cases.items())),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{out}: {record['tally']} on {names}")
    return max(int(status) for status in statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="is the record of this source?")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--out", type=Path, default=RECORD, help="where to write the record")
    parser.add_argument("options", nargs="*", help="options for pytest, after --")
    arguments = parser.parse_args()
    return check() if arguments.check else run(arguments.out, arguments.jobs, arguments.options)


if __name__ == "__main__":
    sys.exit(main())
