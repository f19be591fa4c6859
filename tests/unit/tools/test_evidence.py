"""The records of a GPU: what failed is in them, and the pictures of them say what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import streamkit
from support import meaning
from support.documents import ROOT
from support.programs import forked, run_python

pytestmark = pytest.mark.once

RECORD = ROOT / "docs" / "evidence" / "audit.json"
PICTURE = ROOT / "docs" / "pictures" / "before-and-after.svg"


@pytest.fixture
def plot(tmp_path):
    """Draw a record, and return what came of that."""

    def plot(data=None, name="drawn.svg"):
        (tmp_path / "data.json").write_bytes(RECORD.read_bytes() if data is None else data)
        done = subprocess.run(
            [sys.executable, ROOT / "docs/evidence/plot_audit.py",
             "--data", tmp_path / "data.json", "--out", tmp_path / name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        return done, tmp_path / name

    return plot


def test_the_record_is_what_the_pages_tell():
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    assert data["x"] == {"before": 3, "after": 7}
    assert set(data["versions"]) == {"torch", "cupy", "warp"}
    assert data["date"] >= "2026-11-22"
    told = {"README.md": "and 3. After: one queue, and 7.", "docs/guides/wrong-queue.md": "is 3. "}
    for page, words in told.items():
        assert words in (ROOT / page).read_text(encoding="utf-8")


def test_drawn_again_it_is_the_same_picture(plot):
    done, drawn = plot()
    assert done.returncode == 0, done.stderr
    assert drawn.read_text(encoding="utf-8") == PICTURE.read_text(encoding="utf-8")


def test_the_picture_names_what_matters_and_points_at_what_is_too_early(plot):
    text = PICTURE.read_text(encoding="utf-8")
    for words in ("multiply: too early", "inc: too early", "then fill", "then fill, multiply, inc"):
        assert text.count(f">{words}<") == 1
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    for one in data["before"]["operations"]:
        if one["library"] != "torch":  # as if they had waited
            one["start_ns"], one["end_ns"] = one["start_ns"] + 10**6, one["end_ns"] + 10**6
    _, drawn = plot(json.dumps(data).encode())
    assert "too early" not in drawn.read_text(encoding="utf-8")


def test_what_x_was_is_drawn_as_recorded(plot):
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    data["x"] = {"before": 4.0, "after": 6.5}
    _, drawn = plot(json.dumps(data).encode())
    text = drawn.read_text(encoding="utf-8")
    assert "alone, x is 4<" in text
    assert "x is 6.5<" in text


def test_a_record_that_does_not_say_what_x_was_is_refused(plot):
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    del data["x"]
    done, drawn = plot(json.dumps(data).encode())
    assert done.returncode == 1
    assert "Record it again: python examples/09_see_the_queues.py" in done.stderr
    assert "Traceback" not in done.stderr
    assert not drawn.exists()


# -- the record of the GPU suite --------------------------------------------------------------

SMALL = {  # a tree with a suite of four cases in two files
    "streamkit/__init__.py": "import importlib\n_LATER = {'races': 'streamkit.racing'}\n"
    "def __getattr__(name): return getattr(importlib.import_module(_LATER[name]), name)\n",
    "streamkit/graphs.py": "# A comment.\nSIZE = 'four'\n"
    "def run():\n    'Run it.'\n    raise ValueError('too early')\n"
    "class Graph:\n    def races(self):\n        from streamkit import racing\n",
    "streamkit/racing.py": "def races(): return []\n",
    "tests/conftest.py": "def pytest_collection_modifyitems(items):\n"
    "    for item in items:\n        item.add_marker('gpu')\n",
    "tests/gpu/conftest.py": "",
    "tests/support/shared.py": "",
    "tests/support/other.py": "",
    "tests/gpu/test_a.py": "import pytest, streamkit\n"
    "import streamkit.graphs\nEXAMPLES, PAGE = 'examples', 'README.md'\n"
    "PROGRAM = 'from support import shared'\n"
    "@pytest.mark.parametrize('n', [1, 2])\ndef test_b(n): pass\n"
    "def test_c(): print('from', streamkit.__file__)\n",
    "tests/gpu/diagnostics/test_races.py": "import streamkit\ndef test_d(): assert streamkit.races() == []\n",
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['gpu', 'alone']\naddopts = '-rP'\n",
    "README.md": "Words.\n\n<!-- gpu -->\n```python\nx = 1\n```\n",
    "docs/maintain/releasing.md": "```sh\nmake\n```\n",
    "examples/01.py": "",
    "CHANGELOG.md": "",
}
RUN = """
import sys
sys.path.insert(0, "tests/gpu")
import evidence
import os
evidence.devices = lambda: (["a GPU", "another"][: int(os.environ.get("GPUS", "2"))], "13.0")
sys.exit(evidence.main(sys.argv[1:]))
"""
CASES = ["test_a.py::test_b[1]", "test_a.py::test_b[2]", "test_a.py::test_c"]
HOLDS, SHOWS_NOTHING, CANNOT_TELL, STALE, IN_PART = range(5)


class Suite:
    """A tree with the real ``evidence.py``."""

    def __init__(self, root):
        self.root, self.record = root, root / "docs/evidence/gpu.json"

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def evidence(self, *arguments, **variables):
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": "", **variables}
        options = ("-P", "-B")
        if alone["PYTHONPATH"]:  # counts when a Python starts
            done = subprocess.run(
                [sys.executable, *options, "-c", RUN, *arguments],
                cwd=self.root, env={**os.environ, **alone},
                capture_output=True, text=True, timeout=100, check=False,
            )  # fmt: skip
        else:
            loaded = ("pytest", "markdown_it")
            done = forked(
                RUN, *arguments, loaded=loaded, folder=self.root, options=options, **alone
            )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def read(self):
        return json.loads(self.record.read_text())

    def edit(self, **changes):
        record = self.read()
        record["files"]["test_a.py"] |= changes
        self.record.write_text(json.dumps(record))

    def check(self):
        """The status of a check, and the files that it would run."""
        status, said = self.evidence("--check")
        line = next((one for one in said.splitlines() if one.startswith("python ")), "")
        return status, line.split()[2:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A tree whose suite has run."""
    suite = Suite(tmp_path_factory.mktemp("recorded"))
    for name, text in SMALL.items():
        suite.write(name, text)
    for name in ("tests/gpu/evidence.py", "tests/support/documents.py", "tests/support/meaning.py"):
        suite.write(name, (ROOT / name).read_text(encoding="utf-8"))
    status, said = suite.evidence()
    assert status == 0, said
    return suite


