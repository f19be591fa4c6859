"""The command line, as a user calls it: what it prints, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamkit
from _programs import BLOCKER

for needed in ("numpy", "rich", "typer"):
    pytest.importorskip(needed)

LIBRARIES = ("torch", "cupy", "warp")  # slow to import, and not what is tested here


def streamkit_(*arguments, blocked=LIBRARIES):
    """Run ``streamkit ARGUMENTS`` where ``blocked`` cannot be imported."""
    code = BLOCKER.format(blocked=tuple(blocked)) + "from streamkit._cli import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(streamkit.__file__).parents[1]),
            "CUDA_VISIBLE_DEVICES": "-1",
            "COLUMNS": "100",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def test_demo_shows_a_row_for_each_stage_and_the_verdict_last():
    done = streamkit_("demo")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    for stage in ("luminance", "stretch", "sharpen", "mean"):
        (row,) = [line.split() for line in lines if line.split()[:1] == [stage]]
        assert row[1] == "NumPy"
        assert row[3] == "host"
        assert float(row[-1]) > 0
    assert lines[-1].startswith("OK: off by ")
    assert "torch (not installed), CuPy (not installed), Warp (not installed)" in done.stdout


def test_demo_prints_no_escape_codes_and_breaks_no_line_where_there_is_no_terminal():
    done = streamkit_("demo")
    assert "\x1b" not in done.stdout
    (note,) = [line for line in done.stdout.splitlines() if "host queue" in line]
    assert note.endswith(".")


def test_demo_as_json():
    done = streamkit_("demo", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert result["max_error"] < result["tolerance"]
    assert [stage["library"] for stage in result["stages"]] == ["numpy"] * 4
    assert "image" not in result


def test_demo_writes_the_image(tmp_path):
    path = tmp_path / "galaxies.pgm"
    done = streamkit_("demo", "--output", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Written: {path}\n")
    assert path.read_bytes().startswith(b"P5\n256 256\n255\n")
    assert path.stat().st_size == 15 + 256 * 256


def test_demo_that_cannot_write_says_so_and_fails(tmp_path):
    done = streamkit_("demo", "--output", tmp_path / "missing" / "x.pgm")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "FileNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--json")])
def test_a_wrong_result_exits_1(monkeypatch, capsys, arguments):
    from streamkit import _cli, _demo, _demo_stages

    run = _demo.run
    monkeypatch.setattr(_demo, "run", lambda: run(device="cpu", libraries=()))
    monkeypatch.setattr(_demo_stages._NumPy, "sharpen", lambda _, x: x)
    monkeypatch.setattr(sys, "argv", ["streamkit", *arguments])
    with pytest.raises(SystemExit) as exited:
        _cli.main()
    assert exited.value.code == 1
    output = capsys.readouterr().out
    assert "WRONG: off by " in output or json.loads(output)["ok"] is False


@pytest.mark.parametrize("missing", ["numpy", "rich", "typer"])
@pytest.mark.parametrize("arguments", [("demo",), ("--help",), ()])
def test_without_the_extra_it_exits_2_with_the_line_that_installs_it(missing, arguments):
    done = streamkit_(*arguments, blocked=[missing])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"The streamkit command needs numpy, rich, typer, and {missing} is not installed. "
        "Install them with: pip install 'streamkit-cuda[cli]'\n"
    )


@pytest.mark.parametrize("blocked", [(), ("numpy", "rich", "typer")])
def test_version_needs_no_extra(blocked):
    done = streamkit_("--version", blocked=blocked)
    assert (done.returncode, done.stdout) == (0, f"{streamkit.__version__}\n")


def test_help_names_the_commands_there_are():
    done = streamkit_("--help")
    assert done.returncode == 0
    assert " demo " in done.stdout
    for later in ("doctor", "matrix", "bench", "audit"):
        assert later not in done.stdout


def test_an_unknown_command_exits_2():
    assert streamkit_("dance").returncode == 2
