"""A report as a page to zoom into: one file, without the network. ``timeline.js`` draws it."""

from __future__ import annotations

import html
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._audit.timeline import STYLES, library_of, rows_of, short, times, title
from streamkit._base import messages

if TYPE_CHECKING:
    from os import PathLike

    from streamkit._audit.operations import Operations

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 0; color: #222; background: #fff; }}
h1 {{ font-size: 16px; margin: 12px 12px 0; font-weight: 600; }}
p {{ margin: 2px 12px 6px; color: #555; }}
#tip {{ position: fixed; background: #222; color: #fff; padding: 6px 8px; border-radius: 4px;
  max-width: min(90vw, 640px); white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: 12px; pointer-events: none; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<div id="chart"></div>
<div id="tip" hidden></div>
<script>{plotly}</script>
<script>const DATA = {data};</script>
<script>{draw}</script>
</body>
</html>
"""


def write(report: Operations, path: str | PathLike[str]) -> None:
    """Write the page; BackendNotInstalledError without plotly."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise messages.not_installed("plotly", 'pip install "plotly>=6"', error) from error
    waited = times(len(report.synchronisations))
    draw = resources.files("streamkit._audit").joinpath("timeline.js").read_text(encoding="utf-8")
    # no "</script>" or "<!--" in a name may end the element, or begin a comment in it
    data = json.dumps(page_data(report), separators=(",", ":")).replace("<", "\\u003c")
    page = _PAGE.format(
        title=html.escape(title(report)),
        summary=html.escape(
            f"The host waited {waited}. Drag or scroll to zoom, double-click for all; "
            "names and the arrows of waits come where there is room; point at a bar for the rest."
        ),
        plotly=get_plotlyjs(),
        data=data,
        draw=draw,
    )
    Path(path).write_text(page, encoding="utf-8")


def page_data(report: Operations) -> dict[str, Any]:
    """Return what the script draws, described there."""
    rows = rows_of(report)
    number = {row.queue: place for place, row in enumerate(rows)}
    found = {library_of(one) for row in rows for one in row.operations}
    libraries = [library for library in STYLES if library in found]
    names: dict[str, int] = {}
    work = [
        [
            number[row.queue],
            libraries.index(library_of(one)),
            names.setdefault(short(one.name), len(names)),
            one.start_ns / 1e6,
            (one.end_ns - one.start_ns) / 1e6,
        ]
        for row in rows
        for one in row.operations
    ]
    return {
        "rows": [row.label for row in rows],
        "libraries": [[STYLES[name].label, STYLES[name].colour] for name in libraries],
        "names": list(names),
        "work": work,
        "waits": [
            [number[wait.after], wait.start_ns / 1e6, number[wait.queue], wait.end_ns / 1e6]
            for wait in report.waits
            if wait.after is not None
        ],
    }
