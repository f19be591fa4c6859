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
# whose checks have mutants of their own (tests/support/conformance_mutants.py).
WITHOUT = (
    "__init__.py",
    "errors.py",
    "protocols.py",
    "_base/adapter.py",
    "_base/messages.py",
    "_tools/",
    "testing/_conformance/",
    "testing/_gate.py",
    "testing/__init__.py",
    "backends/_torch/capture.py",  # it has no test without a GPU: tests/gpu/test_graph*.py are all
    "backends/_torch/random_numbers.py",  # nor has this, but for one of torch's header
    "backends/_torch/shared_pool.py",  # torch's allocator needs a device
    "backends/_rmm/",  # tests/emulated/test_rmm_pool.py has all, and RMM is not in all13
    "backends/_cupy/fft_plans.py",  # its tests need a GPU too
    # the same, and of two processes: tests/gpu/test_sharing.py
    "_cuda/sharing.py",
    "_sharing/mappings.py",
)


# -- the list ---------------------------------------------------------------------------------


def why_not(mutation, known):
    """Why a mutation cannot be tried, None if it can."""
    try:
        definition = run.find(mutation.where, known)
        mutated = run.mutate(definition, mutation)
        ast.parse(mutated)
    except (run.DoesNotApplyError, SyntaxError) as error:
        return str(error)
    return "it changes nothing" if mutated == definition.source else None


@pytest.fixture(scope="module")
def known():
    return run.definitions(ROOT)


def test_every_mutation_applies_to_the_source_as_it_is(known):
    told = {mutation.name: why_not(mutation, known) for mutation in LISTED}
    assert {name: why for name, why in told.items() if why} == {}


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


def test_no_two_mutations_are_one(known):
    found = [(run.find(mutation.where, known), mutation) for mutation in LISTED]
    changes = Counter(
        (definition.file, run.mutate(definition, mutation)) for definition, mutation in found
    )
    assert max(changes.values()) == 1


def test_every_mechanism_has_a_mutation(known):
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "streamkit").rglob("*.py")
        if ast.parse(path.read_text()).body[1:]  # more than a docstring
    }
    without = tuple(f"streamkit/{name}" for name in WITHOUT)
    listed = {run.find(mutation.where, known).file for mutation in LISTED}
    assert {name for name in modules - listed if not name.startswith(without)} == set()


# -- where a mutation is ----------------------------------------------------------------------

SHAPES = """
import sys

LIMIT = 3

def wrapped(function):
    limit = 3
    return function

class Square:
    side = 1

    @property
    def area(self):
        return self.side * self.side

    @area.setter
    def area(self, area):
        self.side = area ** 0.5

    @wrapped
    def draw(self):
        def line(length):
            return "-" * length
        return line(self.side)

if sys.platform == "win32":
    def draw(one):
        return one.draw()
else:
    def draw(one):
        return one.draw(), None
"""

CIRCLES = """
class Circle:
    def draw(self):
        return "o"
"""


@pytest.fixture
def shapes(tmp_path):
    """A package with folders, in which some names are given more than once."""
    for name, text in {
        "__init__.py": "VERSION = 3\n",
        "_flat/__init__.py": "FOLDER = True\n",
        "_flat/shapes.py": SHAPES,
        "_round/shapes.py": CIRCLES,
    }.items():
        path = tmp_path / "streamkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return run.definitions(tmp_path)


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("wrapped", "_flat.shapes.wrapped"),
        ("Square", "_flat.shapes.Square"),
        ("Square.draw", "_flat.shapes.Square.draw"),
        ("line", "_flat.shapes.Square.draw.line"),
        ("draw.line", "_flat.shapes.Square.draw.line"),
        ("Circle.draw", "_round.shapes.Circle.draw"),
        ("shapes.draw", "_flat.shapes.draw"),
        ("_round.shapes", "_round.shapes"),
        ("_flat", "_flat"),
    ],
)
def test_a_definition_is_found_by_the_end_of_its_path(shapes, where, path):
    assert run.find(where, shapes).path == f"streamkit.{path}"


def test_the_package_and_its_folders_are_their_init_files(shapes):
    assert run.find("streamkit", shapes).file == "streamkit/__init__.py"
    assert run.find("_flat", shapes).file == "streamkit/_flat/__init__.py"
    assert run.find("wrapped", shapes).file == "streamkit/_flat/shapes.py"


@pytest.mark.parametrize("where", ["triangle", "quare", "Square.dra", "Square.line", "side", ""])
def test_what_is_the_end_of_no_path_is_told(shapes, where):
    with pytest.raises(run.DoesNotApplyError, match=f"nothing in streamkit is called {where}$"):
        run.find(where, shapes)


