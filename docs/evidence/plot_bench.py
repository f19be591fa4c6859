"""Draw ``docs/evidence/bench.svg`` from ``bench.json``, which ``streamkit bench`` wrote.

python docs/evidence/plot_bench.py                          needs the dependency group `docs`
python docs/evidence/plot_bench.py --data FILE --out FILE   elsewhere
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from _drawing import main
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

HERE = Path(__file__).parent

# Okabe and Ito's colours, which differ for every kind of colour vision; a missed bound is hatched
# too, and each mark has a form of its own.
MET, MISSED, AT_MOST, AIM = "#56B4E9", "#E69F00", "#000000", "#009E73"
OURS = "#0072B2"  # as a line
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


PANELS = 2  # beside each other


def draw(data: dict[str, Any]) -> Figure:
    """Return the figure: the rows, and below them the panels and the whole program."""
    panels, ways = panels_of(data), data.get("end_to_end", [])
    heights = [1.7 + 0.56 * len(data["rows"]), 2.6 * math.ceil(len(panels) / PANELS),
               0.9 + 0.4 * len(ways) if ways else 0]  # fmt: skip
    figure = Figure(figsize=(9.6, sum(heights)), layout="constrained")
    parts = [part for part in zip((rows, curves, whole), (data["rows"], panels, ways), heights,
                                  strict=True) if part[2]]  # fmt: skip
    places = figure.subfigures(len(parts), squeeze=False,
                               height_ratios=[height for *_, height in parts])[:, 0]  # fmt: skip
    for place, (draw_part, what, _) in zip(places, parts, strict=True):
        draw_part(place, what)
    figure.suptitle(title(data), x=0.01, ha="left", fontsize=9)
    return figure


# -- the rows ---------------------------------------------------------------------------------


def rows(figure: Any, rows: list[dict[str, Any]]) -> None:
    """Draw a bar for each row, its bounds as marks, on a logarithmic axis."""
    axes = figure.add_subplot()
    least = min(min(row["ratio_low"], row["aim"]) for row in rows) / 1.6
    most = max(1.0, *(max(row["ratio_high"], row["at_most"]) for row in rows)) * 2.2
    for place, row in enumerate(rows):
        bar(axes, place, row, least)
    axes.axvline(1, color="#555555", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if least < tick < most]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(
        "StreamKit's time / the library's own call  (1 = as fast as that; left: faster)"
    )
    axes.set_yticks(range(len(rows)), [words(row) for row in rows])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    bare(axes, "x")
    figure.legend(handles=legend(rows), loc="outside lower center", ncols=5, frameon=False,
                  fontsize=8)  # fmt: skip


def bare(axes: Any, grid: str) -> None:
    """Take away the frame, and draw a grid along one axis."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)


def bar(axes: Any, place: int, row: dict[str, Any], left: float) -> None:
    """Draw one row: the median as a bar, the spread as a line, both bounds, and the number."""
    ratio, low, high = row["ratio"], row["ratio_low"], row["ratio_high"]
    style = {"color": MET} if row["met"] else {"color": MISSED, "hatch": "///"}
    axes.barh(place, ratio - left, left=left, height=0.5, edgecolor="white", zorder=2, **style)
    axes.plot([low, high], [place, place], color="#333333", linewidth=1.2, zorder=3)
    axes.plot([row["at_most"]] * 2, [place - 0.36, place + 0.36], color=AT_MOST, linewidth=2.2,
              zorder=4)  # fmt: skip
    axes.plot(row["aim"], place, marker="D", markersize=6, color=AIM, markeredgecolor="white",
              linestyle="none", zorder=5)  # fmt: skip
    axes.annotate(f"{ratio:.2f}", (max(high, row["at_most"]), place), (7, 0),
                  textcoords="offset points", va="center", fontsize=9, fontweight="bold",
                  zorder=6)  # fmt: skip


def words(row: dict[str, Any]) -> str:
    """Return what was measured, and against what, in lines that fit."""
    both = row["name"], f"against {row['against']}"
    return "\n".join(textwrap.fill(text, 52, break_long_words=False) for text in both)


