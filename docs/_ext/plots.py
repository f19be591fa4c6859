"""The plots of ``bench.json`` as HTML and SVG, which take their colours from ``streamkit.css``.

Bars are boxes and their words are text of the page: both fit a phone, where an image would shrink.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

import evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def bars() -> str:
    """Return a bar for each row of the record, its bounds as marks, on a logarithmic axis."""
    rows = evidence.read("bench.json")["rows"]
    least = min(min(row["ratio_low"], row["aim"]) for row in rows) / 1.3
    most = max(1.0, *(max(row["ratio_high"], row["at_most"]) for row in rows)) * 1.3

    def place(ratio: float) -> float:
        return 100 * math.log(ratio / least) / math.log(most / least)

    ticks = "".join(
        f'<span style="left: {place(tick):.1f}%">{tick:g}</span>'
        for tick in TICKS
        if least < tick < most
    )
    lines = [
        '<div class="bars">',
        (
            '<p class="legend"><i class="met"></i> within its bound <i class="missed"></i> over it '
            '<i class="spread"></i> least to greatest <i class="at-most"></i> at most '
            '<i class="aim"></i> aim</p>'
        ),
    ]
    for row in rows:
        low, high = place(row["ratio_low"]), place(row["ratio_high"])
        kind = "met" if row["met"] else "missed"
        lines += [
            f"<p>{_words(row)}</p>",
            (
                f'<div class="line"><div class="axis">'
                f'<i class="one" style="left: {place(1):.1f}%"></i>'
                f'<i class="{kind}" style="width: {place(row["ratio"]):.1f}%"></i>'
                f'<i class="spread" style="left: {low:.1f}%; width: {high - low:.1f}%"></i>'
                f'<i class="at-most" style="left: {place(row["at_most"]):.1f}%"></i>'
                f'<i class="aim" style="left: {place(row["aim"]):.1f}%"></i></div>'
                f"<b>{row['ratio']:.2f}</b></div>"
            ),
        ]
    lines += [
        f'<div class="line"><div class="ticks">{ticks}</div><b></b></div>',
        (
            "<p>StreamKit's time divided by that of the library's own call. 1 is as fast, less is "
            "faster.</p></div>"
        ),
    ]
    return "\n".join(lines)


def panels() -> str:
    """Return a panel for each curve and each way of waiting, from zero up."""
    record = evidence.read("bench.json")
    drawn = [
        _panel(_words(curve), curve["over"], "an operation", _points(curve))
        for curve in record.get("curves", [])
    ]
    return _grid(drawn)


GAINED = {  # a curve's name and what it counts, and what it is called on a page for users
    (
        "with s:, three libraries, torch's pool stream",
        "known streams",
    ): "A scope of all three",
    ("with sk.use(q, libraries=('torch', 'cupy'))", "threads"): "A scope of two, in many threads",
    ("s.wait(native stream), wrapped by nobody", "known streams"): "A wait for another library",
}


def gains() -> str:
    """Return the panels of what users do most, with their words."""
    drawn = [
        _panel(
            f"{GAINED[curve['name'], curve['over']]}, against {escape(curve['against'])}",
            curve["over"],
            "each",
            _points(curve),
        )
        for curve in evidence.read("bench.json").get("curves", [])
        if (curve["name"], curve["over"]) in GAINED
    ]
    return _grid(drawn)


def late() -> str:
    """Return a panel for each way of waiting: how late it ends after so much work."""
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in evidence.read("bench.json").get("lateness", []):
        ways.setdefault(row["name"].partition(" after ")[0], []).append(row)
    drawn = []
    for name, rows in ways.items():
        against = "; ".join(dict.fromkeys(row["against"] for row in rows))
        points = [(row["work_ms"], row["ours_us"], row["theirs_us"]) for row in rows]
        words = _words({"name": name, "against": against})
        drawn.append(_panel(words, "ms of work", "late", points))
    return _grid(drawn)


def whole() -> str:
    """Return a bar for each way of doing the same work."""
    ways = evidence.read("bench.json").get("end_to_end", [])
    longest = max((way["ms_high"] for way in ways), default=1)
    lines = ['<div class="bars">'] if ways else []
    for way in ways:
        low, high = (100 * way[name] / longest for name in ("ms_low", "ms_high"))
        lines += [
            f"<p>{escape(evidence.named(way))}</p>",
            (
                f'<div class="line"><div class="axis">'
                f'<i class="met" style="width: {100 * way["ms"] / longest:.1f}%"></i>'
                f'<i class="spread" style="left: {low:.1f}%; width: {high - low:.1f}%"></i></div>'
                f"<b>{way['ms']:.2f} ms</b></div>"
            ),
        ]
    return "\n".join([*lines, "</div>"]) if ways else evidence.OLDER


def _points(curve: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Return count and microseconds of both sides."""
    return [(one["count"], one["ours_ns"] / 1e3, one["theirs_ns"] / 1e3) for one in curve["points"]]


def _words(row: dict[str, Any]) -> str:
    return f"<code>{escape(row['name'])}</code> against {escape(row['against'])}"


def _grid(panels: list[str]) -> str:
    legend = '<p class="legend"><i class="ours"></i> StreamKit <i class="theirs"></i> theirs</p>'
    if not panels:
        return evidence.OLDER
    return "\n".join(['<div class="panels">', legend, *panels, "</div>"])


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 320, 180, 52, 10, 28, 44


def _panel(words: str, x: str, what: str, points: Sequence[tuple[float, float, float]]) -> str:
    """Return one panel: its words, which are HTML, and the lines of both sides in microseconds."""
    counts = [point[0] for point in points]
    values = [value for point in points for value in point[1:]]
    top, bottom = max(*values, 0) * 1.1 or 1, min(*values, 0) * 1.1

    def at(count: float, value: float) -> str:
        along = math.log(count / counts[0]) / (math.log(counts[-1] / counts[0]) or 1)
        across = LEFT + along * (WIDTH - LEFT - RIGHT)
        down = TOP + (top - value) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">']
    for value in (0, top / 1.1):
        line = at(counts[0], value)
        parts.append(f'<path class="rule" d="M{line} L{at(counts[-1], value)}"/>')
        parts.append(
            f'<text class="end" x="{LEFT - 8}" y="{float(line.split(",")[1]) + 4:.1f}">'
            f"{value:.3g}</text>"
        )
    for count in counts:
        across = at(count, 0).split(",")[0]
        label = f"{count:,}" if count >= 1 else f"{count:g}"
        parts.append(f'<text class="mid" x="{across}" y="{HEIGHT - 26}">{label}</text>')
    for side, name in ((2, "theirs"), (1, "ours")):
        places = [at(point[0], point[side]) for point in points]
        parts.append(f'<polyline class="{name}" points="{" ".join(places)}"/>')
        for place in places:
            across, _, down = place.partition(",")
            parts.append(f'<circle class="{name}" cx="{across}" cy="{down}" r="3.5"/>')
    parts.append(
        f'<text class="mid" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}">'
        f"µs {escape(what)}, over {escape(x)}</text></svg>"
    )
    return f'<div role="img" tabindex="0"><p>{words}</p>{"".join(parts)}</div>'
