"""Each example runs on a machine with NumPy alone, checks itself, and says what it found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import streamkit
from support.programs import BLOCKER, run_python

pytest.importorskip("numpy")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LIBRARIES = ("torch", "cupy", "warp", "numba", "cuda")


def run(path, source):
    """Run an example's source under its own path, without a GPU and with NumPy alone."""
    code = BLOCKER.format(blocked=LIBRARIES) + f"exec(compile({source!r}, {str(path)!r}, 'exec'))"
    return run_python("-P", "-W", "error", "-c", code, CUDA_VISIBLE_DEVICES="-1")


def test_the_examples_are_found_and_the_mix_comes_first():
    assert len(EXAMPLES) >= 4
    assert EXAMPLES[0].name == "01_torch_cupy.py"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_without_a_gpu(path, no_driver):
    done = run(path, path.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("name", "slow", "right", "wrong"),
    [
        ("01_torch_cupy.py", None, "linspace(0, 1,", "linspace(0, 2,"),
        ("02_order_two_streams.py", "torch.add(", "reader.wait(writer)  # a torch", "# a torch"),
        ("03_library_author.py", None, "+ x +", "- x +"),
        ("04_without_a_gpu.py", None, "out=result", "out=batch"),
        ("05_events_and_timing.py", None, "end - start", "start - end"),
        ("06_two_devices.py", "time.sleep(", "there.wait(here)  # across", "# across"),
        ("07_thread_pool.py", "time.sleep(", "join.wait(s)", "pass"),
        ("08_asyncio_service.py", None, "float(request)) * 2", "float(request)) * 3"),
        ("09_see_the_queues.py", None, "3 * 2 + 1", "3"),
        ("10_one_graph.py", None, "np.multiply(y, 2, out", "np.multiply(y, 3, out"),
    ],
)
def test_an_example_that_goes_wrong_fails(name, slow, right, wrong, no_driver):
    """What is slow in it waits for the end of the example, else a busy machine hides the fault."""
    path = ROOT / "examples" / name
    source = path.read_text()
    assert source.count(right) == 1
    source = source.replace(right, wrong)
    if slow is not None:
        assert source.count(slow) == 1
        source = source.replace(slow, f"late.wait(), {slow}")
        source = source.replace("\nsys.exit(", "\nlate.set()\nsys.exit(")
        source = source.replace("import sys\n", "import sys, threading\nlate = threading.Event()\n")
    done = run(path, source)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_queues_before_go_wrong_or_the_example_fails_on_a_gpu(tmp_path, no_driver):
    path, written = ROOT / "examples" / "09_see_the_queues.py", tmp_path / "audit.json"
    source = path.read_text().replace("sys.argv[1:]", repr([str(written)]))
    assert run(path, source).returncode == 0
    data = json.loads(written.read_text())
    assert data["x"]["after"] == 7
    assert re.match(r"\d{4}-\d\d-\d\d$", data["date"])
    assert set(data["versions"]) == {"numpy"}
    in_order = source.replace("zip([own[0], *own], ", "zip([own[0]] * 4, ")
    on_gpu = in_order.replace('[s.device == "cpu" and right[0], True]', "[False, True]")
    assert [run(path, one).returncode for one in (in_order, on_gpu)] == [0, 1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_documented(path):
    source = path.read_text()
    assert len(source.splitlines()) <= 60
    assert re.match(r'"""[A-Z0-9a-z]', source)


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_names_only_what_there_is():
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        compile(block, "README.md", "exec")
    names = set(re.findall(r"\bsk\.([A-Za-z_]\w*)", README))
    table = "".join(line.split("|")[1] for line in README.splitlines() if line.startswith("| `"))
    names |= set(re.findall(r"`([a-z_]+)\(", table))
    assert len(names) > 10
    assert not {name for name in names if not hasattr(streamkit, name)}
    members = set(re.findall(r"`s\.([a-z_]+)", README))
    assert members >= {"to", "wait", "record", "sync", "submit"}
    assert not {name for name in members if not hasattr(streamkit.CudaStream, name)}


def test_the_readme_installs_nothing_under_the_name_of_another_project():
    installs = re.findall(r"pip install +('[^']*'|\S+)", README)
    assert "'.[cli]'" in installs
    assert all(what == "tox" or what.startswith("'.[") for what in installs)


def test_the_readme_links_to_files_that_exist():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
