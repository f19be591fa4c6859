"""Each fault of the list can be planted, its tests are there, and the command tries them."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from mutations import copies, listed, run
from support.documents import ROOT

pytestmark = pytest.mark.once

LISTED = listed.read()


def why_not(entry, known):
    """Why a fault cannot be tried, None if it can."""
    try:
        file, changed = known.plant(entry)
        ast.parse(changed)
    except (listed.DoesNotApplyError, SyntaxError) as error:
        return str(error)
    return "it changes nothing" if changed == (ROOT / file).read_text() else None


def test_every_listed_fault_applies_to_the_source_as_it_is():
    known = listed.Definitions(ROOT)
    told = {entry.name: why_not(entry, known) for entry in LISTED}
    assert {name: why for name, why in told.items() if why} == {}


def test_the_tests_of_a_listed_fault_are_there_and_of_one_tier_without_a_gpu():
    assert LISTED
    for entry in LISTED:
        assert len({copies.tier_of(test) for test in entry.tests}) == 1, entry.name
        for test in entry.tests:
            assert copies.tier_of(test) in copies.TIERS
            path, _, name = test.partition("[")[0].partition("::")
            assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), test


def test_the_list_is_short_and_names_each_fault_once_and_why():
    names = Counter(entry.name for entry in LISTED)
    assert [name for name, count in names.items() if count > 1] == []
    assert all(entry.why for entry in LISTED)
    assert len(LISTED) <= 200


# -- the command, on a small tree -------------------------------------------------------------

SOURCE = """
def add(one, two):
    return one + two
"""
TESTS = """
from streamkit.sums import add

def test_add():
    assert add(1, 2) == 3

def test_add_nothing():
    assert add(1, 0) == 1

def test_that_fails():
    assert add(1, 2) == 4
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package of one module, and its tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its streamkit has no plugin
    for name, text in {
        "streamkit/__init__.py": "",
        "streamkit/sums.py": SOURCE,
        "tests/unit/test_sums.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['-ra']\n",
    }.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def entry(name, old="one + two", test="test_add"):
    tests = (f"tests/unit/test_sums.py::{test}",)
    return listed.Listed(name, "sums are wrong", "add", old, "one - two", tests)


def test_each_listed_fault_has_to_be_caught_by_its_tests(tree, capsys):
    before = {path: path.read_text() for path in tree.rglob("*.*")}
    assert run.try_listed([entry("first")], tree, 1)
    others = [entry("second", test="test_add_nothing"), entry("third", "one * two")]
    assert not run.try_listed([entry("first"), *others], tree, 2)
    out = capsys.readouterr().out
    assert re.search(r"^caught .* first  tests/unit/test_sums.py::test_add", out, re.MULTILINE)
    assert re.search(r"^survived .* second  sums are wrong$", out, re.MULTILINE)
    assert out.endswith("1 caught, 1 survived, 1 does not apply\n")
    assert {path: path.read_text() for path in before} == before


@pytest.mark.parametrize("test", ["test_that_fails", "test_that_is_gone"])
def test_no_listed_fault_is_tried_unless_its_tests_pass_without_it(tree, capsys, test):
    assert not run.try_listed([entry("one", test=test)], tree, 1)
    assert "none was tried" in capsys.readouterr().out