@pytest.fixture
def suite(recorded, tmp_path):
    """A copy of it, to be changed."""
    return Suite(shutil.copytree(recorded.root, tmp_path / "tree"))


def test_the_record_of_a_whole_run_holds(suite):
    record = suite.read()
    assert record["files"]["test_a.py"]["cases"] == dict.fromkeys(CASES, "passed")
    assert [run["devices"] for run in record["runs"]] == [["a GPU", "another"]]
    status, said = suite.evidence("--check")
    assert status == HOLDS, said
    assert "2 of 2 files, 4 of 4 cases are of this source\n4 cases passed\n" in said


@pytest.mark.parametrize(
    ("cases", "told"),
    [
        ({}, "test_a.py has no case"),
        (dict.fromkeys(CASES, "failed"), "3 failed or unexplained: test_a.py::test_b[1] failed, "),
        (dict.fromkeys(CASES, "passed") | {CASES[0]: "skipped"}, "test_a.py::test_b[1] skipped"),
        (dict.fromkeys(CASES[1:], "passed"), "not those of its record: test_a.py::test_b[1]"),
        (dict.fromkeys([*CASES, "test_a.py::z"], "passed"), "its record: test_a.py::z"),
    ],
    ids=["none", "failed", "skipped", "too few", "too many"],
)
def test_a_record_that_is_not_of_every_case_shows_nothing(suite, cases, told):
    suite.edit(cases=cases)
    status, said = suite.evidence("--check")
    assert (status, told in said) == (SHOWS_NOTHING, True), said


def test_what_failed_counts_though_the_source_has_changed_since(suite):
    suite.edit(hash="0", cases=dict.fromkeys(CASES[1:], "passed"))
    assert suite.evidence("--check")[0] == STALE  # it may have other cases now
    suite.edit(cases=dict.fromkeys(CASES, "failed"))
    assert suite.evidence("--check")[0] == SHOWS_NOTHING


