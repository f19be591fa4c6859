"""The list of mutations is one of the source as it is, and the command that tries them can fail."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from mutations import run

ROOT = Path(__file__).parents[2]
LISTED = run.read()

# The tools, whose output is looked at; the contract, which does nothing; and the conformance kit,
# whose checks have mutants of their own (tests/_conformance_mutants.py).
WITHOUT = {
    "__init__",
    "_adapter",
    "_host_engine",
    "_pytest_plugin",
    "errors",
    "_refusals",
    "_refusals_arrays",
    "_refusals_audit",
    "_refusals_waiting",
    "protocols",
    "_cli",
    "_doctor_table",
    "_gate",
    "_torch_capture",  # it has no test without a GPU: tests/gpu/test_graph*.py are all of it
}
WITHOUT_PREFIX = ("_bench", "_conformance", "_demo", "_matrix")


# -- the list ---------------------------------------------------------------------------------


def why_not(mutation):
    """Why a mutation cannot be tried, None if it can."""
    source = (ROOT / mutation.file).read_text()
    try:
        mutated = run.mutate(source, mutation)
        ast.parse(mutated)
    except (run.DoesNotApplyError, SyntaxError) as error:
        return str(error)
    return "it changes nothing" if mutated == source else None


def test_every_mutation_applies_to_the_source_as_it_is():
    assert {mutation.name: why_not(mutation) for mutation in LISTED if why_not(mutation)} == {}


def test_the_tests_of_a_mutation_are_there_and_of_one_tier_without_a_gpu():
    for mutation in LISTED:
        assert mutation.tier in {"unit", "nogpu", "emulated"}, mutation.name
        assert {run.tier_of(test) for test in mutation.tests} == {mutation.tier}, mutation.name
        for test in mutation.tests:
            path, _, name = test.partition("[")[0].partition("::")
            assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), test


def test_names_are_given_once_and_reasons_always():
    names = Counter(mutation.name for mutation in LISTED)
    assert [name for name, count in names.items() if count > 1] == []
    assert all(mutation.why for mutation in LISTED)


def test_no_two_mutations_are_one():
    changes = Counter((mutation.file, mutation.old, mutation.new) for mutation in LISTED)
    assert max(changes.values()) == 1


def test_every_mechanism_has_a_mutation():
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "streamkit").rglob("*.py")
        if path.stem not in WITHOUT and not path.stem.startswith(WITHOUT_PREFIX)
    }
    assert {mutation.file for mutation in LISTED} == modules


# -- the command, on a small tree -------------------------------------------------------------

SOURCE = """
def add(one, two):
    return one + two


def twice(one):
    return one + one
"""

TESTS = """
import pytest
from streamkit.sums import add, twice

def test_add():
    assert add(1, 2) == 3

def test_twice_of_nothing():
    assert twice(0) == 0

def test_that_fails():
    assert False

@pytest.mark.skip
def test_that_is_skipped():
    pass
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
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def mutation(name, old="one + two", new="one - two", test="test_add"):
    tests = (f"tests/unit/test_sums.py::{test}",)
    return run.Mutation(name, "sums are wrong", "streamkit/sums.py", old, new, tests)


KILLED = mutation("killed")
SURVIVES = mutation("survives", "one + one", "one + 2 * one", "test_twice_of_nothing")


def test_mutations_that_are_killed_are_told_with_the_killer(tree, capsys):
    again = mutation("again", new="two + one + one")
    assert run.try_all([KILLED, again], tree, 1)
    control, *rows, tally = capsys.readouterr().out.splitlines()
    assert re.match(r"unit/test_sums\.py \(unmutated\) +passed", control)
    assert [row.split()[:2] for row in rows] == [["killed", "killed"], ["again", "killed"]]
    assert all(row.endswith("test_add") for row in rows)
    assert tally == "mutations: 2 killed"


def test_one_that_survives_is_told_with_its_harm(tree, capsys):
    assert not run.try_all([KILLED, SURVIVES], tree, 2)
    *_, row, tally = capsys.readouterr().out.splitlines()
    assert re.match(r"survives +survived .* sums are wrong$", row)
    assert tally == "mutations: 1 killed, 1 survived"


@pytest.mark.parametrize("old", ["one * two", "one"], ids=["none", "several"])
def test_one_that_no_longer_applies_is_told(tree, capsys, old):
    assert not run.try_all([KILLED, mutation("stale", old)], tree, 1)
    assert "1 killed, 1 does not apply" in capsys.readouterr().out


def test_one_whose_tests_cannot_run_is_not_taken_for_killed(tree, capsys):
    assert not run.try_all([KILLED, mutation("broken", new="one +")], tree, 1)
    assert "1 killed, 1 no test ran" in capsys.readouterr().out


def test_one_that_hangs_is_not_taken_for_killed(tree, capsys, monkeypatch):
    monkeypatch.setattr(run, "LIMIT", 3)
    hangs = mutation("hangs", "    return one + two", "    while True:\n        pass")
    assert not run.try_all([hangs], tree, 1)
    assert "1 timed out" in capsys.readouterr().out


@pytest.mark.parametrize("test", ["test_that_fails", "test_that_is_skipped", "test_that_is_gone"])
def test_nothing_is_tried_unless_the_tests_pass_without_it(tree, capsys, test):
    assert not run.try_all([KILLED, mutation("other", test=test)], tree, 1)
    out = capsys.readouterr().out
    assert "none was tried" in out
    assert "killed" not in out


def test_the_checkout_is_left_alone(tree, capsys):
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*.py")}
    run.try_all([KILLED, SURVIVES], tree, 1)
    assert {path: path.stat().st_mtime_ns for path in tree.rglob("*.py")} == before
    assert (tree / "streamkit/sums.py").read_text() == SOURCE


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        run.main(["no-such-mutation"])
    assert ended.value.code == 2
    assert "not in the list: no-such-mutation" in capsys.readouterr().err
