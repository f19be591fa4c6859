"""Draw ``docs/evidence/bench.svg`` from ``bench.json``, which ``streamkit bench`` wrote.

python docs/evidence/plot_bench.py                          needs the dependency group `docs`
python docs/evidence/plot_bench.py --data FILE --out FILE   elsewhere
"""

from __future__ import annotations

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
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def draw(data: dict[str, Any]) -> Figure:
    """Return the figure: a bar for each row, its bounds as marks, on a logarithmic axis."""
    rows = data["rows"]
    figure = Figure(figsize=(9.6, 1.7 + 0.56 * len(rows)), layout="constrained")
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
    axes.set_yticks(range(len(rows)), [f"{row['name']}\nagainst {against(row)}" for row in rows])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    figure.suptitle(title(data), x=0.01, ha="left", fontsize=9)
    figure.legend(handles=legend(rows), loc="outside lower center", ncols=5, frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


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


def against(row: dict[str, Any]) -> str:
    """Return what a row is compared with, in lines that fit beside its bar."""
    words = row["against"].split(", ")
    half = (len(words) + 1) // 2
    return (
        row["against"]
        if len(words) == 1
        else f"{', '.join(words[:half])},\n{', '.join(words[half:])}"
    )


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


def title(data: dict[str, Any]) -> str:
    """Return on what, with what and when it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    machine = ", ".join(filter(None, [data["device"], data["cpu"], f"CUDA {data['cuda']}"]))
    return f"streamkit bench, {data['date']}: {machine}\n{versions}"


if __name__ == "__main__":
    main(__doc__.partition("\n")[0], draw, HERE / "bench.json", HERE / "bench.svg")