def test_a_file_without_an_entry_shows_nothing_until_it_has_run(suite):
    suite.write("tests/gpu/test_d.py", "def test(): pass")
    status, said = suite.evidence("--check")
    assert (status, "test_d.py has no entry" in said) == (SHOWS_NOTHING, True), said
    assert said.splitlines()[-3].split()[2:] == ["test_d.py"]
    status, said = suite.evidence()
    assert (status, "1 passed" in said) == (0, True), said
    assert [suite.read()["files"][name]["run"] for name in ("test_a.py", "test_d.py")] == [0, 1]
    assert suite.evidence("--check")[0] == HOLDS


SKIPPED = "import pytest\ndef test(): pytest.skip({reason!r})\n"


@pytest.mark.parametrize(
    ("reason", "gpus", "status", "told"),
    [
        ("one CUDA device", "1", IN_PART, "4 cases passed, 1 needs two GPUs"),
        ("a consumer that is not installed: x", "2", IN_PART, "4 cases passed, 1 needs a consumer"),
        ("one CUDA device", "2", SHOWS_NOTHING, "test_d.py::test needs two GPUs"),
        ("no driver", "1", SHOWS_NOTHING, "test_d.py::test skipped"),
    ],
)
def test_a_record_says_what_its_machine_could_not_show(suite, reason, gpus, status, told):
    suite.write("tests/gpu/test_d.py", SKIPPED.format(reason=reason))
    assert suite.evidence(GPUS=gpus)[0] == 0
    found, said = suite.evidence("--check")
    assert (found, told in said) == (status, True), said


def test_a_failed_case_fails_the_run_and_its_record(suite):
    suite.write("tests/gpu/test_d.py", "def test(): assert False")
    assert suite.evidence()[0] == 1
    status, said = suite.evidence("--check")
    assert (status, "unexplained: test_d.py::test failed" in said) == (SHOWS_NOTHING, True), said


def test_a_file_of_which_some_cases_ran_is_not_recorded(suite):
    before = suite.record.read_text()
    status, said = suite.evidence("test_a.py", "--", "-k", "test_c")
    assert (status, "test_a.py is not recorded: 1 of its cases ran" in said) == (0, True), said
    assert suite.record.read_text() == before
    status, said = suite.evidence("--all", "--", "-k", "test_d")
    assert status == 0, said
    assert suite.evidence("--check")[0] == HOLDS
    assert [suite.read()["files"][name]["run"] for name in ("test_a.py", "test_races.py")] == [0, 1]


def test_what_an_earlier_run_of_the_same_source_shows_stays(suite):
    skips = "import os, pytest\ndef test():\n    if 'LESS' in os.environ:\n        {}\n"
    reason = "pytest.skip('a consumer that is not installed: x')"
    suite.write("tests/gpu/test_d.py", skips.format(reason))
    assert suite.evidence()[0] == 0
    assert suite.evidence("test_d.py", LESS="1")[0] == 0
    entry = suite.read()["files"]["test_d.py"]
    assert entry["cases"] == {"test_d.py::test": "passed"}
    assert (entry["run"], entry["earlier"]) == (2, {"test_d.py::test": 1})
    suite.write("tests/gpu/test_d.py", skips.format(reason) + "x = 1\n")
    assert suite.evidence("test_d.py", LESS="1")[0] == 0
    assert suite.read()["files"]["test_d.py"]["cases"] == {"test_d.py::test": "needs a consumer"}


def test_a_record_made_elsewhere_is_merged(suite):
    suite.write("tests/gpu/test_d.py", "def test(): pass")
    before = suite.record.read_text()
    assert suite.evidence("test_d.py", "--out", "part.json", GPUS="1")[0] == 0
    assert suite.record.read_text() == before
    status, said = suite.evidence("--merge", "part.json")
    assert (status, "3 of 3 files, 5 of 5 cases are of this source" in said) == (0, True), said
    assert [len(run["devices"]) for run in suite.read()["runs"]] == [2, 1]
    assert suite.evidence("--check")[0] == HOLDS