def legend(rows: list[dict[str, Any]]) -> list[Any]:
    """Return what the marks mean; a missed bound only where there is one."""
    handles: list[Any] = [Patch(color=MET, label="median, within its bound")]
    if not all(row["met"] for row in rows):
        handles.append(
            Patch(facecolor=MISSED, edgecolor="white", hatch="///", label="median, over its bound")
        )
    return [
        *handles,
        Line2D([], [], color="#333333", linewidth=1.2, label="least to greatest"),
        Line2D([], [], color=AT_MOST, linewidth=2.2, linestyle="none", marker="|", markersize=11,
               markeredgewidth=2.2, label="at most"),
        Line2D([], [], color=AIM, marker="D", linestyle="none", label="aim"),
    ]  # fmt: skip


# -- what grows -------------------------------------------------------------------------------


def panels_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each panel shows: its words, and the points of both sides in microseconds."""
    panels = [
        {
            "name": curve["name"],
            "against": curve["against"],
            "x": curve["over"],
            "y": "us, an operation",
            "points": [
                (point["count"], point["ours_ns"] / 1e3, point["theirs_ns"] / 1e3)
                for point in curve["points"]
            ],
        }
        for curve in data.get("curves", [])
    ]
    late: dict[str, list[dict[str, Any]]] = {}
    for row in data.get("lateness", []):
        late.setdefault(row["name"].partition(" after ")[0], []).append(row)
    return panels + [
        {
            "name": name,
            "against": "; ".join(dict.fromkeys(row["against"] for row in found)),
            "x": "ms of work",
            "y": "us late",
            "points": [(row["work_ms"], row["ours_us"], row["theirs_us"]) for row in found],
        }
        for name, found in late.items()
    ]


def curves(figure: Any, panels: list[dict[str, Any]]) -> None:
    """Draw a panel for each, from zero up: over 1,000 times as many, flat is what is hoped for."""
    grid = figure.subplots(math.ceil(len(panels) / PANELS), PANELS, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        counts, ours, theirs = zip(*panel["points"], strict=True)
        axes.plot(counts, theirs, color="#777777", marker="s", markersize=5, linestyle="--")
        axes.plot(counts, ours, color=OURS, marker="o", linewidth=2)
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(min(0, *ours, *theirs) * 1.1, max(*ours, *theirs) * 1.15)
        axes.set_title(words(panel), fontsize=8, loc="left")
        axes.set_xlabel(panel["x"], fontsize=8)
        axes.set_ylabel(panel["y"].replace("us", "\N{MICRO SIGN}s"), fontsize=8)
        axes.tick_params(labelsize=8)
        bare(axes, "y")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    sides = [
        Line2D([], [], color=OURS, marker="o", linewidth=2, label="StreamKit"),
        Line2D([], [], color="#777777", marker="s", linestyle="--", label="theirs"),
    ]
    figure.legend(handles=sides, loc="outside lower center", ncols=2, frameon=False, fontsize=8)


# -- a whole program --------------------------------------------------------------------------


def whole(figure: Any, ways: list[dict[str, Any]]) -> None:
    """Draw a bar for each way of doing the same work."""
    axes = figure.add_subplot()
    for place, way in enumerate(ways):
        axes.barh(place, way["ms"], height=0.5, color=MET, zorder=2)
        axes.plot([way["ms_low"], way["ms_high"]], [place] * 2, color="#333333", linewidth=1.2,
                  zorder=3)  # fmt: skip
        axes.annotate(f"{way['ms']:.2f}", (max(way["ms"], way["ms_high"]), place), (7, 0),
                      textcoords="offset points", va="center", fontsize=9,
                      fontweight="bold")  # fmt: skip
    axes.set_yticks(range(len(ways)), [way["name"] for way in ways])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_ylim(len(ways) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(way["ms_high"] for way in ways))
    axes.set_xlabel("ms for 100 steps of torch, CuPy and Warp on 64K floats")
    bare(axes, "x")


def title(data: dict[str, Any]) -> str:
    """Return on what, with what and when it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    machine = ", ".join(filter(None, [data["device"], data["cpu"], f"CUDA {data['cuda']}"]))
    return f"streamkit bench, {data['date']}: {machine}\n{versions}"


if __name__ == "__main__":
    main(__doc__.partition("\n")[0], draw, HERE / "bench.json", HERE / "bench.svg")
