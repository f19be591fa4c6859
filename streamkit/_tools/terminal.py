"""What the commands print: tables, lines that can be copied, and a verdict.

The command line imports this once it has found rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamkit._tools import demo, matrix
from streamkit._tools.bench.end_to_end import STEPS

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from streamkit._tools.bench import BenchReport
    from streamkit._tools.demo import DemoResult
    from streamkit._tools.matrix import MatrixReport, Pair

_GOOD, _BAD = "green", "bold red"


def _console() -> Console:
    """Return the console; only the terminal may break its lines, so that they can be copied."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def _table(*headings: str, unbroken: Container[str] = ()) -> Table:
    """Return an empty table; in a narrow terminal no cell of the ``unbroken`` columns is broken."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=heading in unbroken)
    return table


# -- demo -------------------------------------------------------------------------------------


def show_demo(result: DemoResult) -> None:
    """Print the stages with their libraries and times, the notes, and the verdict."""
    console = _console()
    height, width = result.image.shape
    console.print(f"A {width} x {height} photograph through {result.stream}")
    table = Table("stage", "library", "queue", box=box.SIMPLE_HEAD)
    table.add_column("ms", justify="right")
    for stage in result.stages:
        library = f"{demo.LABELS[stage.library]} {stage.version}"
        table.add_row(stage.name, library, stage.queue, f"{stage.milliseconds:.3f}")
    console.print(table)
    for note in result.notes:
        console.print(note)
    verdict = ("OK", _GOOD) if result.ok else ("WRONG", _BAD)
    error = (
        f": off by {result.max_error:.1e} at most from NumPy in float64 "
        f"({result.tolerance:.0e} allowed)"
    )
    console.print(Text.assemble(verdict, error))


# -- bench ------------------------------------------------------------------------------------


def show_bench(report: BenchReport) -> None:
    """Print the rows with their verdicts, what else was measured, and against what."""
    console = _console()
    libraries = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.print(f"{report.device}, CUDA {report.cuda}; {libraries}")
    for table in (
        _speed(report),
        _lateness(report),
        *_growth(report),
        _whole(report),
        _memory(report),
    ):
        console.print(table, soft_wrap=False)
    for line in _below_the_rows(report):
        console.print(line)


def _numbers(name: str, *headings: str) -> Table:
    """Return an empty table of numbers; in a narrow terminal what is in brackets is broken off."""
    table = _table()
    table.add_column(name, overflow="fold", vertical="bottom", min_width=10)
    for heading in headings:
        breaks = heading.endswith("(spread)")
        table.add_column(heading, justify="right", no_wrap=not breaks, vertical="bottom")
    return table


def _verdict(*, aim: bool, met: bool) -> Text:
    return Text("aim" if met and aim else "yes" if met else "no", _GOOD if met else _BAD)


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


def _memory(report: BenchReport) -> Table:
    table = _numbers("most memory at a time", "ours\nMB", "theirs\nMB", "at\nmost", "met?")
    for one in report.memory:
        measured = f"{one.ours_bytes / 1e6:.0f}", f"{one.theirs_bytes / 1e6:.0f}"
        verdict = _verdict(aim=False, met=one.met)
        table.add_row(one.name, *measured, f"{one.at_most:.2f}", verdict)
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


# -- matrix -----------------------------------------------------------------------------------

_PROMISE = (
    "Each row's stream, taken over by each column's library, is the same queue on the same device "
    "and kept alive; each column's stream waits for the row's when told to, and only then."
)
_BARE = "* not kept alive: a bare handle can hold nothing. Keep the StreamKit stream beside it."


def show_matrix(report: MatrixReport) -> None:
    """Print the grid, what failed in it, which libraries are missing, and the verdict."""
    console = _console()
    versions = ", ".join(
        f"{matrix.LABELS.get(name, name)} {version}" for name, version in report.versions.items()
    )
    labels = {name: matrix.LABELS[name] for name in report.libraries}
    console.print(f"{report.device}, CUDA {report.cuda}; {versions}")
    console.print(_grid(report, labels), soft_wrap=False)
    bad = [pair for pair in report.pairs if not pair.ok]
    console.print(_PROMISE)
    if any(pair.owner_kept is None for pair in report.pairs):
        console.print(_BARE)
    for name, why in report.missing.items():
        console.print(f"No {matrix.LABELS[name]}: {why}")
    for pair in bad:
        for problem in pair.problems:
            console.print(f"{labels[pair.first]} to {labels[pair.second]}: {problem}")
    verdict = ("FAILED", _BAD) if bad else ("OK", _GOOD)
    failed = f"{len(bad)} of " if bad else ""
    count = f": {failed}{len(report.pairs)} pairs of {len(report.libraries)} libraries"
    console.print(Text.assemble(verdict, count))


def _grid(report: MatrixReport, labels: dict[str, str]) -> Table:
    """Return the grid; its headings are numbers, because names are too wide for a terminal."""
    headings = ["from \\ to", *map(str, range(1, len(labels) + 1))]
    table = _table(*headings, unbroken=headings)
    pairs = {(pair.first, pair.second): pair for pair in report.pairs}
    for number, (first, label) in enumerate(labels.items(), 1):
        cells = [_cell(pairs.get((first, second))) for second in labels]
        table.add_row(f"{number} {label}", *cells)
    return table


def _cell(pair: Pair | None) -> Text:
    if pair is None:
        return Text("-", style="dim")
    if not pair.ok:
        return Text("FAIL", style=_BAD)
    return Text("ok*" if pair.owner_kept is None else "ok", style=_GOOD)