def test_what_is_merged_of_another_source_replaces_nothing_of_this(suite):
    record = suite.read()
    for entry in record["files"].values():
        entry |= {"hash": "0", "cases": {}}
    suite.write("part.json", json.dumps(record))
    assert suite.evidence("--merge", "part.json")[0] == 0
    assert suite.read()["files"]["test_a.py"]["cases"] == dict.fromkeys(CASES, "passed")
    assert suite.evidence("--check")[0] == HOLDS


BOTH = ["test_a.py", "test_races.py"]


@pytest.mark.parametrize(
    ("name", "before", "after", "stale"),
    [
        ("streamkit/graphs.py", "A comment", "Another", []),
        ("streamkit/graphs.py", "Run it", "Run", []),
        ("streamkit/graphs.py", "too early", "too soon", []),
        ("streamkit/graphs.py", "four", "five", ["test_a.py"]),
        ("streamkit/graphs.py", "ValueError", "TypeError", ["test_a.py"]),
        ("streamkit/racing.py", "[]", "list()", ["test_races.py"]),
        ("streamkit/__init__.py", "import", "import sys\nimport", BOTH),
        ("streamkit/new.py", "", "x = 1", []),
        ("tests/gpu/test_a.py", "[1, 2]", "[2, 1]", ["test_a.py"]),
        ("tests/support/shared.py", "", "x = 1", ["test_a.py"]),
        ("tests/support/other.py", "", "x = 1", []),
        ("tests/conftest.py", "gpu", "cpu", BOTH),
        ("tests/gpu/conftest.py", "", "x = 1", BOTH),
        ("pyproject.toml", "alone", "alone: x", BOTH),
        ("pyproject.toml", "[tool", "[project]\nname = 'x'\n[tool", []),
        ("examples/01.py", "", "x = 1", ["test_a.py"]),
        ("README.md", "x = 1", "x = 2", ["test_a.py"]),
        ("README.md", "gpu", "gpus: 2", ["test_a.py"]),
        ("README.md", "Words", "Others", []),
        ("docs/maintain/releasing.md", "make", "ninja", []),
    ],
)
def test_an_edit_makes_stale_what_reaches_it(suite, name, before, after, stale):
    text = SMALL.get(name, "")
    suite.write(name, text.replace(before, after, 1) if before else after)
    assert suite.check() == (STALE if stale else HOLDS, stale)


def test_a_method_that_is_called_brings_what_it_imports(suite):
    suite.write("tests/gpu/test_a.py", SMALL["tests/gpu/test_a.py"] + "def f(g): g.races()\n")
    assert suite.evidence()[0] == 0
    suite.write("streamkit/racing.py", "def races(): return list()\n")
    assert suite.check() == (STALE, BOTH)


def test_where_a_file_cannot_be_collected_nothing_can_be_told(suite):
    skips = "import os, pytest\nif 'LESS' in os.environ: pytest.importorskip('not_here')\n"
    suite.write("tests/gpu/test_d.py", skips + "def test(): pass\n")
    assert suite.evidence()[0] == 0
    status, said = suite.evidence("--check", LESS="1")
    assert (status, "not collected here: test_d.py" in said) == (CANNOT_TELL, True), said


@pytest.mark.parametrize("missing", ["markdown_it", "pytest"])
def test_where_what_reads_the_suite_is_not_installed_nothing_can_be_told(suite, missing):
    error = f"raise ModuleNotFoundError(\"No module named '{missing}'\")"
    suite.write(f"bare/{missing}.py", error)
    status, said = suite.evidence("--check", PYTHONPATH="bare")
    told = f"cannot be compared: No module named '{missing}'. Use the Python of a lane with all"
    assert (status, told in said) == (CANNOT_TELL, True), said


def test_what_is_recorded_is_the_checkout(suite, tmp_path):
    (tmp_path / "elsewhere/streamkit").mkdir(parents=True)
    (tmp_path / "elsewhere/streamkit/__init__.py").touch()
    status, said = suite.evidence("--all", PYTHONPATH=str(tmp_path / "elsewhere"))
    assert (status, f"from {suite.root}/streamkit/__init__.py" in said) == (0, True), said


def test_a_streamkit_from_elsewhere_is_not_recorded(suite):
    suite.write("tests/gpu/streamkit.py", "")  # found first, as the suite's own folder
    suite.write("tests/gpu/sitecustomize.py", "import streamkit")
    status, said = suite.evidence(PYTHONPATH="tests/gpu")
    assert (status, "and streamkit comes from " in said) == (1, True), said


