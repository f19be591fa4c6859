"""Each example runs on a machine with NumPy alone, checks itself, and says what it found.

Those that need an engine, such as torchrun, say what installs it: tests/nogpu runs them.
"""

from __future__ import annotations

import doctest
import functools
import re

import pytest

import streamkit
from streamkit.types import CudaStream
from support.documents import ROOT
from support.engines import ENGINES, examples
from support.programs import BLOCKER, ROOTS, forked, run_python

pytestmark = pytest.mark.portable

pytest.importorskip("numpy")

EXAMPLES = examples(with_engine=False)
WITH_ENGINE = examples(with_engine=True)


@functools.cache
def run(path, source):
    """Run an example's source under its own path, without a GPU and with NumPy alone."""
    return forked(
        f"exec(compile({source!r}, {str(path)!r}, 'exec'))",
        options=("-P", "-W", "error"), loaded=("streamkit", "numpy"), blocked=ROOTS,
        CUDA_VISIBLE_DEVICES="-1",
    )  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_without_a_gpu(path, no_driver):
    done = run(path, path.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_without_numpy_says_what_installs_it(path):
    if "numpy" not in path.read_text():
        return
    code = BLOCKER.format(blocked=("numpy",))
    code += f"exec(compile({path.read_text()!r}, {str(path)!r}, 'exec'))"
    done = run_python("-P", "-c", code)
    said = "This example needs NumPy. Install it with: pip install numpy\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize(
    ("name", "slow", "right", "wrong"),
    [
        ("01_torch_cupy.py", None, "np.linspace(0, 1,", "np.linspace(0, 2,"),
        (
            "02_order_two_streams.py",
            "for _ in range(",
            "reader.wait(writer)  # a torch",
            "# a torch",
        ),
        ("03_library_author.py", None, "+ x +", "- x +"),
        ("04_without_a_gpu.py", None, "out=result", "out=batch"),
        ("05_events_and_timing.py", None, "end - start", "start - end"),
        ("06_two_devices.py", "time.sleep(", "there.wait(here)  # across", "# across"),
        ("07_thread_pool.py", "time.sleep(", "join.wait(s)", "pass"),
        ("08_asyncio_service.py", None, "float(request)) * 2", "float(request)) * 3"),
        ("09_see_the_queues.py", None, "found == 3 * 2 + 1", "found == 3"),
        ("10_one_graph.py", None, "np.multiply(y, 2, out", "np.multiply(y, 3, out"),
        ("14_graphed.py", None, "b * 0.5 + 1", "b * 0.5 + 2"),
        ("15_follow.py", None, "(a) * 2)", "(a) * 3)"),
        ("16_two_processes.py", None, "numbers.fill, step)", "numbers.fill, 7)"),
        ("17_missing_wait.py", None, "8)\n    work.wait(load)\n", "8)\n"),
        ("18_prefetcher.py", None, "load.wait(train)  #", "pass  #"),
        ("19_graph_service.py", None, "x * 0.5 + 1", "x * 0.5 + 2"),
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
        source = re.sub(
            rf"^( +)({re.escape(slow)})", r"\1late.wait()\n\1\2", source, flags=re.MULTILINE
        )
        source = source.replace("\nsys.exit(", "\nlate.set()\nsys.exit(")
        source = source.replace("import sys\n", "import sys, threading\nlate = threading.Event()\n")
    done = run(path, source)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_queues_before_go_wrong_or_the_example_fails_on_a_gpu(no_driver):
    path = ROOT / "examples" / "09_see_the_queues.py"
    in_order = path.read_text().replace("zip([own[0], *own], ", "zip([own[0]] * 4, ")
    on_gpu = in_order.replace("if on_gpu and before:", "if before:")
    assert [run(path, one).returncode for one in (in_order, on_gpu)] == [0, 1]


@pytest.mark.parametrize("path", WITH_ENGINE, ids=lambda path: path.name)
def test_an_example_without_its_engine_says_what_installs_it(path):
    code = BLOCKER.format(blocked=(ENGINES[path.name],))
    code += f"exec(compile({path.read_text()!r}, {str(path)!r}, 'exec'))"
    done = run_python("-P", "-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(r"This example needs .*\. Install them with: pip install .*\n\Z", done.stderr)


# -- the gallery --------------------------------------------------------------------------------

GALLERY = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")


def sections():
    """The text of each example's section of the gallery, by the name of its file."""
    found = re.split(r"^## ", GALLERY, flags=re.MULTILINE)[1:]
    return {re.search(r"\.\./examples/([\w.]+)", one)[1]: one for one in found}


def test_every_example_has_its_section_in_the_gallery():
    there = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert set(sections()) == there


@pytest.mark.parametrize("name", ["17_missing_wait.py", "18_prefetcher.py"])
def test_the_gallery_shows_the_races_that_an_example_prints(name, no_driver):
    (shown,) = re.findall(r"```text\n(.*?)```", sections()[name], re.DOTALL)
    path = ROOT / "examples" / name
    printed = run(path, path.read_text()).stdout.lstrip("\n")
    assert doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), printed


README = (ROOT / "README.md").read_text(encoding="utf-8")
OVERVIEW = (ROOT / "docs" / "reference" / "overview.md").read_text(encoding="utf-8")


def test_the_readme_and_the_overview_name_only_what_there_is():
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        compile(block, "README.md", "exec")
    names = set(re.findall(r"\bsk\.([A-Za-z_]\w*)", README))
    functions = OVERVIEW.partition("## Streams")[0]
    rows = [line for line in functions.splitlines() if line.startswith("| `")]
    table = "".join(line.split("|")[1] for line in rows)
    names |= set(re.findall(r"`([a-z_]+)\(", table))
    assert len(names) > 10
    assert not {name for name in names if not hasattr(streamkit, name)}
    members = set(re.findall(r"`s\.([a-z_]+)", README + OVERVIEW))
    assert members >= {"to", "wait", "record", "sync", "submit"}
    assert not {name for name in members if not hasattr(CudaStream, name)}


def test_the_overview_has_every_public_function_and_member():
    functions = {name for name in streamkit.__all__ if name[0].islower()}
    missing = {name for name in functions if f"`{name}(" not in OVERVIEW}
    assert not missing, "each has a line in docs/reference/overview.md"
    members = {name for name in dir(CudaStream) if not name.startswith("_")}
    assert not {name for name in members - {"from_handle"} if f"s.{name}" not in OVERVIEW}


def test_the_readme_installs_nothing_under_the_name_of_another_project():
    installs = re.findall(r"pip install +('[^']*'|\S+)", README)
    assert "'.[cli]'" in installs
    assert all(what == "tox" or what.startswith(("'.[", "'../streamkit[")) for what in installs)


def test_the_readme_links_to_files_that_exist():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]
