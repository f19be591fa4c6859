"""The faults that are planted, the list of those that were met, and the command that tries both."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from mutations import copies, faults, listed, reach, run

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[3]
LISTED = listed.read()

# -- the generator ----------------------------------------------------------------------------


def changes(source, operator=None):
    """What is replaced, and by what, of all faults or of those of one operator."""
    found = [one for one in faults.plant("m.py", source) if operator in (None, one.operator)]
    return [(source.encode()[one.start : one.end].decode(), one.new) for one in found]


@pytest.mark.parametrize(
    ("operator", "source", "expected"),
    [
        ("condition inverted", "if a:\n    b()\n", [("a", "not (a)")]),
        ("condition inverted", "while not a:\n    b()\n", [("not a", "a")]),
        ("condition inverted", "x = b if a else c\n", [("a", "not (a)")]),
        ("condition inverted", "x = [b for b in c if b]\n", [("b", "not (b)")]),
        ("condition inverted", "x = a == b\n", [("a == b", "not (a == b)")]),
        ("condition inverted", "while True:\n    b()\n", []),
        (
            "part of a condition dropped",
            "if a and b or c:\n    d()\n",
            [("a and b or c", "a and b"), ("a and b or c", "c")],
        ),
        ("part of a condition dropped", "x = a or b\n", []),
        ("branch dropped", "if a:\n    b()\nelse:\n    c()\n", [("a", "False")]),
        ("branch dropped", "if a:\n    b()\n", [("a", "False"), ("a", "True")]),
        (
            "branch dropped",
            "try:\n    a()\nexcept E:\n    b()\n    c()\n",
            [("b()\n    c()", "raise")],
        ),
        ("statement dropped", "a(b)\n", [("a(b)", "pass")]),
        ("statement dropped", "for a in b:\n    break\n", [("break", "pass")]),
        ("statement dropped", "raise E(a, 1, not b)\n", [("raise E(a, 1, not b)", "pass")]),
        ("statement dropped", "def f(a):\n    a.b = c\n    d = c\n", [("a.b = c", "pass")]),
        ("keep-alive or lock removed", "a.keep(b)\n", [("a.keep(b)", "pass")]),
        ("keep-alive or lock removed", "a(owner=b)\n", [("a(owner=b)", "pass"), ("b", "None")]),
        ("keep-alive or lock removed", "a.block(clock)\n", []),
        ("keep-alive or lock removed", "with lock:\n    a()\n", [("with lock:\n    a()", "a()")]),
        ("keep-alive or lock removed", "with a, b.lock:\n    c()\n", [("a, b.lock", "a")]),
        (
            "finally or with unprotected",
            "try:\n    a()\nfinally:\n    b()\n",
            [("try:\n    a()\nfinally:\n    b()", "a()\nb()")],
        ),
        (
            "finally or with unprotected",
            "try:\n    a()\nexcept E:\n    b()\nfinally:\n    # c\n    d()\n    e()\n",
            [
                (
                    "try:\n    a()\nexcept E:\n    b()\nfinally:\n    # c\n    d()\n    e()",
                    "try:\n    a()\nexcept E:\n    b()\nd()\ne()",
                )
            ],
        ),
        (
            "finally or with unprotected",
            "if a:\n    with b:\n        c()\n\n        d()\n",
            [("with b:\n        c()\n\n        d()", "c()\n\n    d()")],
        ),
        ("finally or with unprotected", "with a as b:\n    c()\n", []),
        (
            "arguments swapped",
            "a(b, c + d, e)\n",
            [("b, c + d", "c + d, b"), ("c + d, e", "e, c + d")],
        ),
        ("arguments swapped", "a(b, b)\nisinstance(a, b)\nmax(a, b)\na(*b, c)\n", []),
        ("off by one", "x = a < b\n", [("a < b", "a <= b")]),
        ("off by one", "x = a[1:]\n", [("1", "2")]),
        ("flag inverted", "a(b, c=True)\n", [("True", "False")]),
        ("another one of two", "def f(a: S, b: S, c: T):\n    return a\n", [("a", "b")]),
        ("another one of two", "def f(one, other):\n    return one\n", [("one", "other")]),
        ("another one of two", "def f(a, b):\n    return a\n", []),
        ("key shortened", "x[a, b]\n", [("a, b", "b,"), ("a, b", "a,")]),
        (
            "key shortened",
            "x.get((a, b, c))\n",
            [("(a, b, c)", "(b, c)"), ("(a, b, c)", "(a, c)"), ("(a, b, c)", "(a, b)")],
        ),
        ("key shortened", "key = a, b\n", [("a, b", "b,"), ("a, b", "a,")]),
        ("key shortened", "x = a, b\ny: dict[a, b]\nz = tuple[a, b]\n", []),
    ],
)  # fmt: skip
def test_an_operator_makes_the_mistake_that_it_is_called_by(operator, source, expected):
    assert sorted(changes(source, operator)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""\n',
        "if TYPE_CHECKING:\n    import a\n    a(b, c)\n",
        "def f(a: T[b, 1] = None) -> T[True]:\n    return a\n",
        "class A:\n    def __repr__(self):\n        return a(self, 1)\n",
        "@overload\ndef f(a: int = 1):\n    b()\n",
        "__all__ = a(1, 2)\n",
        'x = f"{a(1, 2)}"\n',
        "assert a < 1\n",
        "@dataclass(frozen=True)\nclass A:\n    a: int\n",
    ],
)
def test_what_cannot_matter_is_left_alone(source):
    assert changes(source) == []


def test_only_the_statements_of_an_error_are_changed_and_not_its_words():
    assert changes("if a:\n    raise E(b, 1, True)\n", "off by one") == []


def test_letters_of_several_bytes_do_not_move_a_fault():
    [fault] = [
        one for one in faults.plant("m.py", 'x = "ü"; a("é", b)\n') if "swap" in one.operator
    ]
    assert fault.apply('x = "ü"; a("é", b)\n') == 'x = "ü"; a(b, "é")\n'


def test_a_diff_has_the_lines_that_differ_and_the_fault_where_it_is():
    source = "def f():\n    a()\n    if b:\n        c()\n"
    fault = next(one for one in faults.plant("m.py", source) if one.new == "not (b)")
    assert fault.diff(source).splitlines()[1:] == [
        "     a()",
        "-    if b:",
        "+    if not (b):",
        "         c()",
    ]
    assert (fault.name, fault.lines, fault.function) == ("m.py:3 condition inverted", (3, 3), "f")


@pytest.fixture(scope="module")
def sources():
    """Two modules of the package, as it is."""
    names = ("streamkit/_queues/ordering.py", "streamkit/_support/living_processes.py")
    return {name: (ROOT / name).read_text() for name in names}


def test_a_sample_is_that_of_its_seed(sources):
    chosen = faults.sample(sources, 20, 1)
    assert chosen == faults.sample(sources, 20, 1)
    assert chosen != faults.sample(sources, 20, 2)


def test_a_sample_has_all_operators_and_one_fault_a_line_which_python_takes(sources):
    chosen = faults.sample(sources, 60, 1)
    assert len({(fault.file, fault.lines[0]) for fault in chosen}) == len(chosen) == 60
    planted = {one.operator for name, text in sources.items() for one in faults.plant(name, text)}
    assert {fault.operator for fault in chosen} == planted
    for fault in chosen:
        compile(fault.apply(sources[fault.file]), fault.file, "exec")


def test_the_lines_that_have_changed_come_first(sources):
    name, _ = sources
    lines = {(name, number) for number in range(100, 120)}
    chosen = faults.sample(sources, 30, 1, lines)
    is_changed = [faults._is_changed(fault, lines) for fault in chosen]
    assert 5 < sum(is_changed) < 30  # some lines have no fault
    assert is_changed == sorted(is_changed, reverse=True)


# -- the list ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known():
    return listed.Definitions(ROOT)


def why_not(entry, known):
    """Why a fault cannot be tried, None if it can."""
    try:
        fault = known.fault(entry)
        changed = fault.apply(known.sources[fault.file])
        ast.parse(changed)
    except (listed.DoesNotApplyError, SyntaxError) as error:
        return str(error)
    return "it changes nothing" if changed == known.sources[fault.file] else None


def test_every_listed_fault_applies_to_the_source_as_it_is(known):
    told = {entry.name: why_not(entry, known) for entry in LISTED}
    assert {name: why for name, why in told.items() if why} == {}


def test_the_tests_of_a_listed_fault_are_there_and_of_one_tier_without_a_gpu():
    assert LISTED
    for entry in LISTED:
        assert entry.tests, entry.name
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


SHAPES = """
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

