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

if TYPE_CHECKING:
    from streamkit._tools.demo import DemoResult
    from streamkit._tools.matrix import MatrixReport, Pair

_GOOD, _BAD = "green", "bold red"


def _console() -> Console:
    """Return the console; only the terminal may break its lines, so that they can be copied."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


# -- demo -------------------------------------------------------------------------------------


def show_demo(result: DemoResult) -> None:
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
    bad = [pair for pair in report.pairs if not pair.ok]
    console.print(f"{report.device}, CUDA {report.cuda}; {versions}")
    console.print(_grid(report, labels), soft_wrap=False)
    console.print(_PROMISE)
    if any(pair.owner_kept is None for pair in report.pairs):
        console.print(_BARE)
    for name, why in report.missing.items():
        console.print(f"No {matrix.LABELS[name]}: {why}")
    for pair in bad:
        for problem in pair.problems:
            console.print(f"{labels[pair.first]} to {labels[pair.second]}: {problem}")
    count = f"{len(report.pairs)} pairs of {len(labels)} libraries"
    verdict = ("FAILED", _BAD) if bad else ("OK", _GOOD)
    console.print(Text.assemble(verdict, f": {len(bad)} of {count}" if bad else f": {count}"))


def _grid(report: MatrixReport, labels: dict[str, str]) -> Table:
    """Return the grid; its headings are numbers, because names are too wide for a terminal."""
    table = _table()
    for heading in ("from \\ to", *range(1, len(labels) + 1)):
        table.add_column(str(heading), no_wrap=True)
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