def test_what_ends_several_paths_is_told_with_all_of_them(shapes):
    with pytest.raises(run.DoesNotApplyError) as told:
        run.find("draw", shapes)
    names = ("_flat.shapes.Square.draw", "_flat.shapes.draw", "_round.shapes.Circle.draw")
    paths = ", ".join(f"streamkit.{name}" for name in names)
    assert str(told.value) == f"draw may be any of {paths}"
    with pytest.raises(run.DoesNotApplyError, match="shapes may be any of"):
        run.find("shapes", shapes)


@pytest.mark.parametrize(
    ("where", "old"),
    [
        ("wrapped", "limit = 3\n    return function\n"),  # to the end of its last line
        ("Square.draw", "    @wrapped\n"),  # the decorator too
        ("Square.draw", '"-" * length'),  # and what is nested
        ("Square.area", "self.side * self.side"),  # both parts of a property
        ("Square.area", "self.side = area"),
        ("shapes.draw", "one.draw(), None"),  # both arms of an if
        ("_flat.shapes", "LIMIT = 3"),
        ("Square", "side = 1"),
    ],
)
def test_the_old_text_is_replaced_there_alone(shapes, where, old):
    definition = run.find(where, shapes)
    mutated = run.mutate(definition, mutation("there", old, "<new>", where=where))
    assert mutated == SHAPES.replace(old, "<new>")


def test_what_is_outside_the_definition_does_not_count(shapes):
    one = mutation("in draw", "one.draw()", "one", where="shapes.draw")
    with pytest.raises(run.DoesNotApplyError, match=r"shapes\.draw has the old text 2 times"):
        run.mutate(run.find(one.where, shapes), one)  # once in each arm
    one = mutation("in line", "self.side", "0", where="line")
    with pytest.raises(run.DoesNotApplyError, match=r"draw\.line has the old text 0 times"):
        run.mutate(run.find(one.where, shapes), one)
    one = mutation("in wrapped", "function", "0", where="wrapped")
    with pytest.raises(run.DoesNotApplyError, match=r"wrapped has the old text 2 times"):
        run.mutate(run.find(one.where, shapes), one)
    one = mutation("in draw", "self.side", "0", where="Square.draw")
    mutated = run.mutate(run.find(one.where, shapes), one)  # five times in the file
    assert mutated == SHAPES.replace("line(self.side)", "line(0)")


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


def mutation(name, old="one + two", new="one - two", test="test_add", where="add"):
    tests = (f"tests/unit/test_sums.py::{test}",)
    return run.Mutation(name, "sums are wrong", where, old, new, tests)


KILLED = mutation("killed")
SURVIVES = mutation("survives", "one + one", "one + 2 * one", "test_twice_of_nothing", "twice")


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


def test_a_function_that_moves_takes_its_mutation_along(tree, capsys):
    assert run.try_all([KILLED], tree, 1)
    add, marker, rest = SOURCE.partition("def twice")
    folder = tree / "streamkit/_parts"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "added.py").write_text(add)
    (tree / "streamkit/sums.py").write_text(
        f"from streamkit._parts.added import add\n\n\n{marker}{rest}"
    )
    assert run.try_all([KILLED], tree, 1)
    assert capsys.readouterr().out.count("mutations: 1 killed") == 2


@pytest.mark.parametrize(
    ("old", "where"),
    [("one * two", "add"), ("one", "add"), ("one + two", "gone"), ("one + two", "twice")],
    ids=["none", "several", "no-such-function", "another-function"],
)
def test_one_that_no_longer_applies_is_told(tree, capsys, old, where):
    assert not run.try_all([KILLED, mutation("stale", old, where=where)], tree, 1)
    assert "1 killed, 1 does not apply" in capsys.readouterr().out


def test_each_is_taken_out_before_the_next(tree, capsys):
    harmless = mutation("harmless", "one + one", "2 * one", "test_add", "twice")
    assert not run.try_all([KILLED, harmless], tree, 1)
    assert "1 killed, 1 survived" in capsys.readouterr().out


def test_one_whose_tests_cannot_run_is_not_taken_for_killed(tree, capsys):
    assert not run.try_all([KILLED, mutation("broken", new="one +")], tree, 1)
    assert "1 killed, 1 no test ran" in capsys.readouterr().out


def test_one_that_hangs_is_not_taken_for_killed(tree, capsys, monkeypatch):
    control = run.control

    def with_time(*arguments):  # for what ends by itself, also on a busy machine
        outcome = control(*arguments)
        monkeypatch.setattr(run, "LIMIT", 3)
        return outcome

    monkeypatch.setattr(run, "control", with_time)
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
