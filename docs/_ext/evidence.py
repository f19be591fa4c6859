"""Tables from the records in ``docs/evidence``: what was measured, and on what.

On a phone each row becomes a list without its head, so each cell says what it is.
"""

from __future__ import annotations

import functools
import json
import re
import runpy
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from streamkit._queues.registry import LIBRARIES

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
    "cupti-python": "cupti-python",
}


def read(name: str) -> dict[str, Any]:
    """Return a record."""
    record: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return record


@functools.cache
def suite() -> dict[str, Any]:
    """Return what ``tests/gpu/evidence.py`` defines."""
    return runpy.run_path(str(SUITE))


@functools.cache
def meanings() -> dict[str, str]:
    """Return the hash that the record of each file of GPU tests would note now."""
    found: dict[str, str] = suite()["meanings"]()
    return found


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
    runs = [{**run, "tally": Counter()} for run in record["runs"]]
    for one in record["files"].values():
        for case, outcome in one["cases"].items():
            runs[one["earlier"].get(case, one["run"])]["tally"][outcome] += 1
    return runs


def gpu_share() -> str:
    """Return in a sentence how much of the GPU tests' record is of the source of this site."""
    record, now = read("gpu.json"), meanings()
    told = (
        f"The record of the GPU tests is of this site's source in {suite()['share'](record, now)}"
    )
    if all(suite()["is_fresh"](record, name, now) for name in now):
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


OLDER = "The record at hand is older than what belongs here: `tox -e bench` measures it."


def python_cost() -> str:
    """Return, of each row over its bound, what is not Python's own cost, as a list."""
    timed = [row for row in read("bench.json")["rows"] if row.get("bare_ns")]
    lines = [
        f"- `{row['name']}`: {_time(row['bare_ns'])} of {_time(row['ours_ns'])}; the bound allows "
        f"{_time(row['at_most'] * row['theirs_ns'])}"
        for row in timed
        if not row["met"]
    ]
    return "\n".join(lines) or ("- none is over its bound" if timed else OLDER)


def lateness() -> str:
    """Return how late each way of waiting ends, beside its bound."""
    rows = [
        [
            f"{row['name']} against {row['against']}",
            f"**{row['ours_us']:.0f} µs**, theirs {row['theirs_us']:.0f} µs",
            f"at most {row['at_most_us']:.0f} µs: {'within' if row['met'] else '**over**'}",
            f"{row['ours_core']:.2f} of a core, theirs {row['theirs_core']:.2f}",
        ]
        for row in read("bench.json").get("lateness", [])
    ]
    head = ["wait", "how late", "bound", "what it takes"]
    return table(head, rows) if rows else OLDER


def growth() -> str:
    """Return each curve's numbers: of both sides, for the least count and the greatest."""
    rows = []
    for curve in read("bench.json").get("curves", []):
        first, last = curve["points"][0], curve["points"][-1]
        rows.append(
            [
                f"`{curve['name']}` against {curve['against']}",
                f"{first['count']:,} to {last['count']:,} {curve['over']}",
                f"{_time(first['ours_ns'])} to {_time(last['ours_ns'])}",
                f"theirs {_time(first['theirs_ns'])} to {_time(last['theirs_ns'])}",
            ]
        )
    return table(["operation", "beside", "StreamKit", "theirs"], rows) if rows else OLDER


def end_to_end() -> str:
    """Return what the whole program takes in each way; README.md has the same table."""
    ways = read("bench.json").get("end_to_end", [])
    rows = [[named(way), f"{way['ms']:.2f} ms"] for way in ways]
    return table(["100 steps of torch, CuPy and Warp", "time"], rows) if rows else OLDER


def named(way: dict[str, Any]) -> str:
    """Return what readers call a way to run the whole program."""
    return str(way["name"]).replace(" a step", " in each step")


def gains() -> str:
    """Return what a user gains, in three lines."""
    took = {way["name"]: way["ms"] for way in read("bench.json").get("end_to_end", [])}
    if not took:
        return OLDER
    own, scope, graph = took["nested managers a step"], took["one scope"], took["one graph"]
    step = took["a scope a step"]
    lines = [
        f"A scope in each step takes {step:.1f} ms, and the libraries' own managers {own:.1f} ms.",
        f"One scope around all steps takes {scope:.1f} ms: {own / scope:.1f} times as fast.",
        f"One graph of all three libraries takes {graph:.2f} ms: {own / graph:.0f} times as fast.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def memory() -> str:
    """Return the most memory that the libraries take at a time, with one pool and without."""
    rows = [
        [
            f"{row['name']}, against {row['against']}",
            f"{row['each_bytes'] / 1e6:.0f} MB",
            f"**{row['ours_bytes'] / 1e6:.0f} MB**, theirs {row['theirs_bytes'] / 1e6:.0f} MB",
            f"at most {row['at_most']:.2f} of theirs: {'within' if row['met'] else '**over**'}",
        ]
        for row in read("bench.json").get("memory", [])
    ]
    head = ["who shares", "each uses", "most at a time", "bound"]
    return table(head, rows) if rows else OLDER


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
