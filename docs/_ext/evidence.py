"""Tables and plots from the records in ``docs/evidence``: what was measured, and on what.

On a phone each row becomes a list without its head, so each cell says what it is. The plots take
their colours from ``streamkit.css``. Bars are boxes and their words are text of the page, because
an image would shrink on a phone.
"""

from __future__ import annotations

import functools
import json
import math
import re
import runpy
import tomllib
from collections import Counter
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._queues.registry import LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parents[1] / "evidence"
SUITE = FOLDER.parents[1] / "tests" / "gpu" / "evidence.py"
MICROSECOND = 1000  # ns

RECORDS = {
    "gpu.json": "the GPU tests",
    "gpu_cuda12.json": "GPU tests with CUDA 12",
    "matrix.json": "`streamkit matrix`",
    "bench.json": "`tox -e bench`",
}
NAMES = {
    "python": "Python",
    "torch": "torch",
    "cupy": "CuPy",
    "cupy-cuda12x": "CuPy",
    "cupy-cuda13x": "CuPy",
    "warp": "Warp",
    "warp-lang": "Warp",
    "tvm_ffi": "tvm-ffi",
    "apache-tvm-ffi": "tvm-ffi",
    "numba": "numba-cuda",
    "numba-cuda": "numba-cuda",
    "numba_mlir": "numba-cuda-mlir",
    "cuda.core": "cuda-core",
    "cuda-core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "cuda-bindings": "cuda-bindings",
    "jax": "JAX",
    "triton": "Triton",
    "rmm": "RMM",
    "rmm-cu13": "RMM",
    "nvmath-python": "nvmath-python",
    "cuda-cccl": "cuda.compute",
    "cuda-tile": "cuda.tile",
    "cvcuda-cu13": "CV-CUDA",
    "nccl4py": "nccl4py",
    "nvidia-cutlass-dsl": "CuTe DSL",
    "nvidia-dali-cuda130": "DALI",
    "pylibcudf-cu13": "pylibcudf",
    "pylibraft-cu13": "RAFT",
    "pynvvideocodec": "PyNvVideoCodec",
}


def read(name: str) -> dict[str, Any]:
    """Return a record."""
    record: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return record


@functools.cache
def suite() -> dict[str, Any]:
    """Return what ``tests/gpu/evidence.py`` defines."""
    return runpy.run_path(str(SUITE))


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


# -- versions ---------------------------------------------------------------------------------


def versions() -> str:
    """Return what each record was made with, a column for each record."""
    named = [(told, record) for name, told in RECORDS.items() for record in _runs(name)]
    records = [record for _, record in named]
    known = list(dict.fromkeys(NAMES.values()))
    rows = [
        ["date", *(record["date"] for record in records)],
        ["GPU", *(_devices(record) for record in records)],
        ["CUDA of the driver", *(_cuda(record) for record in records)],
    ]
    rows += [[name, *(_version(record, name) for record in records)] for name in known]
    rows.append(["result", *(_result(record) for record in records)])
    return table(["", *(told for told, _ in named)], rows)


def ranges() -> str:
    """Return, for each library, the oldest version, and the newest that was tested where."""
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = [text.rpartition(" ")[2] for text in project["classifiers"] if " 3." in text]
    oldest = project["requires-python"].removeprefix(">=").partition(",")[0]
    rows = [["Python", oldest, max(pythons, key=_numbers), _on_a_gpu("Python")]]
    for row in LIBRARIES:
        name = NAMES[row.name]
        versions = [".".join(map(str, version)) for version in (row.oldest, row.newest)]
        rows.append([name, *versions, _on_a_gpu(name)])
    return table(["", "oldest", "newest tested without a GPU", "newest tested on a GPU"], rows)


