"""A report as a page to zoom into, filter and search: one file, without the network.

``timeline.js`` draws what ``page_data`` gives, in the style of ``timeline.css``.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from streamkit.diagnostics.pictures import timeline
from streamkit.diagnostics.pictures.race_list import STYLE, race_list
from streamkit.diagnostics.pictures.styles import STYLES
from streamkit.diagnostics.recording.kernel_names import short
from streamkit.diagnostics.recording.operations import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamkit.diagnostics.recording.operations import AuditedQueue, Operation, Operations

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{verdict}</h1>
<p>{summary}</p>
<fieldset id="legend" aria-label="Libraries"></fieldset>
<div id="zoom">
<button id="in">Zoom in</button> <button id="out">Zoom out</button>
<button id="all">Show all</button>
<span>Drag over a part to see it larger.</span>
</div>
<div id="chart"><div id="labels"></div><canvas role="img" aria-label="{title}"></canvas></div>
{races}{held}<div id="filters">
<label>Search <input id="search" type="search" placeholder="name, library or queue"></label>
<label>Queue <select id="queue"><option value="-1">all queues</option></select></label>
<span id="found" role="status"></span>
</div>
<div id="list"><table><thead><tr>
<th>start</th><th>takes</th><th>what</th><th>library</th><th>queue</th>
</tr></thead><tbody></tbody></table></div>
<button id="more" hidden>Show more</button>
<div id="tip" hidden></div>
<script>const DATA = {data};</script>
<script>{draw}</script>
</body>
</html>
"""


def html_of(
    report: Operations,
    *,
    heading: str | None = None,
    missing: Sequence[Operation] = (),
    races: Sequence[str] = (),
) -> str:
    """Return the page, with ``heading`` in place of the audit's own sentence.

    ``missing`` are waits that should be there: the page shows each by an arrow of its own kind.
    ``races`` are their descriptions, of several lines each. In a report without times, the times of
    operations are places in an order, a millisecond each.
    """
    # no "</script>" or "<!--" in a name may end the element, or begin a comment in it
    data = json.dumps(page_data(report, missing), separators=(",", ":")).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(timeline.title(report)),
        verdict=html.escape(heading or timeline.verdict(report)),
        summary=html.escape(" ".join(_summary(report))),
        style=_read("timeline.css") + STYLE,
        races=race_list(races),
        held=_held(report),
        data=data,
        draw=_read("timeline.js"),
    )


def as_cell(report: Operations) -> str:
    """Return the page in a frame of its own, for a notebook, below its first sentence."""
    rows = sum(
        max(timeline.tracks_of(row.operations), default=0) + 1 for row in timeline.rows_of(report)
    )
    return (
        f"<p>{html.escape(timeline.verdict(report))}</p>"
        f'<iframe srcdoc="{html.escape(html_of(report))}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {min(440 + 34 * rows, 900)}px; border: 0"></iframe>'
    )


def page_data(report: Operations, missing: Sequence[Operation] = ()) -> dict[str, Any]:
    """Return what ``timeline.js`` draws; it is described there."""
    rows = timeline.rows_of(report)
    number = {row.queue: place for place, row in enumerate(rows)}
    found = {timeline.library_of(one) for row in rows for one in row.operations}
    libraries = [library for library in STYLES if library in found]
    names: dict[str, int] = {}
    work = [
        [
            place,
            track,
            libraries.index(timeline.library_of(one)),
            names.setdefault(timeline.plain(one), len(names)),
            names.setdefault(short(one.name), len(names)),
            one.start_ns / 1e6,
            (one.end_ns - one.start_ns) / 1e6,
        ]
        for place, row in enumerate(rows)
        for one, track in zip(row.operations, timeline.tracks_of(row.operations), strict=True)
    ]
    return {
        "timed": report.has_times,
        "rows": [row.label for row in rows],
        "libraries": [
            [style.label, style.colour, style.ink] for style in map(STYLES.__getitem__, libraries)
        ],
        "names": list(names),
        "work": work,
        "waits": _arrows(report.waits, number),
        "missing": _arrows(missing, number),
    }


def _arrows(
    waits: Sequence[Operation], number: dict[AuditedQueue | None, int]
) -> list[tuple[int, float, int, float]]:
    return [
        (number[wait.after], wait.start_ns / 1e6, number[wait.queue], wait.end_ns / 1e6)
        for wait in waits
        if wait.after is not None and {wait.after, wait.queue} <= number.keys()
    ]


def _held(report: Operations) -> str:
    """Return a list of what held the host."""
    lines = [html.escape(line.strip()) for line in listed(report.synchronisations)]
    items = "".join(f"<li>{line}</li>\n" for line in lines)
    return f"<h2>What held the host</h2>\n<ul>\n{items}</ul>\n" if items else ""


def _summary(report: Operations) -> Iterator[str]:
    yield timeline.extent(report)
    yield from timeline.waits(report)
    if report.unfinished:
        yield f"{timeline.counted(report.unfinished, 'function')} had not run when the audit ended."


def _read(name: str) -> str:
    return (
        resources.files("streamkit.diagnostics.pictures").joinpath(name).read_text(encoding="utf-8")
    )