if windows:
    def draw(one):
        return one.draw()
else:
    def draw(one):
        return one.draw(), None
"""


@pytest.fixture
def shapes(tmp_path):
    for name, text in {
        "__init__.py": "VERSION = 3\n",
        "_flat/shapes.py": SHAPES,
        "_round/shapes.py": "class Circle:\n    def draw(self):\n        return 'o'\n",
    }.items():
        path = tmp_path / "streamkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return listed.Definitions(tmp_path)


def entry(name, old="one + two", new="one - two", test="test_add", where="add"):
    tests = (f"tests/unit/test_sums.py::{test}",)
    return listed.Listed(name, "sums are wrong", where, old, new, tests)


@pytest.mark.parametrize(
    ("where", "old"),
    [
        ("Square.draw", "    @wrapped\n"),  # the decorator too
        ("Square.draw", '"-" * length'),  # and what is nested
        ("draw.line", '"-" * length'),
        ("Square.area", "self.side * self.side"),  # both parts of a property
        ("Square.area", "self.side = area"),
        ("shapes.draw", "one.draw(), None"),  # both arms of an if
        ("_flat.shapes", "side = 1"),
    ],
)
def test_a_fault_is_found_by_the_end_of_a_path_and_changed_there_alone(shapes, where, old):
    fault = shapes.fault(entry("there", old, "<new>", where=where))
    assert fault.apply(SHAPES) == SHAPES.replace(old, "<new>")


@pytest.mark.parametrize(
    ("where", "old", "error"),
    [
        ("triangle", "side", "nothing in streamkit is called triangle"),
        ("quare", "side", "nothing in streamkit is called quare"),
        ("shapes", "side", "shapes may be any of streamkit._flat.shapes, streamkit._round.shapes"),
        ("line", "self.side", "streamkit._flat.shapes.Square.draw.line has the old text 0 times"),
        ("shapes.draw", "one.draw()", "streamkit._flat.shapes.draw has the old text 2 times"),
    ],
)
def test_one_that_does_not_apply_says_why(shapes, where, old, error):
    with pytest.raises(listed.DoesNotApplyError, match=re.escape(error)):
        shapes.fault(entry("nowhere", old, where=where))


# -- the command, on a small tree -------------------------------------------------------------

SOURCE = """
def add(one, two):
    return one + two