def _on_a_gpu(name: str) -> str:
    records = [record for file in RECORDS for record in _runs(file)]
    found = [version for one in records if (version := _version(one, name)) != "not used"]
    return max(found, key=_numbers, default="none").partition("+")[0]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _runs(name: str) -> list[dict[str, Any]]:
    """Return the runs of a record; one of GPU tests has several, with how their cases ended."""
    record = read(name)
    if "runs" not in record:
        return [record]
    runs = {key: {**run, "tally": Counter[str]()} for key, run in record["runs"].items()}
    for one in record["files"].values():
        tally = runs[one["run"]]["tally"]
        tally["passed"] += one["passed"] - len(one["earlier"])
        tally.update({outcome: len(cases) for outcome, cases in one["others"].items()})
        for run in one["earlier"].values():
            runs[run]["tally"]["passed"] += 1
    return list(runs.values())


def gpu_share() -> str:
    """Return in a sentence how much of the GPU tests' record is of the source of this site."""
    record, now = read("gpu.json"), suite()["meanings"]()
    told = (
        f"The record of the GPU tests is of this site's source in {suite()['share'](record, now)}"
    )
    if suite()["fresh"](record, now) == list(now):
        return f"{told}."
    return f"{told}; what the other files reach has changed since they ran."


def _devices(record: dict[str, Any]) -> str:
    names = record.get("devices") or [record["device"]]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _cuda(record: dict[str, Any]) -> str:
    cuda: str = record.get("cuda_driver") or record["cuda"]
    return cuda


def _version(record: dict[str, Any], name: str) -> str:
    found = [text for key, text in record["versions"].items() if NAMES.get(key) == name]
    return found[0] if found else "not used"


def _result(record: dict[str, Any]) -> str:
    if "tally" in record:
        return ", ".join(f"{count} {kind}" for kind, count in record["tally"].items())
    if "pairs" in record:
        good = sum(pair["ok"] for pair in record["pairs"])
        return f"{good} of {len(record['pairs'])} pairs right"
    met = sum(row["met"] for row in record["rows"])
    return f"{met} of {len(record['rows'])} bounds met"


# -- speed ------------------------------------------------------------------------------------


def speed() -> str:
    """Return the table of ``bench.json``, with what is over its bound said plainly."""
    rows = []
    for row in read("bench.json")["rows"]:
        verdict = "within" if row["met"] else "**over**"
        note = f" ({row['note']})" if row["note"] else ""
        rows.append(
            [
                f"`{row['name']}` against {row['against']}{note}",
                f"**{row['ratio']:.2f}** ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
                f"at most {row['at_most']:.2f}: {verdict}; aim {row['aim']:.2f}",
                f"{_time(row['ours_ns'])}, theirs {_time(row['theirs_ns'])}",
            ]
        )
    head = ["operation", "ratio", "bound", "time"]
    return table(head, rows)


def counts() -> str:
    """Return what ``bench.json`` counted, and how long else it measured, as a list."""
    record = read("bench.json")
    lines = [
        f"- {count['name']}: "
        + ", ".join(f"{kind} {number:g}" for kind, number in count["found"].items())
        + ("" if count["met"] else " **(not as promised)**")
        for count in record["counts"]
    ]
    imported = record["imported"]
    lines.append(f"- `{imported['name']}`: {imported['ms']:.0f} ms, aim {imported['aim_ms']:g}")
    return "\n".join(lines)


def python_cost() -> str:
    """Return, of each row over its bound, what is not Python's own cost, as a list."""
    lines = [
        f"- `{row['name']}`: {_time(row['bare_ns'])} of {_time(row['ours_ns'])}; the bound allows "
        f"{_time(row['at_most'] * row['theirs_ns'])}"
        for row in read("bench.json")["rows"]
        if row["bare_ns"] and not row["met"]
    ]
    return "\n".join(lines) or "- none is over its bound"


