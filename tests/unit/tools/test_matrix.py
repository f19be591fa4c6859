"""``streamkit matrix`` without a GPU: its verdicts, its table, its data, and how it exits."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import sys
from functools import partial

import pytest

from streamkit._cli import machine  # the command needs a device
from streamkit._cli import matrix as tool  # the command needs a device
from streamkit._cli.machine import UnusableError  # the command needs a device
from streamkit._cli.matrix import LABELS, MatrixReport, Pair  # made up here
from streamkit._cuda import driver  # there is no device

NAMES = ("torch", "cuda.bindings", "native")
LOST = ["order: work ran before the work for which it had to wait"]


def pair(first, second, problems=()):
    kept = None if second == "cuda.bindings" else True
    return Pair(first, second, True, True, kept, True, not problems, list(problems))


def report_of(problems=()):
    pairs = [pair(*names) for names in itertools.permutations(NAMES, 2)]
    pairs[0] = pair(pairs[0].first, pairs[0].second, problems)
    return MatrixReport(
        date="2026-11-21",
        device="a GPU [x]",
        cuda="13.0",
        versions={"streamkit": "0.1.0", "torch": "2.11.0"},
        libraries=list(NAMES),
        missing={"warp": "not installed. Install it with: pip install warp-lang"},
        pairs=pairs,
    )


# -- the verdicts -----------------------------------------------------------------------------


def test_the_data_holds_the_verdicts():
    data = json.loads(json.dumps(tool.as_data(report_of(LOST))))
    assert data["ok"] is False
    assert data["pairs"][0]["ok"] is False
    assert data["pairs"][0]["problems"] == LOST
    assert data["pairs"][1]["ok"] is True
    assert [pair["owner_kept"] for pair in data["pairs"]].count(None) == 2


# -- what is here -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cupy", 'pip install "cupy-cuda{}x>=14.0"'),
        ("tvm_ffi", 'pip install "apache-tvm-ffi>=0.1.6"'),
        ("numba", 'pip install "numba-cuda[cu{}]>=0.30.4"'),
        ("torch", 'pip uninstall torch, then pip install "torch>=2.11" --index-url '),
    ],
)
@pytest.mark.parametrize("major", [12, 13])
def test_the_line_that_installs_a_library_fits_what_is_here(
    monkeypatch, tmp_path, name, line, major
):
    for found in (f"cuda_bindings-{major}.9", "torch-2.13.0+cpu"):
        (tmp_path / f"{found}.dist-info").mkdir()
        text = "Name: {}\nVersion: {}\n".format(*found.split("-"))
        (tmp_path / f"{found}.dist-info/METADATA").write_text(text)
    only_here = partial(importlib.metadata.distributions, path=[str(tmp_path)])
    monkeypatch.setattr(importlib.metadata, "distributions", only_here)
    assert machine.install_line(name).startswith(line.format(major))
    assert machine.remedy(name, "why") == f"why. Install it with: {machine.install_line(name)}"


def test_a_library_that_cannot_take_part_is_listed_with_why_and_the_others_are_tried(monkeypatch):
    def load(name):
        if name == "torch":
            raise UnusableError("torch 2.13.0+cpu finds no GPU")
        if name == "cupy":
            raise ModuleNotFoundError("No module named 'cupy'", name="cupy")
        if name == "warp":
            raise RuntimeError("it is broken")
        return name

    found, missing = machine.load_each(LABELS, load)
    assert list(found) == [name for name in LABELS if name not in ("torch", "cupy", "warp")]
    assert missing == {
        "torch": "torch 2.13.0+cpu finds no GPU",
        "cupy": "not installed",
        "warp": "RuntimeError: it is broken",
    }


# -- the command ------------------------------------------------------------------------------


@pytest.fixture
def matrix(monkeypatch, capsys):
    """Run ``streamkit matrix ARGUMENTS`` on a given report; return its exit status and output."""
    from streamkit._cli import cli  # the command, in this process

    def matrix(report, *arguments, columns=80):
        monkeypatch.setattr(tool, "run", lambda **_: print("a library talks") or report)
        monkeypatch.setattr(sys, "argv", ["streamkit", "matrix", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return exited.value.code, *capsys.readouterr()

    return matrix


def rows(output):
    lines = (line.split() for line in output.splitlines())
    return {words[1]: words[2:] for words in lines if set(words[2:]) & {"-"}}


def test_the_grid_shows_each_pair_and_the_command_exits_0(matrix):
    status, output, complaints = matrix(report_of())
    assert (status, complaints) == (0, "")
    assert rows(output) == {
        "torch": ["-", "ok*", "ok"],
        "cuda.bindings": ["ok", "-", "ok"],
        "StreamKit": ["ok", "ok*", "-"],
    }
    assert output.startswith("a GPU [x], CUDA 13.0; streamkit 0.1.0, torch 2.11.0\n")
    assert "a bare handle can hold nothing" in output
    assert "No Warp: not installed. Install it with: pip install warp-lang\n" in output
    assert output.endswith("OK: 6 pairs of 3 libraries\n")
    assert "a library talks" not in output
    assert "\x1b" not in output


def test_a_pair_that_fails_is_shown_with_its_problem_and_exits_1(matrix):
    status, output, complaints = matrix(report_of(LOST))
    assert (status, complaints) == (1, "")
    assert rows(output)["torch"] == ["-", "FAIL", "ok"]
    assert f"torch to cuda.bindings: {LOST[0]}\n" in output
    assert output.endswith("FAILED: 1 of 6 pairs of 3 libraries\n")


def test_the_grid_of_all_libraries_fits_a_narrow_terminal(matrix):
    pairs = [pair(*names) for names in itertools.permutations(LABELS, 2)]
    report = MatrixReport("", "a GPU", "13.0", {}, list(LABELS), {}, pairs)
    _, output, _ = matrix(report, columns=60)
    numbers = [str(number) for number in range(1, len(LABELS) + 1)]
    assert output.splitlines()[2].split() == ["from", "\\", "to", *numbers]
    grid = rows(output)
    assert list(grid) == list(LABELS.values())
    assert {len(cells) for cells in grid.values()} == {len(LABELS)}
    assert "…" not in output


@pytest.mark.parametrize(("problems", "expected"), [((), 0), (LOST, 1)])
def test_as_json_and_to_a_file(matrix, tmp_path, problems, expected):
    path = tmp_path / "matrix.json"
    report = report_of(problems)
    status, output, _ = matrix(report, "--json", "--output", path)
    assert status == expected
    assert json.loads(output) == json.loads(path.read_text()) == tool.as_data(report)
    assert matrix(report, "--output", path)[1:] == (matrix(report)[1], f"Written: {path}\n")


def test_it_that_cannot_write_says_so_before_it_runs(matrix, tmp_path):
    status, output, complaints = matrix(report_of(), "--output", tmp_path / "missing" / "x.json")
    assert (status, output) == (2, "")
    assert "there is no folder" in complaints


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no /dev/full")
def test_it_whose_file_fails_later_shows_its_answer_says_so_and_fails(matrix):
    shown = matrix(report_of())[1]
    status, output, complaints = matrix(report_of(), "--output", "/dev/full")
    assert (status, output) == (1, shown)
    assert complaints.startswith("OSError: ")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_the_command_says_plainly_that_there_is_no_device(monkeypatch, capsys, arguments):
    from streamkit._cli import cli  # the command, in this process

    monkeypatch.setattr(driver, "is_present", lambda: False)
    monkeypatch.setattr(sys, "argv", ["streamkit", "matrix", *arguments])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    output, complaints = capsys.readouterr()
    said = "streamkit matrix needs a CUDA GPU; none was found."
    assert complaints == f"{said}\n"
    assert (json.loads(output) == {"error": said}) if arguments else not output
