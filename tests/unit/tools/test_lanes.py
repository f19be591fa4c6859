"""What .ci/run takes for a success, and that the oldest lanes have the oldest versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import expected
from support.documents import ROOT
from support.programs import environment

pytestmark = pytest.mark.once

ASKED = {
    "passed": {
        "tests-unit": {"unit": 2},
        "tests-small": {"unit": 0},
        "tests-two": {"nogpu": 3, "emulated": 2},
    },
    "skip": [
        {"test": "tests/unit/test_a.py::test_*", "reason": "not here*", "step": "tests-unit"},
        {"test": "tests/unit/test_b.py", "reason": "*"},
    ],
}
TALLY = "tier unit: {} passed, 0 failed, 9 skipped\n"
NOGPU, EMULATED = TALLY.replace("unit", "nogpu"), TALLY.replace("unit", "emulated")


@pytest.mark.parametrize(
    ("step", "log", "told"),
    [
        ("tests-unit", "no tests ran\n", ["no test ran"]),
        ("tests-two", NOGPU.format(3) + EMULATED.format(2), []),
        ("tests-two", NOGPU.format(3), ["nogpu ran, and one run each of nogpu, emulated has to"]),
        ("tests-two", NOGPU.format(3) + EMULATED.format(1), ["1 tests of emulated passed"]),
        ("tests-new", TALLY.format(2), ["expected.toml does not say how many"]),
        ("tests-unit", TALLY.format(2) + "skipped 3 tests/unit/test_a.py::test_x: not here\n", []),
        (
            "tests-small",
            TALLY.format(2) + "skipped 3 tests/unit/test_a.py::test_x: not here\n",
            ["tests/unit/test_a.py::test_x may not be skipped: not here"],
        ),
    ],
)
def test_a_run_that_is_less_than_expected_is_told(step, log, told):
    found = expected.faults(step, log, ASKED)
    assert len(found) == len(told)
    assert all(f"{step}: {part}" in line for part, line in zip(told, found, strict=True))


def test_tests_that_skip_themselves_fail_the_step(tmp_path):
    """The tally and the reasons are those that the real conftest prints."""
    for name in ("conftest.py", "expected.py", "support/libraries.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "tests/unit").mkdir()
    (tmp_path / "tests/unit/test_a.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_x(n): pytest.skip('not  today')\n"
        "@pytest.mark.xfail(reason='soon')\ndef test_y(): assert False\n"
    )
    (tmp_path / "tests/unit/test_b.py").write_text("import pytest\npytest.importorskip('none_')\n")
    (tmp_path / "tests/expected.toml").write_text(
        "[passed]\ntests-unit = { unit = 2 }\n"
        "[[skip]]\ntest = '*::test_y'\nreason = 'expected to fail: soon'\n"
    )
    lane = ("STREAMKIT_REQUIRE", "TOX_ENV_NAME")
    variables = environment(path=[tmp_path / "tests"])
    variables = {name: value for name, value in variables.items() if name not in lane}
    run = {"cwd": tmp_path, "env": variables, "capture_output": True, "text": True}
    options = ["-p", "no:cacheprovider", "--import-mode=importlib", "tests/unit"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], **run, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "log").write_text(done.stdout)
    checked = subprocess.run(
        [sys.executable, "tests/expected.py", "tests-unit", "log"], **run, check=False
    )
    absent = "could not import 'none_': No module named 'none_'"
    assert checked.stdout.splitlines() == [
        "tests-unit: 1 tests of unit passed, and at least 2 have to",
        "tests-unit: tests/unit/test_a.py::test_x may not be skipped: not today",
        f"tests-unit: tests/unit/test_b.py may not be skipped: {absent}",
    ]
    assert checked.returncode == 1


def test_every_step_that_runs_tests_is_expected_to_pass_some():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    steps = set(re.findall(r"^(?:step|lane) (tests-[\w-]+)", script, re.MULTILINE))
    asked = tomllib.loads(expected.EXPECTED.read_text(encoding="utf-8"))
    assert asked["passed"].keys() == steps
    assert min(floor for tiers in asked["passed"].values() for floor in tiers.values()) > 100
    for skip in asked["skip"]:
        path = ROOT / skip["test"].partition("::")[0]
        assert "*" in str(path) or path.exists(), skip["test"]


# -- the extras --------------------------------------------------------------------------------


def brought(extra):
    """The distributions that an extra installs, with those of the extras that it names."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    found, asked = set(), [extra]
    while asked:
        for line in extras[asked.pop()]:
            own = re.match(r"streamkit-cuda\[(.*)\]", line)
            asked += own[1].split(",") if own else []
            found |= set() if own else {line.partition(";")[0]}
    return found


@pytest.mark.parametrize(("major", "suffix"), [(12, "-cu12"), (13, "==13.*")])
def test_an_extra_for_a_cuda_brings_cuda_python_and_what_compiles_cupys_kernels(major, suffix):
    for name in ("cuda", "cupy", "all"):
        found = brought(f"{name}{major}")
        assert any(re.match(rf"cuda-bindings>=[\d.]+,<{major + 1}$", line) for line in found)
        assert any(line.startswith("cuda-core>=") for line in found)
        parts = {f"nvidia-cuda-{part}{suffix}" for part in ("nvrtc", "runtime")}
        assert parts <= found or name == "cuda"


# -- the oldest versions ----------------------------------------------------------------------

NEVER_OLDEST = {"torch"}  # for gigabytes of CUDA: see tests/oldest


def test_the_oldest_lanes_have_the_oldest_versions_that_are_promised():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    names = ["warp", "tvm-ffi", "torch", "numba", "cuda12", "cupy12"]
    wanted = {
        found[1]: found[2]
        for name in names
        for line in extras[name]
        if (found := re.match(r"([\w-]+)>=([\d.]+)", line))
    }
    lines = (ROOT / "tests/oldest/cu12.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pinned == {k: v for k, v in wanted.items() if k not in NEVER_OLDEST}
    assert len(pinned) >= 5
