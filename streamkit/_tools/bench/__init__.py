"""What StreamKit's operations cost on this machine, against the libraries' own calls.

``rows`` has the table's rows, ``timing`` how each is timed, ``measurements`` what is measured
beside them. Here they are run. Nothing here prints.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cuda import driver
from streamkit._tools import machine
from streamkit._tools.bench.measurements import (
    SCOPE,
    Count,
    Import,
    WakeUp,
    count_calls,
    count_extra,
    time_import,
    wake_ups,
)
from streamkit._tools.bench.rows import PLANS
from streamkit._tools.bench.timing import Libraries, Row
from streamkit._tools.machine import CannotRunError
from streamkit.errors import BackendNotInstalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Progress = Callable[[str, int, int], object]

_ROUNDS = 3  # over the table: what slows the machine for seconds meets a part of each row, not all
_LIBRARIES = "torch", "cupy", "warp"


@dataclass(frozen=True)
class BenchReport:
    """What was measured, and on what."""

    date: str
    device: str
    driver: str | None
    cuda: str
    cpu: str | None
    versions: dict[str, str]
    repeats: int
    iterations: int
    rows: list[Row]
    counts: list[Count]
    imported: Import
    waits: list[WakeUp]
    left_out: dict[str, str] = field(default_factory=dict)


def as_data(report: BenchReport) -> dict[str, Any]:
    """Return the report in JSON's types, each row with its verdict."""
    return asdict(report) | {
        "rows": [asdict(row) | {"met": row.met} for row in report.rows],
        "counts": [asdict(count) | {"met": count.met} for count in report.counts],
    }


def run(
    *, repeats: int = 15, iterations: int = 1000, progress: Progress = lambda *_: None
) -> BenchReport:
    """Measure everything, in less than 30 s.

    Imports torch, CuPy and Warp. ``progress`` is called with what comes next, how much is done,
    and of how much. CannotRunError if there is no GPU, or not all three libraries.
    """
    libraries = load()
    order = _order(repeats)
    steps = len(order) + 4
    progress("waits", 0, steps)
    waits = wake_ups(libraries)
    progress("driver calls of a wait", 1, steps)
    cuda, cupy = libraries.torch.cuda, libraries.cupy.cuda
    counts = [count_calls(sk.wrap(cuda.Stream()), sk.wrap(cupy.Stream(non_blocking=True)))]
    cuda.synchronize()
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in PLANS]
    left_out: dict[str, str] = {}
    for done, (number, share) in enumerate(order, 2):
        plan = PLANS[number]
        progress(plan.name, done, steps)
        if plan.name in left_out:
            continue
        try:
            ours, theirs = plan.measure(libraries, share, iterations)
        except BackendNotInstalledError as error:
            left_out[plan.name] = str(error)
            continue
        times[number][0].extend(ours)
        times[number][1].extend(theirs)
    progress(SCOPE, steps - 2, steps)
    try:
        counts.append(count_extra(sk.new_stream(), sk.wrap(cuda.Stream())))
    except BackendNotInstalledError as error:
        left_out[SCOPE] = str(error)
    progress("import streamkit", steps - 1, steps)
    imported = time_import()
    progress("done", steps, steps)
    return BenchReport(
        date=machine.today(),
        device=cuda.get_device_name(libraries.device),
        driver=_read("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
        cuda=machine.cuda_version(),
        cpu=_read("/proc/cpuinfo", r"model name\s*:\s*(.+)"),
        versions=_versions(libraries),
        repeats=repeats,
        iterations=iterations,
        rows=_rows(times),
        counts=counts,
        imported=imported,
        waits=waits,
        left_out=left_out,
    )


def _order(repeats: int) -> list[tuple[int, int]]:
    """Return which plans are measured one after the other, by number, each with its repeats."""
    usual = [number for number, plan in enumerate(PLANS) if not plan.slows_what_follows]
    shares = [repeats // _ROUNDS + (turn < repeats % _ROUNDS) for turn in range(_ROUNDS)]
    rounds = [(number, share) for share in shares if share for number in usual]
    return rounds + [(n, repeats) for n, plan in enumerate(PLANS) if plan.slows_what_follows]


def _rows(times: Sequence[tuple[list[float], list[float]]]) -> list[Row]:
    """Return the row of each operation that was measured: in several settings the worst counts."""
    rows: dict[str, Row] = {}
    for plan, (ours, theirs) in zip(PLANS, times, strict=True):
        if ours:
            row = plan.row(ours, theirs)
            if plan.name not in rows or row.ratio > rows[plan.name].ratio:
                rows[plan.name] = row
    return list(rows.values())


def _read(path: str, pattern: str) -> str | None:
    with contextlib.suppress(OSError):
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
        return found and found[1]
    return None


def _versions(libraries: Libraries) -> dict[str, str]:
    found = {"streamkit": sk.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        found[name] = str(getattr(libraries, name).__version__)
    for package in ("cuda-bindings", "cuda-core"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def load() -> Libraries:
    """Import the libraries and let each touch the device, so that no row pays for that."""
    if not driver.is_present():
        raise CannotRunError(
            "There is no CUDA device here, and what is measured are calls on one, of torch, CuPy "
            "and Warp."
        )
    found, missing = machine.load_each(_LIBRARIES, machine.load)
    if missing:
        reasons = "; ".join(f"{machine.label(name)}: {why}" for name, why in missing.items())
        raise CannotRunError(
            f"{reasons}. The bench needs torch, CuPy and Warp. Install what is missing with: "
            f"{machine.install_lines(missing)}"
        )
    device = found["torch"].cuda.current_device()
    found["torch"].zeros(1, device=f"cuda:{device}")
    sk.current_streams(device=device)
    found["cupy"].cuda.Device(device).use()  # last: it leaves the device's context current
    return Libraries(**found, device=device)
