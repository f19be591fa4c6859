"""What StreamKit's operations cost on this machine, against the libraries' own calls.

``scope_rows`` and ``stream_rows`` have the table's rows, ``arranging`` what they are made of,
``timing`` how each is timed, ``lateness`` how late waits end, ``growth`` the rows that grow,
``end_to_end`` a whole program, ``measurements`` what else is measured. Here they are run. Nothing
here prints.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.metadata
import platform
import re
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamkit as sk
from bench import end_to_end, lateness, scope_rows, stream_rows
from bench.growth import GROWTHS, Curve
from bench.measurements import (
    SCOPE,
    Count,
    Import,
    count_calls,
    count_extra,
    time_import,
)
from bench.timing import Libraries, Row
from streamkit._cli import machine
from streamkit._cli.machine import CannotRunError
from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit.errors import BackendNotInstalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.end_to_end import Whole
    from bench.lateness import Lateness

    Progress = Callable[[str, int, int], object]

PLANS = [*scope_rows.PLANS, *stream_rows.PLANS]
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
    lateness: list[Lateness]
    curves: list[Curve]
    end_to_end: list[Whole]
    counts: list[Count]
    imported: Import
    left_out: dict[str, str] = field(default_factory=dict)


def as_data(report: BenchReport) -> dict[str, Any]:
    """Return the report in JSON's types, with a verdict wherever there is a bound."""
    bounded: dict[str, Sequence[Any]] = {
        "rows": report.rows,
        "lateness": report.lateness,
        "counts": report.counts,
    }
    return asdict(report) | {
        name: [asdict(one) | {"met": one.met} for one in found] for name, found in bounded.items()
    }


def run(
    *, repeats: int = 15, iterations: int = 1000, progress: Progress = lambda *_: None
) -> BenchReport:
    """Measure everything, in less than two minutes.

    Imports torch, CuPy and Warp. ``progress`` is called with what comes next, how much is done,
    and of how much. CannotRunError if there is no GPU, or not all three libraries.
    """
    libraries = load()
    cuda, cupy = libraries.torch.cuda, libraries.cupy.cuda
    late: list[Lateness] = []
    whole: list[Whole] = []
    curves: list[Curve] = []
    counts: list[Count] = []
    imported: list[Import] = []
    times: list[list[list[float]]] = [[] for _ in PLANS]

    def count_wait() -> None:
        a, b = sk.wrap(cuda.Stream()), sk.wrap(cupy.Stream(non_blocking=True))
        counts.append(count_calls(a, b))
        cuda.synchronize()

    def time_row(number: int, share: int) -> None:
        found = PLANS[number].measure(libraries, share, iterations)
        so_far = times[number] or [[] for _ in found]
        times[number] = [one + more for one, more in zip(so_far, found, strict=True)]

    usual, last = (
        [(PLANS[number].name, partial(time_row, number, share)) for number, share in order]
        for order in _order(repeats)
    )
    steps: list[tuple[str, Callable[[], object]]] = [
        ("waits", lambda: late.extend(lateness.measure(libraries, 2 * repeats))),
        ("end to end", lambda: whole.extend(end_to_end.measure(libraries, repeats))),
        ("driver calls of a wait", count_wait),
        *usual,
        *((one.over, lambda one=one: curves.append(one.measure(libraries))) for one in GROWTHS),
        *last,
        (SCOPE, lambda: counts.append(count_extra(sk.new_stream(), sk.wrap(cuda.Stream())))),
        ("import streamkit", lambda: imported.append(time_import())),
    ]
    left_out: dict[str, str] = {}
    for done, (name, step) in enumerate(steps):
        progress(name, done, len(steps))
        if name not in left_out:
            try:
                step()
            except (BackendNotInstalledError, CannotRunError) as error:
                left_out[name] = str(error)
    progress("done", len(steps), len(steps))
    return BenchReport(
        date=f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
        device=cuda.get_device_name(libraries.device),
        driver=_read("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
        cuda=machine.cuda_version(),
        cpu=_read("/proc/cpuinfo", r"model name\s*:\s*(.+)"),
        versions=_versions(libraries),
        repeats=repeats,
        iterations=iterations,
        rows=_rows(times),
        lateness=late,
        curves=curves,
        end_to_end=whole,
        counts=counts,
        imported=imported[0],
        left_out=left_out,
    )


def _order(repeats: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return which plans are measured in turn, by number, each with its repeats; and the last."""
    usual = [number for number, plan in enumerate(PLANS) if not plan.is_last]
    shares = [repeats // _ROUNDS + (turn < repeats % _ROUNDS) for turn in range(_ROUNDS)]
    rounds = [(number, share) for share in shares if share for number in usual]
    return rounds, [(number, repeats) for number, plan in enumerate(PLANS) if plan.is_last]


def _rows(times: Sequence[list[list[float]]]) -> list[Row]:
    """Return the row of each operation that was measured: in several settings the worst counts."""
    rows: dict[str, Row] = {}
    for plan, found in zip(PLANS, times, strict=True):
        if found:
            row = plan.row(*found)
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
            "The bench needs a CUDA GPU, on which it measures calls of torch, CuPy and Warp; none "
            "was found."
        )
    found, missing = machine.load_each(_LIBRARIES, machine.load)
    if missing:
        reasons = "; ".join(
            f"{registry.BY_NAME[name].label}: {why}" for name, why in missing.items()
        )
        raise CannotRunError(
            f"{reasons}. The bench needs torch, CuPy and Warp. Install what is missing with: "
            f"{'; '.join(map(machine.install_line, missing))}"
        )
    device = found["torch"].cuda.current_device()
    found["torch"].zeros(1, device=f"cuda:{device}")
    sk.current_streams(device=device)
    found["cupy"].cuda.Device(device).use()  # last: it leaves the device's context current
    return Libraries(**found, device=device)
