"""The command of the bench: what it prints, and how it exits."""

from __future__ import annotations

import json
import re
import sys

import pytest

import bench as tool
from bench import BenchReport, __main__
from bench.end_to_end import Whole
from bench.growth import Curve, Point
from bench.lateness import Lateness
from bench.measurements import Count, Import
from bench.timing import Row
from support.command import OF_COMMANDS
from support.documents import ROOT
from support.programs import forked, run_python

pytest.importorskip("rich")

REPORT = BenchReport(
    date="2026-11-21",
    device="a GPU",
    driver=None,
    cuda="13.0",
    cpu=None,
    versions={"streamkit": "0.1.0", "torch": "2.11.0"},
    repeats=3,
    iterations=10,
    rows=[
        Row("fast [x]", "theirs.call", 25.0, 100.0, 0.25, 0.2, 0.3, 0.4, 0.3),
        Row("fair", "theirs.call", 35.0, 100.0, 0.35, 0.3, 0.4, 0.4, 0.3),
        Row("slow", "theirs.call", 45.0, 100.0, 0.45, 0.4, 0.5, 0.4, 0.3, "a note", 15.0),
    ],
    lateness=[
        Lateness("soon", "spin", 1, 15.0, -5.0, 0.5, 1.0, 15.0, None, None),
        Lateness("late", "block", 5, 59.0, 100.0, 0.5, 0.1, 100.0, 60.0, 0.1, "and it may look"),
    ],
    curves=[
        Curve("scope", "managers", "known streams", [Point(10, 5.0, 8.0), Point(5000, 6000.0, 9.0)])
    ],
    end_to_end=[Whole("one scope", 4.0, 3.9, 4.2)],
    counts=[Count("wait", {"record": 1.0, "wait": 2.0}, {"record": 1, "wait": 1})],
    imported=Import("import streamkit", 12.0, 11.0, 13.0, 25.0),
)


def bench_(*arguments, blocked=("torch", "cupy", "warp")):
    """Run ``python -m bench ARGUMENTS`` where ``blocked`` cannot be imported."""
    return forked(
        "from bench.__main__ import main\nmain()\n", *arguments,
        loaded=OF_COMMANDS, blocked=blocked, path=[ROOT / "tests"], CUDA_VISIBLE_DEVICES="-1",
        COLUMNS="100",
    )  # fmt: skip


def test_the_bench_is_a_module_that_runs_from_a_clone():
    done = run_python("-P", "-m", "bench", "--help", path=[ROOT / "tests"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: bench ")


def test_without_rich_it_exits_2_with_the_line_that_installs_it():
    done = bench_(blocked=("rich",))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "The bench needs rich. Install it: pip install rich\n"


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_bench_that_cannot_run_says_why_and_fails(arguments, tmp_path):
    path = tmp_path / "bench.json"
    done = bench_(*arguments, "--output", path)
    assert done.returncode == 1
    said = done.stderr.rstrip("\n")
    assert said.startswith("The bench needs a CUDA GPU")
    assert (
        (json.loads(done.stdout) == {"error": said}) if "--json" in arguments else not done.stdout
    )
    assert done.stderr.count("\n") == 1
    assert not path.exists()


@pytest.fixture
def bench(monkeypatch, capsys):
    """Run ``python -m bench ARGUMENTS`` on given numbers; return its exit status and output."""

    def bench(report, *arguments):
        monkeypatch.setattr(tool, "run", lambda **_: print("a library talks") or report)
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exited:
            __main__.main()
        return exited.value.code, *capsys.readouterr()

    return bench


def test_bench_shows_each_row_with_its_verdict_and_exits_0_whatever_it_is(bench):
    status, output, complaints = bench(REPORT)
    assert (status, complaints) == (0, "")
    verdicts = {
        line.partition("  ")[0].strip(): line.split()[-1]
        for line in output.splitlines()
        if re.search(r"[\d-] +(aim|yes|no)$", line.rstrip())
    }
    rows = {"fast [x]": "aim", "fair": "yes", "slow": "no"}
    assert verdicts == {**rows, "soon": "yes", "late": "no"}
    assert "slow: of its 45 ns the calls of CUDA and the libraries that it has to make" in output
    assert "0.25 (0.20-0.30)" in output
    assert "fair: against theirs.call\n" in output
    assert "wait: record 1, wait 2, and should be {'record': 1, 'wait': 1}" in output
    assert "import streamkit: 12.0 ms (11.0 to 13.0), aim 25" in output
    assert "a library talks" not in output
    assert "\x1b" not in output


def test_bench_as_json_and_to_a_file(bench, tmp_path):
    path = tmp_path / "bench.json"
    status, output, _ = bench(REPORT, "--json", "--output", path)
    assert status == 0
    assert json.loads(output) == json.loads(path.read_text())
    assert [row["met"] for row in json.loads(output)["rows"]] == [True, True, False]
    assert bench(REPORT, "--output", path)[2] == f"Written: {path}\n"
