"""Draw ``docs/pictures/before-and-after.svg`` from what example 09 wrote on a GPU: ``audit.json``.

python docs/evidence/plot_audit.py
python docs/evidence/plot_audit.py --data FILE --out FILE   elsewhere
"""

from __future__ import annotations

import argparse
import hashlib
import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._audit.audit import AuditReport
from streamkit._pictures.styles import STYLES
from streamkit._pictures.timeline import library_of, plain, rows_of, span_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamkit._pictures.timeline import Row
    from streamkit._recording.operations import Operation

HERE = Path(__file__).parent
TITLES = {
    "before": "Before: with torch.cuda.stream(s) alone, x is {:g}",
    "after": "After: all three on one StreamKit stream, in order, x is {:g}",
}
WIDTH, LEFT, RIGHT, ROW, BAR = 640, 12, 628, 66, 26
LEAST = 9  # a kernel of a microsecond has to be seen
NAMED = 30  # a bar of this width has room for its name
PAUSE = 1_000_000  # ns: an audit that is not inside another has one after its first kernel

# The page of the documentation has its own colours, which follow its switch; elsewhere the
# reader's system decides.
STYLE = """
.ba text { font: 15px var(--font-stack, system-ui, sans-serif); }
.ba .title { font-weight: 600; font-size: 17px; }
.ba text, .ba .point { fill: var(--color-foreground-primary, #1b1f24); }
.ba .queue { fill: var(--color-foreground-secondary, #57606a); }
.ba .lane { fill: var(--color-background-secondary, #eef1f4); }
@media (prefers-color-scheme: dark) {
  .ba text, .ba .point { fill: var(--color-foreground-primary, #e6edf3); }
  .ba .queue { fill: var(--color-foreground-secondary, #9aa4af); }
  .ba .lane { fill: var(--color-background-secondary, #252c34); }
}
"""


def draw(data: dict[str, Any], source: str) -> str:
    """Return the picture: before above after, a row for each queue."""
    if "x" not in data:
        raise SystemExit(
            "The record does not say what x was: it was recorded by an earlier example. "
            "Record it again: python examples/09_see_the_queues.py docs/evidence/audit.json"
        )
    reports = {name: AuditReport.from_data(data[name]) for name in TITLES}
    longest = max(span_ns(report)[1] - begin_ns(report) for report in reports.values())
    parts, y = [], 26
    for name, report in reports.items():
        parts.append(f'<text class="title" x="{LEFT}" y="{y}">')
        parts.append(f"{escape(TITLES[name].format(data['x'][name]))}</text>\n")
        y += 26
        for row in rows_of(report):
            parts += draw_row(row, report, (RIGHT - LEFT - 5 * LEAST) / longest, y)
            y += ROW
        y += 16
    seen = {library_of(one) for report in reports.values() for one in report.work}
    x = LEFT
    for library in STYLES:
        if library in seen:
            style = STYLES[library]
            parts.append(f'<rect x="{x}" y="{y - 13}" width="15" height="15" rx="3" ')
            parts.append(f'fill="{style.colour}"/><text x="{x + 22}" y="{y}">{style.label}</text>')
            x += 40 + 9 * len(style.label)
    parts.append(f'<text class="queue" x="{RIGHT}" y="{y}" text-anchor="end">time →</text>\n')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ba" viewBox="0 0 {WIDTH} {y + 14}" '
        f'width="{WIDTH}">\n<metadata>{source}</metadata>\n<style>{STYLE}</style>\n'
        f"{''.join(parts)}</svg>\n"
    )


def begin_ns(report: AuditReport) -> int:
    """Return when the work goes on after the last pause, if it has one."""
    work = sorted(report.work, key=lambda one: one.start_ns)
    begin = end = work[0].start_ns
    for one in work:
        if one.start_ns - end > PAUSE:
            begin = one.start_ns
        end = max(end, one.end_ns)
    return begin


def draw_row(row: Row, report: AuditReport, scale: float, y: int) -> Iterator[str]:
    """Yield the queue's name, its bars, and the names of the short ones above or beside them."""
    start = begin_ns(report)
    yield f'<text class="queue" x="{LEFT}" y="{y}">{escape(row.label)}</text>\n'
    yield f'<rect class="lane" x="{LEFT}" y="{y + 8}" width="{RIGHT - LEFT}" height="{BAR}"/>\n'
    shown = [one for one in row.operations if one.start_ns >= start]
    end, short = float(LEFT), []
    for one in shown:
        # behind the one before, for a short one is drawn longer than it was
        left = max(LEFT + (one.start_ns - start) * scale, end)
        length = max((one.end_ns - one.start_ns) * scale, LEAST)
        end = left + length
        style = STYLES[library_of(one)]
        yield f'<rect x="{left:.1f}" y="{y + 8}" width="{length - 1.5:.1f}" height="{BAR}" '
        yield f'fill="{style.colour}"/>\n'
        if length < NAMED:
            short.append((one, left))
        else:
            yield f'<text x="{left + length / 2:.1f}" y="{y + 26}" text-anchor="middle" '
            yield f'style="fill: {style.ink}">{escape(plain(one))}</text>\n'
    if not short:
        return
    words = escape(", ".join(plain(one) for one, _ in short))
    first = short[0][1]
    if len(shown) == len(short):  # the queue has nothing else: there is room beside them
        words += ": too early" if is_early(short[0][0], report) else ""
        yield f'<path class="point" d="M{end + 3:.1f} {y + 21}l9 -5v3.5h14v3h-14v3.5z"/>'
        yield f'<text x="{end + 33:.1f}" y="{y + 26}">{words}</text>\n'
    else:
        yield f'<path class="point" d="M{first + LEAST / 2 - 1:.1f} {y + 6}l-4.5 -7h9z"/>'
        yield f'<text x="{first - 6:.1f}" y="{y}" text-anchor="end">then {words}</text>\n'


def is_early(one: Operation, report: AuditReport) -> bool:
    """Return whether it began before the queue that began first had ended."""
    first = rows_of(report)[0]
    return one.queue != first.queue and one.start_ns < max(each.end_ns for each in first.operations)


def main() -> None:
    """Read, draw, write; the same data give the same file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=HERE / "audit.json", help="the record")
    picture = HERE.parent / "pictures" / "before-and-after.svg"
    parser.add_argument("--out", type=Path, default=picture, help="where to draw it")
    arguments = parser.parse_args()
    record: bytes = arguments.data.read_bytes()
    # a test asks a drawing of which data it is
    source = f"sha256 of the data: {hashlib.sha256(record).hexdigest()}"
    arguments.out.write_text(draw(json.loads(record), source), encoding="utf-8")


if __name__ == "__main__":
    main()
