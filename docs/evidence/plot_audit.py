"""Draw ``docs/pictures/before-and-after.svg`` from what example 09 wrote on a GPU: ``audit.json``.

python docs/evidence/plot_audit.py                          needs the dependency group `docs`
python docs/evidence/plot_audit.py --data FILE --out FILE   elsewhere
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _drawing import main
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from streamkit._audit.report import AuditReport
from streamkit._audit.timeline import STYLES, library_of, rows_of, span_ns

HERE = Path(__file__).parent
TITLES = {
    "before": "Before: with torch.cuda.stream(s) alone, CuPy and Warp run too early; x is {:g}",
    "after": "After: on one StreamKit stream, each follows the one before; x is {:g}",
}
MICROSECOND = 1000
LEAST = 0.006  # of the width: a kernel of a microsecond has to be seen
PAUSE = 1_000_000  # ns: an audit that is not inside another has one after its first kernel


def draw(data: dict[str, Any]) -> Figure:
    """Return the figure: before above after, a row for each queue."""
    if "x" not in data:
        raise SystemExit(
            "The record does not say what x was: it was recorded by an earlier example. "
            "Record it again: python examples/09_see_the_queues.py docs/evidence/audit.json"
        )
    reports = {name: AuditReport.from_data(data[name]) for name in TITLES}
    heights = [len(rows_of(report)) for report in reports.values()]
    figure = Figure(figsize=(9, 1.6 + 0.55 * sum(heights)), layout="constrained")
    charts = figure.subplots(len(reports), height_ratios=heights)
    longest = max(span_ns(report)[1] - begin_ns(report) for report in reports.values())
    for axes, (name, report) in zip(charts, reports.items(), strict=True):
        draw_rows(axes, report, longest / MICROSECOND)
        axes.set_title(TITLES[name].format(data["x"][name]), loc="left", fontsize=10)
    charts[-1].set_xlabel("microseconds")
    seen = {library_of(one) for report in reports.values() for one in report.work}
    handles = [
        Patch(color=style.colour, label=style.label)
        for name, style in STYLES.items()
        if name in seen
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def begin_ns(report: AuditReport) -> int:
    """Return when the work goes on after the last pause, if it has one."""
    work = sorted(report.work, key=lambda one: one.start_ns)
    begin = end = work[0].start_ns
    for one in work:
        if one.start_ns - end > PAUSE:
            begin = one.start_ns
        end = max(end, one.end_ns)
    return begin


def draw_rows(axes: Any, report: AuditReport, width: float) -> None:
    """Draw the queues of one report."""
    shown = rows_of(report)
    start = begin_ns(report)
    for number, row in enumerate(shown):
        end = 0.0
        for one in row.operations:
            if one.start_ns < start:
                continue
            # behind the one before, for a short one is drawn longer than it was
            left = max((one.start_ns - start) / MICROSECOND, end)
            length = max((one.end_ns - one.start_ns) / MICROSECOND, width * LEAST)
            end = left + length
            axes.barh(number, length, left=left, height=0.6, color=STYLES[library_of(one)].colour,
                      edgecolor="white", linewidth=0.5)  # fmt: skip
    axes.set_yticks(range(len(shown)), [row.label for row in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(-width * LEAST, width * 1.03)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    out = HERE.parent / "pictures" / "before-and-after.svg"
    main(__doc__.partition("\n")[0], draw, HERE / "audit.json", out)
