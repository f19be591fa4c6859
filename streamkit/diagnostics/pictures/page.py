"""A report as a page: one file, without the network.

The page of a block, ``timeline.html``, can be zoomed into, filtered and searched: ``timeline.js``
draws what ``block_data`` gives. The page of a graph has the picture of its nodes.
"""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from streamkit.diagnostics.pictures import terminal, timeline
from streamkit.diagnostics.pictures.styles import STYLES, file, style_of
from streamkit.diagnostics.recording.kernel_names import short
from streamkit.diagnostics.recording.operations import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamkit.diagnostics.recording.operations import AuditedQueue, Operation, Operations


def of_block(
    report: Operations,
    *,
    heading: str | None = None,
    missing: Sequence[Operation] = (),
    races: Sequence[str] = (),
) -> str:
    """Return the page of a block, with ``heading`` in place of the audit's own sentence.

    ``missing`` are waits that the program lacks: the page shows each by an arrow of its own kind.
    ``races`` are descriptions of the races, of several lines each.
    """
    # no "</script>" or "<!--" in a name may end the element, or begin a comment in it
    data = json.dumps(block_data(report, missing), separators=(",", ":")).replace("<", "\\u003c")
    title = timeline.title(report)
    sentences = (f"{title}, in the order in which they were given.", *timeline.summary(report))
    held = [html.escape(line.strip()) for line in listed(report.synchronisations)]
    body = file("timeline.html").format(
        title=html.escape(title),
        summary=html.escape(" ".join(sentences)),
        races=_races(races),
        held=_list("ul", "What held the host", held),
        data=data,
        draw=file("timeline.js"),
    )
    return _page(title, heading or timeline.verdict(report), body)


def of_graph(picture: str, heading: str, races: Sequence[str], *, has_missing: bool) -> str:
    """Return the page of a graph, with its picture, and its races as text."""
    legend = "<p>Dashed arrow: an order that is missing.</p>\n" if has_missing else ""
    return _page("Races of a graph", heading, f"{picture}\n{legend}{_races(races)}")


def as_cell(report: Operations) -> str:
    """Return the page for a notebook, in a frame below the page's first sentence."""
    height = min(440 + 34 * len(timeline.rows_of(report)), 900)
    return (
        f"<p>{html.escape(timeline.verdict(report))}</p>"
        f'<iframe srcdoc="{html.escape(of_block(report))}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


def block_data(report: Operations, missing: Sequence[Operation] = ()) -> dict[str, Any]:
    """Return the data that ``timeline.js`` draws; the script describes them."""
    rows = timeline.rows_of(report)
    number = {row.queue: place for place, row in enumerate(rows)}
    found = {style_of(one.library) for row in rows for one in row.operations}
    styles = [style for style in STYLES.values() if style in found]
    names: dict[str, int] = {}
    work = [
        [
            place,
            styles.index(style_of(one.library)),
            names.setdefault(timeline.plain(one), len(names)),
            names.setdefault(short(one.name), len(names)),
            one.place,
        ]
        for place, row in enumerate(rows)
        for one in row.operations
    ]
    return {
        "rows": [row.label for row in rows],
        "libraries": [[style.label, style.colour, style.ink] for style in styles],
        "names": list(names),
        "work": work,
        "waits": _arrows(report.waits, number),
        "missing": _arrows(missing, number),
    }


def _arrows(
    waits: Sequence[Operation], number: dict[AuditedQueue | None, int]
) -> list[tuple[int, int, int, int]]:
    return [
        (number[wait.after], wait.since, number[wait.queue], wait.place)
        for wait in waits
        if wait.after is not None and {wait.after, wait.queue} <= number.keys()
    ]


def _page(title: str, verdict: str, body: str) -> str:
    title, verdict, style = html.escape(title), html.escape(verdict), file("timeline.css")
    page = file("page.html").format(title=title, verdict=verdict, style=style, body=body)
    return terminal.writable(page)  # a path need not be UTF-8


def _races(texts: Sequence[str]) -> str:
    """Return the list: the first line of each text has its array, the last one its fix."""
    items = []
    for text in texts:
        array, *operations, fix = map(html.escape, map(str.strip, text.splitlines()))
        told = "".join(f"<span>{one}</span>" for one in operations)
        items.append(f"<b>{array}</b>{told}<strong>{fix}</strong>")
    return _list("ol", "Nothing orders these", items)


def _list(kind: str, heading: str, items: Sequence[str]) -> str:
    lines = "".join(f"<li>{one}</li>\n" for one in items)
    return f"<h2>{heading}</h2>\n<{kind}>\n{lines}</{kind}>\n" if items else ""