def test_nothing_is_imported_before_pytest_is(suite):
    suite.write("streamkit/__init__.py", "raise ImportError('pytest would warn: it is imported')")
    status, said = suite.evidence("--check")
    assert (status, "ImportError" in said) == (STALE, False), said


def test_a_source_that_changes_meanwhile_is_not_recorded(suite):
    suite.write("tests/gpu/test_d.py", "def test(): open('streamkit/__init__.py', 'w').close()")
    before = suite.record.read_text()
    status, said = suite.evidence()
    assert (status, "nothing is recorded" in said) == (1, True), said
    assert suite.record.read_text() == before


GRAPHS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests/gpu").glob("test_graph*.py")
    if path.name != "test_graph_races.py"  # it asks for the races of graphs
)
RACES = ["tests/gpu/diagnostics/test_graph_races.py", "tests/gpu/diagnostics/test_races.py"]


def test_the_graph_tests_reach_the_graphs_and_no_races():
    assert len(GRAPHS) >= 9
    for test in [*GRAPHS, *RACES]:
        reached = meaning.reached(test)
        assert any(name.startswith("streamkit/diagnostics/races/") for name in reached) is (
            test in RACES
        )
        assert (
            "streamkit/_graphs/graph.py" in reached or test == "tests/gpu/diagnostics/test_races.py"
        )
        assert "tests/support/gpu/raw.py" in reached


EDITS = {
    "a comment": ("streamkit/_graphs/graph.py", "import contextlib\n", "# C\nimport contextlib\n"),
    "a message": ("streamkit/_graphs/graph.py", "sections are for inside", "they are for inside"),
    "a graph": ("streamkit/_graphs/graph.py", "_is_capturing = True", "_is_capturing = False"),
    "races": (
        "streamkit/diagnostics/races/graph_nodes.py",
        '"the memory of a graph"',
        '"its memory"',
    ),
}


@pytest.mark.parametrize(
    ("edit", "stale"),
    [("a comment", []), ("a message", []), ("a graph", [*GRAPHS, RACES[0]]), ("races", RACES)],
)
def test_an_edit_of_the_package_makes_stale_what_reaches_it(monkeypatch, edit, stale):
    name, before, after = EDITS[edit]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.count(before) >= 1
    source = meaning.source
    was = {test: meaning.meaning(test) for test in [*GRAPHS, *RACES]}
    edited = meaning.read(name, text.replace(before, after, 1))
    monkeypatch.setattr(meaning, "source", lambda one: edited if one == name else source(one))
    changed = {test for test, told in was.items() if meaning.meaning(test) != told}
    assert changed - {"tests/gpu/diagnostics/test_races.py"} == {*stale} - {
        "tests/gpu/diagnostics/test_races.py"
    }
    assert "tests/gpu/diagnostics/test_races.py" in changed or edit != "races"


def test_what_a_program_loads_is_what_it_reaches(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import streamkit as sk, sys\nfrom streamkit.testing import for_seeds\n"
        "s = sk.new_stream(device='cpu')\n"
        "with sk.races(), sk.use(s):\n    s.then(int)\n    sk.new_event(device='cpu')\n"
        "s.sync()\nprint(*[m.__file__ for n, m in sys.modules.items() if n[:9] == 'streamkit'])\n"
    )
    package = Path(streamkit.__file__).parents[1]  # where it is installed
    files = map(Path, run_python(program).stdout.split())
    loaded = {path.relative_to(package).as_posix() for path in files}
    reached = set(map(str, meaning.reached(os.path.relpath(program, ROOT))))
    assert len(loaded) > 60
    assert any("_races" in name for name in loaded)
    assert loaded <= reached


def test_a_case_that_crashed_its_process_has_failed_though_it_passed_the_next_time():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "tests/gpu/evidence.py")
    evidence = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(evidence)
    collector = evidence.Collector()
    for outcome, when in (("failed", "???"), ("passed", "call")):
        collector.pytest_runtest_logreport(
            SimpleNamespace(
                nodeid="tests/gpu/test_x.py::test_y",
                when=when,
                outcome=outcome,
                failed=outcome == "failed",
            )
        )
    assert collector.cases == {"test_x.py::test_y": "failed"}
