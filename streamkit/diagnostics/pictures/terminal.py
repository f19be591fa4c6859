"""A report in the terminal: a row for each queue, a letter and a colour for each library."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from streamkit._support import messages
from streamkit.diagnostics.pictures import timeline
from streamkit.diagnostics.pictures.styles import STYLES
from streamkit.diagnostics.recording.operations import listed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from streamkit.diagnostics.pictures.styles import Style
    from streamkit.diagnostics.pictures.timeline import Row
    from streamkit.diagnostics.recording.operations import Operation, Operations

_HOST = "="
_NAMES = 6  # operations named for each row


def show(report: Operations, console: Console | None = None) -> None:
    """Print the rows, what ran in each and, where that is known, when; and what to look at."""
    try:
        from rich.console import Console as RichConsole
        from rich.text import Text
    except ImportError as error:
        raise messages.not_installed("rich", 'pip install "rich"', error) from error
    console = console or RichConsole(highlight=False)
    start, end = timeline.span_ns(report)
    console.print(Text(_writable(timeline.verdict(report), console), style="bold"), soft_wrap=True)
    console.print(timeline.extent(report), soft_wrap=True)
    nothing = "·" if _writable("·", console) == "·" else "."
    console.print()
    for row in timeline.rows_of(report):  # two lines each: eight queues fit a terminal of 24
        line = Text(_writable(row.label, console), style="bold")
        line.append(_writable(f": {', '.join(_names(row))}", console), style="not bold")
        console.print(line, no_wrap=True, overflow="ellipsis")
        if report.has_times:
            console.print(_drawn(row.operations, start, end, console.width, nothing))
    seen = {timeline.library_of(one) for one in report.work}
    legend = Text()
    for library, style in STYLES.items():
        if library in seen:
            legend.append(style.letter, style=_on(style))
            legend.append(f" {style.label}  ")
    console.print()
    if seen and report.has_times:
        console.print(legend)
    for sentence in timeline.waits(report):
        console.print(sentence, soft_wrap=True)
    held = listed(report.synchronisations)
    for text in ["What held the host:", *held] if held else []:
        console.print(_writable(text, console), soft_wrap=True, markup=False)


def _writable(text: str, console: Console) -> str:
    """Return the text with what the console's encoding lacks written out."""
    return text.encode(console.encoding, "backslashreplace").decode(console.encoding)


def _drawn(operations: list[Operation], start: int, end: int, width: int, nothing: str) -> Text:
    """Return a line that shows in each cell whose work is most of it."""
    from rich.text import Text

    cell = max(end - start, 1) / width
    most = [0.0] * width
    shown: list[Operation | None] = [None] * width
    for one in operations:
        first = min(int((one.start_ns - start) / cell), width - 1)
        last = min(int((one.end_ns - start) / cell), width - 1)
        for place in range(first, last + 1):
            left, right = start + place * cell, start + (place + 1) * cell
            covered = max(min(one.end_ns, right) - max(one.start_ns, left), 1)
            if covered > most[place]:
                most[place], shown[place] = covered, one
    line = Text(no_wrap=True)
    for found in shown:
        if found is None:
            line.append(nothing, style="dim")
        elif found.is_work:
            style = STYLES[timeline.library_of(found)]
            line.append(style.letter, style=_on(style))
        else:
            line.append(_HOST, style="bold")
    return line


def _on(style: Style) -> str:
    return f"bold {style.ink} on {style.colour}"


def _names(row: Row) -> list[str]:
    """Return what ran in a row, equal neighbours together."""
    texts = [
        timeline.plain(one) + (f" [{STYLES[one.library].label}]" if one.library in STYLES else "")
        for one in row.operations
    ]
    counts = [(text, len(list(same))) for text, same in itertools.groupby(texts)]
    lines = [f"{count} x {text}" if count > 1 else text for text, count in counts]
    more = len(lines) - _NAMES
    return lines if more <= 0 else [*lines[:_NAMES], f"and {more} more"]
