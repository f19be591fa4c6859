"""The record of the GPU suite: what failed is in it, and what an edit reaches has to run again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streamkit
from support import meaning
from support.documents import ROOT
from support.programs import run_python
from support.site import extension

pytestmark = pytest.mark.once

evidence = extension("evidence", "tests/gpu")
HOLDS, SHOWS_NOTHING, CANNOT_TELL, STALE, IN_PART = range(5)
TWO, CONSUMER = evidence.NEEDS_TWO, evidence.NEEDS_CONSUMER

# -- the command, on a small tree -------------------------------------------------------------

SMALL = {  # a tree with a suite of four cases in two files
    "streamkit/__init__.py": "import importlib\n_LATER = {'races': 'streamkit.racing'}\n"
    "def __getattr__(name): return getattr(importlib.import_module(_LATER[name]), name)\n",
    "streamkit/graphs.py": "# A comment.\nSIZE = 'four'\n"
    "def run():\n    'Run it.'\n    raise ValueError('too early')\n",
    "streamkit/racing.py": "def races(): return []\n",
    "tests/conftest.py": "def pytest_collection_modifyitems(items):\n"
    "    for item in items:\n        item.add_marker('gpu')\n",
    "tests/gpu/core/conftest.py": "",
    "tests/support/shared.py": "",
    "tests/gpu/core/test_a.py": "import pytest, streamkit\n"
    "import streamkit.graphs\nEXAMPLES, PAGE = 'examples', 'README.md'\n"
    "PROGRAM = 'from support import shared'\n"
    "@pytest.mark.parametrize('n', [1, 2])\ndef test_b(n): pass\n"
    "def test_c(): assert streamkit.__file__.startswith(__file__.partition('tests')[0])\n",
    "tests/gpu/diagnostics/test_races.py": (
        "import streamkit\ndef test_d(): assert streamkit.races() == []\n"
    ),
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['gpu', 'alone']\n",
    "README.md": "Words.\n\n<!-- gpu -->\n```python\nx = 1\n```\n",
    "examples/01.py": "",
    "docs/evidence/bench.json": "",
}
RUN = """
import os, sys
sys.path.insert(0, "tests/gpu")
import evidence
evidence.devices = lambda: (["a GPU", "another"][: int(os.environ.get("GPUS", "2"))], "13.0")
sys.exit(evidence.main(sys.argv[1:]))
"""


class Suite:
    """A tree with the real ``evidence.py``."""

    def __init__(self, root):
        self.root, self.record = root, root / "docs/evidence/gpu.json"

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def evidence(self, *arguments, **variables):
        """The exit status of the command, and what it says."""
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": "", **variables}
        done = subprocess.run(
            [sys.executable, "-P", "-B", "-c", RUN, *arguments], cwd=self.root,
            env={**os.environ, **alone}, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def check(self):
        """The status of a check, and the files that it would run."""
        status, said = self.evidence("--check")
        line = next((one for one in said.splitlines() if one.startswith("python ")), "")
        return status, line.split()[2:]

    def entry(self, name):
        return json.loads(self.record.read_text())["files"][name]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A tree whose suite has run."""
    suite = Suite(tmp_path_factory.mktemp("recorded"))
    for name, text in SMALL.items():
        suite.write(name, text)
    for name in ("tests/gpu/evidence.py", "tests/support/documents.py", "tests/support/meaning.py"):
        suite.write(name, (ROOT / name).read_text(encoding="utf-8"))
    status, said = suite.evidence("--commit", "abc")
    assert status == 0, said
    return suite


@pytest.fixture
def suite(recorded, tmp_path):
    """A copy of it, to be changed."""
    return Suite(shutil.copytree(recorded.root, tmp_path / "tree"))


def test_the_record_of_a_whole_run_holds_wherever_a_file_lies(suite):
    (run,) = json.loads(suite.record.read_text())["runs"].values()
    assert (run["devices"], run["commit"]) == (["a GPU", "another"], "abc")
    assert suite.entry("test_a.py")["passed"] == 3
    status, said = suite.evidence("--check")
    assert (status, "2 of 2 files, 4 of 4 cases are of this source\n4 cases passed\n" in said) == (
        HOLDS, True,
    )  # fmt: skip
    (suite.root / "tests/gpu/core/test_a.py").rename(suite.root / "tests/gpu/test_a.py")
    assert suite.check() == (STALE, ["test_a.py"])


FAILS = "def test(): assert False"
SKIPS = "import pytest\ndef test(): pytest.skip({!r})"


@pytest.mark.parametrize(
    ("text", "gpus", "status", "told"),
    [
        (FAILS, "2", SHOWS_NOTHING, "test_d.py::test failed"),
        (SKIPS.format("no driver"), "1", SHOWS_NOTHING, "test_d.py::test skipped"),
        (SKIPS.format("one CUDA device"), "2", SHOWS_NOTHING, "test_d.py::test needs two GPUs"),
        (SKIPS.format("one CUDA device"), "1", IN_PART, "4 cases passed, 1 needs two GPUs"),
        (SKIPS.format("a consumer that is not installed: x"), "2", IN_PART, "1 needs a consumer"),
    ],
)
def test_what_did_not_pass_is_in_the_record(suite, text, gpus, status, told):
    suite.write("tests/gpu/test_d.py", text)
    assert suite.check() == (SHOWS_NOTHING, ["test_d.py"])
    assert suite.evidence(GPUS=gpus)[0] == (text is FAILS)
    found, said = suite.evidence("--check")
    assert (found, told in said) == (status, True), said


def test_a_file_of_which_some_cases_ran_is_not_recorded(suite):
    before = suite.record.read_text()
    status, said = suite.evidence("test_a.py", "--", "-k", "test_c")
    assert (status, "test_a.py is not recorded: 1 of its cases ran" in said) == (0, True), said
    assert suite.record.read_text() == before


def test_a_source_that_changes_meanwhile_is_not_recorded(suite):
    suite.write("tests/gpu/test_d.py", "def test(): open('streamkit/__init__.py', 'w').close()")
    before = suite.record.read_text()
    status, said = suite.evidence()
    assert (status, "nothing is recorded" in said) == (1, True), said
    assert suite.record.read_text() == before


BOTH = ["test_a.py", "test_races.py"]


@pytest.mark.parametrize(
    ("name", "before", "after", "stale"),
    [
        ("streamkit/graphs.py", "A comment", "Another", []),
        ("streamkit/graphs.py", "too early", "too soon", []),
        ("streamkit/graphs.py", "four", "five", ["test_a.py"]),
        ("streamkit/racing.py", "[]", "list()", ["test_races.py"]),
        ("tests/support/shared.py", "", "x = 1", ["test_a.py"]),
        ("tests/conftest.py", "gpu", "cpu", BOTH),
        ("tests/gpu/core/conftest.py", "", "x = 1", ["test_a.py"]),
        ("pyproject.toml", "alone", "alone: x", BOTH),
        ("examples/01.py", "", "x = 1", ["test_a.py"]),
        ("README.md", "x = 1", "x = 2", ["test_a.py"]),
        ("README.md", "Words", "Others", []),
    ],
)
def test_an_edit_makes_stale_what_reaches_it(suite, name, before, after, stale):
    text = SMALL[name]
    suite.write(name, text.replace(before, after, 1) if before else after)
    assert suite.check() == (STALE if stale else HOLDS, stale)


# -- what a file reaches ----------------------------------------------------------------------


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
    assert len(loaded) > 60
    assert loaded <= set(map(str, meaning.reached(os.path.relpath(program, ROOT))))
