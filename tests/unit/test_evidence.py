"""The records of a GPU: what failed is in them, and the pictures of them say what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from support.documents import ROOT

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

SMALL = {  # a tree with a suite of three cases
    "streamkit/__init__.py": "",
    "tests/conftest.py": "def pytest_collection_modifyitems(items):\n"
    "    for item in items:\n        item.add_marker('gpu')\n",
    "tests/support/shared.py": "",
    "tests/support/emulated/toys.py": "",
    "tests/gpu/test_a.py": "import pytest, streamkit\n"
    "@pytest.mark.parametrize('n', [1, 2])\ndef test_b(n): pass\n"
    "def test_c(): print('from', streamkit.__file__)\n",
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
HOLDS, SHOWS_NOTHING, CANNOT_TELL, OTHER_SOURCE, IN_PART = range(5)


class Suite:
    """A tree with the real ``evidence.py``."""

    def __init__(self, root):
        self.root, self.record = root, root / "docs/evidence/gpu.json"

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def evidence(self, *arguments, **variables):
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""}
        done = subprocess.run(
            [sys.executable, "-P", "-B", "-c", RUN, *arguments],
            cwd=self.root, env={**os.environ, **alone, **variables},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def edit(self, **changes):
        record = {**json.loads(self.record.read_text()), **changes}
        self.record.write_text(json.dumps(record))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A tree whose suite has run."""
    suite = Suite(tmp_path_factory.mktemp("recorded"))
    for name, text in SMALL.items():
        suite.write(name, text)
    for name in ("tests/gpu/evidence.py", "tests/support/documents.py"):
        suite.write(name, (ROOT / name).read_text(encoding="utf-8"))
    status, said = suite.evidence()
    assert status == 0, said
    return suite


@pytest.fixture
def suite(recorded, tmp_path):
    """A copy of it, to be changed."""
    return Suite(shutil.copytree(recorded.root, tmp_path / "tree"))


def test_the_record_of_a_whole_run_holds(suite):
    record = json.loads(suite.record.read_text())
    assert record["cases"] == dict.fromkeys(CASES, "passed")
    assert record["tally"] == {
        "passed": 3, "failed": 0, "skipped": 0, "needs two GPUs": 0, "needs a consumer": 0,
    }  # fmt: skip
    status, said = suite.evidence("--check")
    assert status == HOLDS, said
    assert "is of this source: 3 cases, all passed" in said


@pytest.mark.parametrize(
    ("cases", "told"),
    [
        ({}, "it has no case"),
        (dict.fromkeys(CASES, "failed"), "3 of 3 cases did not pass: test_a.py::test_b[1], "),
        (dict.fromkeys(CASES, "passed") | {CASES[0]: "skipped"}, "1 of 3 cases did not pass"),
        (dict.fromkeys(CASES[1:], "passed"), "not those of the suite: test_a.py::test_b[1]"),
        (dict.fromkeys([*CASES, "test_z.py::test"], "passed"), "the suite: test_z.py::test"),
    ],
    ids=["none", "failed", "skipped", "too few", "too many"],
)
def test_a_record_that_is_not_of_every_case_shows_nothing(suite, cases, told):
    suite.edit(cases=cases)
    status, said = suite.evidence("--check")
    assert (status, told in said) == (SHOWS_NOTHING, True), said


SKIPPED = "import pytest\ndef test(): pytest.skip({reason!r})\n"