def lateness() -> str:
    """Return how late each way of waiting ends, beside its bound."""
    rows = [
        [
            f"{row['name']} against {row['against']}",
            f"**{row['ours_us']:.0f} µs**, theirs {row['theirs_us']:.0f} µs",
            f"at most {row['at_most_us']:.0f} µs: {'within' if row['met'] else '**over**'}",
            f"{row['ours_core']:.2f} of a core, theirs {row['theirs_core']:.2f}",
        ]
        for row in read("bench.json")["lateness"]
    ]
    head = ["wait", "how late", "bound", "what it takes"]
    return table(head, rows)


def growth() -> str:
    """Return each curve's numbers: of both sides, for the least count and the greatest."""
    rows = []
    for curve in read("bench.json")["curves"]:
        first, last = curve["points"][0], curve["points"][-1]
        rows.append(
            [
                f"`{curve['name']}` against {curve['against']}",
                f"{first['count']:,} to {last['count']:,} {curve['over']}",
                f"{_time(first['ours_ns'])} to {_time(last['ours_ns'])}",
                f"theirs {_time(first['theirs_ns'])} to {_time(last['theirs_ns'])}",
            ]
        )
    return table(["operation", "beside", "StreamKit", "theirs"], rows)


def end_to_end() -> str:
    """Return what the whole program takes in each way; README.md has the same table."""
    ways = read("bench.json")["end_to_end"]
    rows = [[named(way), f"{way['ms']:.2f} ms"] for way in ways]
    return table(["100 steps of torch, CuPy and Warp", "time"], rows)


def named(way: dict[str, Any]) -> str:
    """Return what readers call a way to run the whole program."""
    return str(way["name"]).replace(" a step", " in each step")


