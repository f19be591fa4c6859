"""What a type checker says of users' programs; the lane ``typing`` asks pyright too."""

from __future__ import annotations

import pytest

from support.documents import ROOT
from support.programs import run_python

pytestmark = pytest.mark.once

PROGRAMS = ROOT / "tests" / "typing"
MYPY = "-m", "mypy", "--config-file", ROOT / "pyproject.toml"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What one run has read, the next need not."""
    pytest.importorskip("mypy")
    return tmp_path_factory.mktemp("mypy")


def test_right_calls_pass_and_wrong_ones_do_not(cache):
    programs = [PROGRAMS / "users.py", PROGRAMS / "libraries.py"]
    done = run_python(*MYPY, "--strict", "--cache-dir", cache, *programs)
    assert done.returncode == 0, done.stdout


def test_control_mypy_looks_at_the_package(cache, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import streamkit as sk\n\nsk.wrap(5)\n", encoding="utf-8")
    done = run_python(*MYPY, "--strict", "--cache-dir", cache, wrong)
    assert 'No overload variant of "wrap" matches argument type "int"' in done.stdout