@pytest.mark.parametrize(
    ("reason", "gpus", "status", "told"),
    [
        ("one CUDA device", "1", IN_PART, "3 cases passed, none failed, 1 needs two GPUs"),
        ("a consumer that is not installed: x", "2", IN_PART, "none failed, 1 needs a consumer"),
        ("one CUDA device", "2", SHOWS_NOTHING, "1 of 4 cases did not pass: test_d.py::test"),
        ("no driver", "1", SHOWS_NOTHING, "1 of 4 cases did not pass: test_d.py::test"),
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
    assert (status, "1 of 4 cases did not pass: test_d.py::test" in said) == (SHOWS_NOTHING, True)


def test_a_run_of_a_part_is_no_record(suite):
    before = suite.record.read_text()
    status, said = suite.evidence("--", "-k", "test_c")
    assert (status, "name another file by --out" in said) == (2, True)
    assert suite.record.read_text() == before
    assert suite.evidence("--out", "part.json", "--", "-k", "test_c")[0] == 0
    (suite.root / "part.json").replace(suite.record)
    status, said = suite.evidence("--check")
    assert (status, "with the options -k test_c" in said) == (SHOWS_NOTHING, True)


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("streamkit/new.py", "", OTHER_SOURCE),
        ("tests/gpu/test_a.py", SMALL["tests/gpu/test_a.py"] + "\n", OTHER_SOURCE),
        ("tests/support/shared.py", "\n", OTHER_SOURCE),
        ("tests/conftest.py", SMALL["tests/conftest.py"] + "\n", OTHER_SOURCE),
        ("tests/plugin/src/x.py", "", OTHER_SOURCE),
        ("pyproject.toml", SMALL["pyproject.toml"] + "\n", OTHER_SOURCE),
        ("examples/01.py", "\n", OTHER_SOURCE),
        ("README.md", SMALL["README.md"].replace("x = 1", "x = 2"), OTHER_SOURCE),
        ("README.md", SMALL["README.md"].replace("gpu", "gpus: 2"), OTHER_SOURCE),
        ("README.md", SMALL["README.md"].replace("Words", "Others"), HOLDS),
        ("docs/maintain/releasing.md", "```sh\nninja\n```\n", HOLDS),
        ("CHANGELOG.md", "New.\n", HOLDS),
        ("tests/support/emulated/toys.py", "\n", HOLDS),
        ("tests/unit/test_x.py", "", HOLDS),
    ],
)
def test_a_record_is_of_all_that_the_suite_reads_and_of_nothing_else(suite, name, text, status):
    suite.write(name, text)
    found, said = suite.evidence("--check")
    assert found == status, said


def test_where_a_file_cannot_be_collected_nothing_can_be_told(suite):
    suite.write("tests/gpu/test_d.py", "import pytest\npytest.importorskip('not_here')\n")
    assert suite.evidence()[0] == 0
    status, said = suite.evidence("--check")
    assert (status, "not collected here: test_d.py" in said) == (CANNOT_TELL, True), said


@pytest.mark.parametrize("missing", ["markdown_it", "pytest"])
def test_where_what_reads_the_suite_is_not_installed_nothing_can_be_told(suite, missing):
    error = f"raise ModuleNotFoundError(\"No module named '{missing}'\")"
    suite.write(f"bare/{missing}.py", error)
    status, said = suite.evidence("--check", PYTHONPATH="bare")
    told = f"cannot be compared: No module named '{missing}'"
    assert (status, told in said) == (CANNOT_TELL, True), said


def test_what_is_recorded_is_the_checkout(suite, tmp_path):
    (tmp_path / "elsewhere/streamkit").mkdir(parents=True)
    (tmp_path / "elsewhere/streamkit/__init__.py").touch()
    status, said = suite.evidence(PYTHONPATH=str(tmp_path / "elsewhere"))
    assert (status, f"from {suite.root}/streamkit/__init__.py" in said) == (0, True), said


def test_a_streamkit_from_elsewhere_is_not_recorded(suite):
    suite.write("tests/gpu/streamkit.py", "")  # found first, as the suite's own folder
    suite.write("tests/gpu/sitecustomize.py", "import streamkit")
    status, said = suite.evidence(PYTHONPATH="tests/gpu")
    assert (status, "and streamkit comes from " in said) == (1, True), said


def test_nothing_is_imported_before_pytest_is(suite):
    suite.write("streamkit/__init__.py", "raise ImportError('pytest would warn: it is imported')")
    status, said = suite.evidence("--check")
    assert (status, "ImportError" in said) == (OTHER_SOURCE, False), said


def test_a_source_that_changes_meanwhile_is_not_recorded(suite):
    suite.write("tests/gpu/test_d.py", "def test(): open('streamkit/new.py', 'w').close()")
    before = suite.record.read_text()
    status, said = suite.evidence()
    assert (status, "nothing is recorded" in said) == (1, True), said
    assert suite.record.read_text() == before


def test_every_module_that_the_gpu_tests_import_is_in_the_hash():
    read = runpy.run_path(str(ROOT / "tests/gpu/evidence.py"))["files"]()
    read = {path for path in read if path.suffix == ".py"}
    imported, todo = set(), [path for path in read if path.parent == ROOT / "tests/gpu"]
    while todo:
        for name in re.findall(
            r"(?:from|import) +([\w.]+)", todo.pop().read_text(encoding="utf-8")
        ):
            path = ROOT / "tests" / (name.replace(".", "/") + ".py")
            if path.is_file() and path not in imported:
                imported.add(path)
                todo.append(path)
    assert len(imported) > 10
    assert imported <= read


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