def gains() -> str:
    """Return what a user gains, in three lines."""
    took = {way["name"]: way["ms"] for way in read("bench.json")["end_to_end"]}
    own, scope, graph = took["nested managers a step"], took["one scope"], took["one graph"]
    by_hand, ours = _managers()
    faster = f"{own / scope:.1f} times as fast as nested managers in each step"
    lines = [
        f"The three managers alone take the program {by_hand} a step, and a scope {ours}.",
        f"One scope around all steps takes {scope:.1f} ms: {faster}.",
        f"One graph of all three libraries takes {graph:.2f} ms: {own / graph:.0f} times as fast.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def why_not() -> list[str]:
    """Return the figures of ``Why not`` in README.md that the bench has."""
    took = {way["name"]: way["ms"] for way in read("bench.json")["end_to_end"]}
    sync, scope = took["a device synchronisation between libraries"], took["one scope"]
    managers = "Three libraries by hand take {}, and {} in a scope".format(*_managers())
    return [managers, f"takes {sync:.1f} ms where one scope takes {scope:.1f} ms"]


def _managers() -> tuple[str, str]:
    """Return how long the libraries' own managers take, nested, and a scope of all three."""
    (row,) = (
        row
        for row in read("bench.json")["rows"]
        if row["name"] == "with s:, three libraries, torch's pool stream"
    )
    return f"{row['theirs_ns'] / MICROSECOND:.1f} µs", f"{row['ours_ns'] / MICROSECOND:.1f} µs"


STEP = {"with s:, three libraries, blocking stream": 3, "b.wait(a)": 2}
"""How often a step of ``examples/11_torchrun.py`` does what a row of the bench measures."""


def a_step() -> str:
    """Return what a step of data-parallel training calls, and what that takes of the host."""
    times = {row["name"]: row["ours_ns"] for row in read("bench.json")["rows"]}
    rows = [
        [f"`{name}`", str(count), _time(times[name]), _time(count * times[name])]
        for name, count in STEP.items()
    ]
    total = sum(count * times[name] for name, count in STEP.items())
    rows.append(["together", "", "", f"**{_time(total)}**"])
    return table(["call", "times", "each", "in a step"], rows)


def _time(ns: float) -> str:
    return f"{ns / MICROSECOND:.2f} µs" if ns >= MICROSECOND else f"{ns:.0f} ns"


# -- plots ------------------------------------------------------------------------------------


GAINED = {  # a curve's name and what it counts, and what it is called on a page for users
    (
        "with s:, three libraries, torch's pool stream",
        "known streams",
    ): "A scope of all three",
    ("with sk.use(q, libraries=('torch', 'cupy'))", "threads"): "A scope of two, in many threads",
    ("s.wait(native stream), wrapped by nobody", "known streams"): "A wait for another library",
}


def plot_gains() -> str:
    """Return the curves of what users do most, with their words."""
    return _panels(
        (f"{GAINED[key]}, against {escape(curve['against'])}", curve)
        for curve in read("bench.json")["curves"]
        if (key := (curve["name"], curve["over"])) in GAINED
    )


def plot_growth() -> str:
    """Return all curves."""
    return _panels(
        (f"<code>{escape(curve['name'])}</code> against {escape(curve['against'])}", curve)
        for curve in read("bench.json")["curves"]
    )


def plot_end_to_end() -> str:
    """Return a bar for each way of doing the same work."""
    ways = read("bench.json")["end_to_end"]
    longest = max(way["ms_high"] for way in ways)
    lines = ['<div class="bars">']
    for way in ways:
        low, high = (100 * way[name] / longest for name in ("ms_low", "ms_high"))
        lines += [
            f"<p>{escape(named(way))}</p>",
            (
                f'<div class="line"><div class="axis">'
                f'<i class="met" style="width: {100 * way["ms"] / longest:.1f}%"></i>'
                f'<i class="spread" style="left: {low:.1f}%; width: {high - low:.1f}%"></i></div>'
                f"<b>{way['ms']:.2f} ms</b></div>"
            ),
        ]
    return "\n".join([*lines, "</div>"])


def _panels(curves: Iterable[tuple[str, dict[str, Any]]]) -> str:
    legend = '<p class="legend"><i class="ours"></i> StreamKit <i class="theirs"></i> theirs</p>'
    return "\n".join(['<div class="panels">', legend, *(_panel(*one) for one in curves), "</div>"])


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 320, 180, 52, 10, 28, 44


def _panel(words: str, curve: dict[str, Any]) -> str:
    """Return one panel: its words, which are HTML, and the lines of both sides in microseconds."""
    counts = [point["count"] for point in curve["points"]]
    sides = {
        side: [point[f"{side}_ns"] / MICROSECOND for point in curve["points"]]
        for side in ("theirs", "ours")
    }
    most = max(*sides["theirs"], *sides["ours"])

    def at(count: float, value: float) -> str:
        along = math.log(count / counts[0]) / (math.log(counts[-1] / counts[0]) or 1)
        across = LEFT + along * (WIDTH - LEFT - RIGHT)
        down = TOP + (1 - value / most / 1.1) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">']
    for value in (0, most):
        line = at(counts[0], value)
        parts.append(f'<path class="rule" d="M{line} L{at(counts[-1], value)}"/>')
        down = float(line.split(",")[1]) + 4
        parts.append(f'<text class="end" x="{LEFT - 8}" y="{down:.1f}">{value:.3g}</text>')
    for count in counts:
        across = at(count, 0).split(",")[0]
        parts.append(f'<text class="mid" x="{across}" y="{HEIGHT - 26}">{count:,}</text>')
    for side, values in sides.items():
        places = list(map(at, counts, values))
        parts.append(f'<polyline class="{side}" points="{" ".join(places)}"/>')
        for place in places:
            across, _, down = place.partition(",")
            parts.append(f'<circle class="{side}" cx="{across}" cy="{down}" r="3.5"/>')
    parts.append(
        f'<text class="mid" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}">'
        f"µs each, over {escape(curve['over'])}</text></svg>"
    )
    return f'<div role="img" tabindex="0"><p>{words}</p>{"".join(parts)}</div>'