def twice(one):
    return one + one


def unused(one):
    return one + 1
"""

TESTS = """
import os, subprocess, sys
import pytest
from streamkit.sums import add, twice

def test_add():
    assert add(1, 2) == 3

def test_twice_of_nothing():
    assert twice(0) == 0

@pytest.fixture(scope="module")
def three():
    return add(1, 2)

@pytest.mark.parametrize("more", [0, 1])
def test_of_a_module(three, more):
    assert three + more == 3 + more

def test_that_fails():
    assert add(1, 2) == 4

@pytest.mark.parametrize("code", ["add(1, 2)", "twice(1)"])
def test_in_a_child(code):
    code = f"import streamkit.sums as s; s.{code}"
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_in_a_fork():
    child = os.fork()
    if not child:
        twice(1)
        os._exit(0)
    os.waitpid(child, 0)
"""

FILE, MODULE = "tests/unit/test_sums.py", "streamkit/sums.py"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package of one module, and its tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its streamkit has no plugin
    for name, text in {
        "streamkit/__init__.py": "",
        MODULE: SOURCE,
        FILE: TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['-ra']\n",
    }.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def planted(old, new):
    line = SOURCE[: SOURCE.index(old)].count("\n") + 1
    start = SOURCE.index(old)
    function = re.findall(r"def (\w+)", SOURCE[:start])[-1]
    return faults.Fault(MODULE, "a test", start, start + len(old), new, (line, line), function)


CAUGHT = planted("one + two", "one - two")
SURVIVES = planted("one + one", "one * one")
UNREACHED = planted("one + 1", "one")


@pytest.fixture
def measured(monkeypatch):
    """What two tests reach, without coverage; the list has how often that was asked for."""
    asked = []

    def measure(self, tree, files):
        asked.extend(files)
        return {f"{FILE}::test_{name}": (0.1, []) for name in ("add", "twice_of_nothing")}, ""

    lines = {
        f"{FILE}::test_add": {MODULE: 1 << CAUGHT.lines[0]},
        f"{FILE}::test_twice_of_nothing": {MODULE: 1 << SURVIVES.lines[0]},
    }
    monkeypatch.setattr(reach.Reach, "_run", measure)
    monkeypatch.setattr(reach, "_lines_by_test", lambda tree: lines)
    return asked


def test_a_survivor_is_told_from_one_that_is_caught(tree, tmp_path, measured, capsys):
    before = {path: (path.read_text(), path.stat().st_mtime_ns) for path in tree.rglob("*.*")}
    chosen = [CAUGHT, SURVIVES, UNREACHED]
    share = run.try_sample(chosen, tree, 1, tmp_path / "store" / "reach", [FILE])
    assert share == pytest.approx(100 / 3)
    out = capsys.readouterr().out
    assert re.search(r"^caught .* streamkit/sums.py:3 a test  \S+::test_add$", out, re.MULTILINE)
    assert "\nsurvived: streamkit/sums.py:7 a test\n" in out
    assert "\n-    return one + one\n+    return one * one\n" in out
    assert "\nunreached: streamkit/sums.py:11 a test\n" in out
    assert out.endswith(
        "streamkit            1          1   3\nall                  1          1   3  33.3 %\n"
    )
    assert {path: (path.read_text(), path.stat().st_mtime_ns) for path in before} == before
    assert {*tree.rglob("*.*")} == {*before}


def test_what_a_file_of_tests_reaches_is_measured_once(tree, tmp_path, measured):
    for text, count in ((TESTS, 1), (TESTS, 1), (f"{TESTS}#", 2)):
        (tree / FILE).write_text(text)
        with closing(reach.Reach(tmp_path / "reach", [FILE])) as known:
            known.measure(tree)
            assert known.tests_of(CAUGHT, SOURCE) == [f"{FILE}::test_add"]
        assert len(measured) == count


def test_the_lines_of_an_older_source_are_found_again(tree, tmp_path, measured):
    source = f"# one\n# more\n{SOURCE.replace('one + one', 'one * 2')}"
    with closing(reach.Reach(tmp_path / "reach", [FILE])) as known:
        known.measure(tree)
        for old, test in (("one + two", "test_add"), ("one * 2", "test_twice_of_nothing")):
            line = source[: source.index(old)].count("\n") + 1
            fault = faults.Fault(MODULE, "a test", 0, 0, "", (line, line), "f")
            assert known.tests_of(fault, source) == [f"{FILE}::{test}"]
        outside = faults.Fault(MODULE, "a test", 0, 0, "", (1, 1), "")
        assert len(known.tests_of(outside, SOURCE)) == 2  # an import runs it


def test_the_closest_tests_come_first_and_as_many_as_there_is_time_for():
    tests = [
        reach.Test("tests/unit/test_all.py::test_all", 1, 5000),
        reach.Test("tests/unit/test_other.py::test_one[a]", 1, 100),
        reach.Test("tests/unit/test_other.py::test_one[b]", 2, 101),
        reach.Test("tests/unit/test_ordering.py::test_one", 3, 9000),
        reach.Test("tests/unit/test_small.py::test_long", 58, 10),
    ]
    placed = reach._closest_first(tests, "streamkit/_queues/ordering.py")
    assert [test.seconds for test in placed] == [58, 3, 1, 1, 2]
    assert [name.partition("::")[2] for name in reach._in_time(placed)] == [
        "test_long", "test_one[a]", "test_all",
    ]  # fmt: skip


def test_coverage_tells_what_a_test_and_its_children_reach(tree, tmp_path):
    pytest.importorskip("coverage")
    shutil.copytree(ROOT / "tests" / "mutations", tree / "tests" / "mutations")
    with closing(reach.Reach(tmp_path / "reach", [FILE])) as known:
        known.measure(tree)
        by_name = {
            fault: {name.partition("::")[2] for name in known.tests_of(fault, SOURCE)}
            for fault in (CAUGHT, SURVIVES, UNREACHED)
        }
    with_fixture = {f"test_of_a_module[{more}]" for more in (0, 1)}
    assert by_name[CAUGHT] == {"test_add", "test_in_a_child[add(1, 2)]", *with_fixture}
    forks = {"test_in_a_fork"} if sys.platform != "win32" else set()
    assert by_name[SURVIVES] == {"test_twice_of_nothing", "test_in_a_child[twice(1)]", *forks}
    assert by_name[UNREACHED] == set()


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (planted("one + two", "one +"), "broken"),
        (planted("    return one + two", "    while True:\n        pass"), "hung"),
    ],
    ids=["broken", "hung"],
)
def test_one_that_no_test_can_judge_is_told(tree, monkeypatch, fault, result):
    monkeypatch.setattr(copies, "LIMIT", 2)  # for what ends by itself, also on a busy machine
    assert run.attempt(tree, fault, (f"{FILE}::test_add",)).result == result
    assert (tree / MODULE).read_text() == SOURCE


def test_what_a_tested_program_says_names_no_test():
    test = f"{FILE}::test_add"
    said = f"ERROR    worker:pool.py::7\nFAILED inner.py::test_add\nFAILED {test} - no\n"
    assert run._result(copies.FAILED, said, [test]) == (run.CAUGHT, test)
    assert run._result(copies.FAILED, said[:50], [test])[1] == "by a crash or a time-out"


def test_a_fault_is_not_caught_by_a_test_that_fails_without_it(tree, tmp_path, capsys):
    trees = run.Trees(str(tmp_path / "copies"), tree, 1, emulated=False)
    results = run._try_until_true(trees, [(SURVIVES, [f"{FILE}::test_that_fails"])])
    assert results == {SURVIVES: "unreached"}
    assert "test_that_fails fails without a fault too" in capsys.readouterr().out


def test_a_test_that_is_not_there_judges_nothing(tree):
    tests = (f"{FILE}::test_add", f"{FILE}::test_that_is_gone")
    assert run.attempt(tree, SURVIVES, tests).result == "unjudged"


def test_each_listed_fault_has_to_be_caught_by_its_tests(tree, capsys):
    assert run.try_listed([entry("first")], tree, 1)
    survives = entry("second", "one + one", "one * one", "test_twice_of_nothing", "twice")
    stale = entry("third", "one * two")
    assert not run.try_listed([entry("first"), survives, stale], tree, 2)
    out = capsys.readouterr().out
    assert re.search(r"^survived .* second  sums are wrong$", out, re.MULTILINE)
    assert out.endswith("listed faults: 1 caught, 1 survived, 1 does not apply\n")


@pytest.mark.parametrize("test", ["test_that_fails", "test_that_is_gone"])
def test_no_listed_fault_is_tried_unless_its_tests_pass_without_it(tree, capsys, test):
    assert not run.try_listed([entry("one", test=test)], tree, 1)
    assert "none was tried" in capsys.readouterr().out


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        run.main(["--listed", "no-such-fault"])
    assert ended.value.code == 2
    assert "not in the list: no-such-fault" in capsys.readouterr().err


def test_a_share_below_the_threshold_fails(monkeypatch):
    monkeypatch.setattr(run, "try_sample", lambda *_: 89.9)
    monkeypatch.setattr(run, "sources_of", lambda _: {MODULE: SOURCE})
    assert run.main(["--threshold", "90"]) == 1
    assert run.main(["--threshold", "89"]) == 0
