"""The bench as a table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from streamkit._tools.bench import Report

_WIDE = 80  # columns; a narrower terminal shows the ratios without what they are made of


def show(report: Report) -> None:
    """Print the rows with their verdicts, what else was measured, and against what."""
    from rich.console import Console

    console = Console(highlight=False)  # not soft_wrap: the table must fit
    libraries = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.print(f"{report.device}, CUDA {report.cuda}; {libraries}", markup=False, soft_wrap=True)
    console.print(_table(report, console))
    for line in _below(report):  # only the terminal may break these, so that they can be copied
        console.print(line, markup=False, soft_wrap=True)


def _table(report: Report, console: Console) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    is_wide = console.width >= _WIDE
    headings = ["ours\nns", "theirs\nns", "ratio (spread)"] if is_wide else ["ratio"]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("row", overflow="fold", vertical="bottom")
    for heading in (*headings, "at\nmost", "aim", "met?"):
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    for row in report.rows:
        verdict = ("aim", "green") if row.ratio <= row.aim else ("yes", "green")
        ratio = f"{row.ratio:.2f}"
        spread = f"{ratio} ({row.ratio_low:.2f}-{row.ratio_high:.2f})"
        measured = [f"{row.ours_ns:.0f}", f"{row.theirs_ns:.0f}", spread] if is_wide else [ratio]
        table.add_row(
            Text(row.name),
            *measured,
            f"{row.at_most:.2f}",
            f"{row.aim:.2f}",
            Text.assemble(verdict if row.met else ("no", "red")),
        )
    return table


def _below(report: Report) -> Iterator[str]:
    for count in report.counts:
        found = ", ".join(f"{kind} {number:g}" for kind, number in count.found.items())
        yield f"{count.name}: {found}" + ("" if count.met else f", and should be {count.expected}")
    imported = report.imported
    spread = f"{imported.ms_low:.1f} to {imported.ms_high:.1f}"
    yield f"{imported.name}: {imported.ms:.1f} ms ({spread}), aim {imported.aim_ms:g}"
    for wait in report.waits:
        yield f"wake-up, {wait.name}: {wait.us:.0f} us ({wait.us_low:.0f} to {wait.us_high:.0f})"
    yield (
        f"Medians of {report.repeats} repeats of {report.iterations} calls, the two sides in turn"
    )
    yield ""
    for row in report.rows:
        yield f"{row.name}: against {row.against}" + (f"; {row.note}" if row.note else "")
    for name, why in report.left_out.items():
        yield f"{name}: left out. {why}"
