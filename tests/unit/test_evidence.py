"""The records of a GPU: what failed is in them, and the pictures of them say what they say."""

from __future__ import annotations

import importlib.util
import json
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
    pytest.importorskip("matplotlib")

    def plot(data=None, name="drawn.svg"):
        (tmp_path / "data.json").write_bytes(RECORD.read_bytes() if data is None else data)
        done = subprocess.run(
            [sys.executable, ROOT / "docs/evidence/plot_audit.py",
             "--data", tmp_path / "data.json", "--out", tmp_path / name],
            env={"PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path)},
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
    again = drawn.read_text(encoding="utf-8")
    assert plot(name="again.svg")[1].read_text(encoding="utf-8") == again
    committed = PICTURE.read_text(encoding="utf-8")
    version = next(line for line in again.splitlines() if "Matplotlib v" in line)
    if version not in committed:
        pytest.skip("the picture is of another version of Matplotlib")
    assert again == committed


def test_what_x_was_is_drawn_as_recorded(plot):
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    data["x"] = {"before": 4.0, "after": 6.5}
    _, drawn = plot(json.dumps(data).encode())
    text = drawn.read_text(encoding="utf-8")
    assert "too early; x is 4 -->" in text
    assert "the one before; x is 6.5 -->" in text


def test_a_record_that_does_not_say_what_x_was_is_refused(plot):
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    del data["x"]
    done, drawn = plot(json.dumps(data).encode())
    assert done.returncode == 1
    assert "Record it again: python examples/09_see_the_queues.py" in done.stderr
    assert "Traceback" not in done.stderr
    assert not drawn.exists()


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
