"""What the bench prints: its tables, each row with its verdict. It needs rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.end_to_end import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench import BenchReport


def show_bench(report: BenchReport) -> None:
    """Print the rows with their verdicts, what else was measured, and against what."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    libraries = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.print(f"{report.device}, CUDA {report.cuda}; {libraries}")
    for table in (
        _speed(report),
        _lateness(report),
        *_growth(report),
        _whole(report),
    ):
        console.print(table, soft_wrap=False)
    for line in _below_the_rows(report):
        console.print(line)


def _numbers(name: str, *headings: str) -> Table:
    """Return an empty table of numbers; in a narrow terminal what is in brackets is broken off."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(name, overflow="fold", vertical="bottom", min_width=10)
    for heading in headings:
        breaks = heading.endswith("(spread)")
        table.add_column(heading, justify="right", no_wrap=not breaks, vertical="bottom")
    return table


def _verdict(*, aim: bool, met: bool) -> Text:
    return Text("aim" if met and aim else "yes" if met else "no", "green" if met else "bold red")


def _speed(report: BenchReport) -> Table:
    table = _numbers("row", "ours\nns", "theirs\nns", "ratio (spread)", "at\nmost", "aim", "met?")
    for row in report.rows:
        spread = f"{row.ratio:.2f} ({row.ratio_low:.2f}-{row.ratio_high:.2f})"
        measured = f"{row.ours_ns:.0f}", f"{row.theirs_ns:.0f}", spread
        bounds = f"{row.at_most:.2f}", f"{row.aim:.2f}"
        verdict = _verdict(aim=row.ratio <= row.aim, met=row.met)
        table.add_row(row.name, *measured, *bounds, verdict)
    return table


def _lateness(report: BenchReport) -> Table:
    core = "core\nours", "core\ntheirs"
    table = _numbers("row", "ours\nus", "theirs\nus", *core, "at most\nus", "aim\nus", "met?")
    for late in report.lateness:
        measured = f"{late.ours_us:.0f}", f"{late.theirs_us:.0f}"
        cores = f"{late.ours_core:.2f}", f"{late.theirs_core:.2f}"
        aim = late.aim_us
        bounds = f"{late.at_most_us:.0f}", "-" if aim is None else f"{aim:.0f}"
        verdict = _verdict(aim=aim is not None and late.ours_us <= aim, met=late.met)
        table.add_row(late.name, *measured, *cores, *bounds, verdict)
    return table


def _growth(report: BenchReport) -> Iterator[Table]:
    for over in dict.fromkeys(curve.over for curve in report.curves):
        curves = [curve for curve in report.curves if curve.over == over]
        counts = (f"{point.count:,}" for point in curves[0].points)
        table = _numbers(f"ns beside so many {over}", *counts)
        for curve in curves:
            table.add_row(curve.name, *(f"{point.ours_ns:,.0f}" for point in curve.points))
            theirs = (f"{point.theirs_ns:,.0f}" for point in curve.points)
            table.add_row(f"  against {curve.against}", *theirs, style="dim")
        yield table


def _whole(report: BenchReport) -> Table:
    table = _numbers(f"{STEPS} steps of torch, CuPy and Warp", "ms (spread)")
    for whole in report.end_to_end:
        table.add_row(whole.name, f"{whole.ms:.2f} ({whole.ms_low:.2f}-{whole.ms_high:.2f})")
    return table


def _below_the_rows(report: BenchReport) -> Iterator[str]:
    for count in report.counts:
        found = ", ".join(f"{kind} {number:g}" for kind, number in count.found.items())
        yield f"{count.name}: {found}" + ("" if count.met else f", and should be {count.expected}")
    imported = report.imported
    spread = f"{imported.ms_low:.1f} to {imported.ms_high:.1f}"
    yield f"{imported.name}: {imported.ms:.1f} ms ({spread}), aim {imported.aim_ms:g}"
    for row in report.rows:
        if row.bare_ns is not None and not row.met:
            yield (
                f"{row.name}: of its {row.ours_ns:.0f} ns the calls of CUDA and the libraries "
                f"that it has to make take {row.bare_ns:.0f}; the rest is Python's own"
            )
    yield (
        f"Medians of {report.repeats} repeats of {report.iterations} calls, the two sides in turn"
    )
    yield ""
    for row in report.rows:
        yield f"{row.name}: against {row.against}" + (f"; {row.note}" if row.note else "")
    for late in report.lateness:
        yield f"{late.name}: against {late.against}" + (f"; {late.note}" if late.note else "")
    for name, why in report.left_out.items():
        yield f"{name}: left out. {why}"
