"""The matrix as a table on the terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from streamkit._tools.matrix.libraries import LABELS

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from streamkit._tools.matrix import Pair, Report

_PROMISE = (
    "Each row's stream, taken over by each column's library, is the same queue on the same device "
    "and kept alive; each column's stream waits for the row's when told to, and only then."
)
_ANY = 1000  # columns: more than any grid's
_BARE = "* not kept alive: a bare handle can hold nothing. Keep the StreamKit stream beside it."


def show(report: Report) -> None:
    """Print the grid, what failed in it, which libraries are missing, and the verdict."""
    from rich.console import Console

    console = Console(highlight=False)  # not soft_wrap: the table must fit
    versions = ", ".join(
        f"{LABELS.get(name, name)} {version}" for name, version in report.versions.items()
    )
    console.print(f"{report.device}, CUDA {report.cuda}; {versions}", markup=False, soft_wrap=True)
    table = _grid(report, numbered=False)
    wanted = console.measure(table, options=console.options.update(width=_ANY)).maximum
    if wanted > console.width:
        table = _grid(report, numbered=True)
    console.print(table)
    bad = [pair for pair in report.pairs if not pair.ok]
    lines = [_PROMISE]
    if any(pair.owner_kept is None for pair in report.pairs):
        lines.append(_BARE)
    lines += [f"No {LABELS[name]}: {why}" for name, why in report.missing.items()]
    lines += [
        f"{LABELS[pair.first]} to {LABELS[pair.second]}: {problem}"
        for pair in bad
        for problem in pair.problems
    ]
    for line in lines:  # only the terminal may break these, so that they can be copied
        console.print(line, markup=False, soft_wrap=True)
    verdict = f"[red]FAILED[/]: {len(bad)} of" if bad else "[green]OK[/]:"
    console.print(
        f"{verdict} {len(report.pairs)} pairs of {len(report.libraries)} libraries", soft_wrap=True
    )


def _grid(report: Report, *, numbered: bool) -> Table:
    """Return the grid; ``numbered`` for a terminal that is too narrow for names as headings."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("from \\ to", no_wrap=True)
    number = {name: f"{place} " for place, name in enumerate(report.libraries, 1)}
    for name in report.libraries:
        heading = re.sub(r"(?<=[.-])", "\n", LABELS[name])  # or 80 columns would not do
        table.add_column(number[name] if numbered else heading, no_wrap=True)
    pairs = {(pair.first, pair.second): pair for pair in report.pairs}
    for first in report.libraries:
        cells = [_cell(pairs.get((first, second))) for second in report.libraries]
        table.add_row((number[first] if numbered else "") + LABELS[first], *cells)
    return table


def _cell(pair: Pair | None) -> Text:
    from rich.text import Text

    if pair is None:
        return Text("-", style="dim")
    if not pair.ok:
        return Text("FAIL", style="bold red")
    return Text("ok*" if pair.owner_kept is None else "ok", style="green")
