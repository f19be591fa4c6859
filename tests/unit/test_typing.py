"""What a type checker says of users' programs; the lane ``typing`` asks pyright too."""

from __future__ import annotations

import pytest

from support.documents import ROOT
from support.programs import run_python

PROGRAMS = ROOT / "tests" / "typing"
MYPY = "-m", "mypy", "--config-file", ROOT / "pyproject.toml"


@pytest.mark.parametrize("program", ["users.py", "libraries.py"])
def test_right_calls_pass_and_wrong_ones_do_not(program, tmp_path):
    pytest.importorskip("mypy")
    done = run_python(*MYPY, "--strict", "--cache-dir", tmp_path, PROGRAMS / program)
    assert done.returncode == 0, done.stdout


def test_control_mypy_looks_at_the_package(tmp_path):
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import streamkit as sk\n\nsk.wrap(5)\n", encoding="utf-8")
    done = run_python(*MYPY, "--strict", "--cache-dir", tmp_path, wrong)
    assert 'No overload variant of "wrap" matches argument type "int"' in done.stdout
