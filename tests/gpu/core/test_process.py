"""The process: a fork, the end of the interpreter, and programs under ``streamkit races``."""

from __future__ import annotations

import json
import textwrap

import pytest

from support.command import COMMAND
from support.libraries import need
from support.programs import needs_fork, run_program, run_python


def test_a_forked_child_is_told_and_the_parent_is_unharmed():
    done = run_program("""
        import gc, os
        import streamkit as sk
        from cuda.bindings import driver

        asked = sk.is_available(), driver.cuDevicePrimaryCtxGetState(0)[2]  # no context yet
        stream, event = sk.new_stream(), sk.new_event()
        child = os.fork()
        if child == 0:
            told = not sk.is_available()
            for call in (sk.new_stream, stream.record, lambda: stream.record(event), stream.sync,
                         lambda: stream.wait(event), sk.default_stream, stream.__enter__):
                try:
                    call()
                except sk.errors.ForkedProcessError as error:
                    told += "spawn" in str(error)
            repr(stream)
            del stream, event
            gc.collect()
            os._exit(0 if told == 8 else 1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        stream.record(event)
        stream.sync()
        print("parent", stream.done, *asked, driver.cuDevicePrimaryCtxGetState(0)[2])
    """)
    assert (done.stdout, done.stderr) == ("0\nparent True True 0 1\n", "")


def test_a_forked_child_that_drops_a_lent_array_says_nothing_and_ends_nothing():
    need("cupy")
    done = run_program("""
        import gc, os, weakref
        import cupy
        import streamkit as sk

        one, other = sk.new_stream(), sk.new_stream(nonblocking=True)
        with one:
            array = cupy.ones(8)
        lent = [sk.handoff(array, other, after=one)]
        kept = weakref.ref(array)
        del array
        child = os.fork()
        if child == 0:
            lent.clear()
            gc.collect()
            os._exit(kept() is None)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        lent.clear()
        other.sync()
        gc.collect()
        print(kept() is None)
    """)
    assert (done.stdout, done.stderr) == ("0\nTrue\n", "")


LOADER = """
import cupy, torch
FIRST

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        USE
        return float(cupy.full(3, index).sum())

if __name__ == "__main__":
    torch.zeros(1, device="cuda"), cupy.zeros(1)
    loader = torch.utils.data.DataLoader(Squares(), num_workers=1, multiprocessing_context=METHOD)
    try:
        print([float(one) for one in loader])
    except Exception as error:
        print(type(error).__name__, "'spawn'" in str(error))
"""
IMPORT = "import streamkit as sk"


@pytest.mark.parametrize(
    ("first", "use", "method", "told"),
    [
        (IMPORT, "with sk.use(sk.new_stream()): pass", "fork", "ForkedProcessError True\n"),
        ("", f"{IMPORT}; sk.default_stream().sync()", "fork", "ForkedProcessError True\n"),
        (IMPORT, "with sk.use(sk.new_stream()): pass", "spawn", "[0.0, 3.0]\n"),
    ],
    ids=["forked", "imported in the child", "spawned"],
)
def test_a_data_loader_whose_worker_uses_cuda(tmp_path, first, use, method, told):
    assert loaded(tmp_path, first, use, method) == told


def test_control_without_streamkit_the_error_is_cupys(tmp_path):
    name, advises = loaded(tmp_path, "", "", "fork").split()
    assert (name != "ForkedProcessError", advises) == (True, "False")


def loaded(folder, first, use, method):
    need("torch", "cupy")
    program = folder / "load.py"  # a spawned worker imports it
    text = LOADER.replace("FIRST", first).replace("USE", use).replace("METHOD", repr(method))
    program.write_text(text, encoding="utf-8")
    return run_python("-W", "ignore", str(program)).stdout


@pytest.mark.parametrize(
    "ending",
    ["pass", "raise SystemExit(0)", "scope.__enter__()", "s.close()", "del s", "ring.append(ring)"],
)
def test_nothing_is_said_at_the_end_of_the_interpreter(ending):
    need("torch", "cupy")
    done = run_program(f"""
        import cupy, torch
        import streamkit as sk

        s, t = sk.new_stream(), sk.wrap(torch.cuda.Stream())
        scope = sk.use(s)
        with t:
            x = torch.ones(10, device="cuda")
        views = [s.to("torch"), s.to("cupy"), t.to("cupy")]
        event = s.record()
        t.wait(s)
        ring = [s, event]
        {ending}
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_and_wrapping_touches_no_device():
    done = run_program("""
        import streamkit as sk
        import streamkit._cuda.loader as seam  # no public name tells whether the driver is loaded

        assert not seam.is_loaded()
        for wrong in (None, 5, object()):
            try:
                sk.wrap(wrong)
            except TypeError:
                pass
        assert not seam.is_loaded()
    """)
    assert (done.returncode, done.stderr) == (0, "")


GRAPHS = """
import gc, torch
import streamkit as sk
from streamkit._graphs import checks  # another capture begins in between

x = torch.zeros(8, device="cuda")
x + 1, torch.rand(8, device="cuda")


def ours():
    with sk.capture() as g:
        y = torch.rand(8, device="cuda") + x
    return g


def torchs(during):
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        x + 1
        during()
        gc.collect()
    graph.replay()
    torch.cuda.synchronize()


def numbers_are_random():
    return not torch.equal(torch.rand(8, device="cuda"), torch.rand(8, device="cuda"))
"""

DEATHS = """
g = ours()
g.launch()
g.stream.sync()
torchs(g.close)
print("closed", flush=True)

kept = [ours()]
torchs(kept.clear)
print("dropped", flush=True)

kept = [ours()]
try:
    kept[0].launch(sk.new_stream("cpu"))
except sk.errors.DeviceMismatchError as error:
    kept.append(error)
torchs(kept.clear)
print("with the error of its launch", flush=True)

try:
    with sk.capture():
        torch.rand(8, device="cuda")
        raise KeyError
except KeyError as error:
    kept.append(error)
torchs(kept.clear)
print("with the error of its capture", flush=True)
print(numbers_are_random())
"""


def test_graphs_that_die_in_a_capture_of_torchs_end_nothing():
    """torch (2.11) ends the process if its own object dies while its current stream captures."""
    need("torch")
    done = run_program(GRAPHS + DEATHS)
    ways = ["closed", "dropped", "with the error of its launch", "with the error of its capture"]
    assert done.stdout.splitlines() == [*ways, "True"]
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_beginning_that_torch_refuses_is_told_and_ends_nothing():
    """Somebody begins a capture on the stream after the question whether one goes on."""
    need("torch")
    done = run_program(
        GRAPHS
        + textwrap.dedent("""
        from cuda.bindings import driver

        stream, refuse = sk.new_stream(nonblocking=True), checks.refuse_inside_another

        def then_another_begins(asked):
            refuse(asked)
            driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(2))

        checks.refuse_inside_another = then_another_begins
        try:
            with sk.capture(stream):
                pass
        except Exception as error:
            print(isinstance(error, RuntimeError), hasattr(error, "__notes__"), stream.is_capturing)
        checks.refuse_inside_another = refuse
        driver.cuGraphDestroy(driver.cuStreamEndCapture(stream.handle)[1])
        gc.collect()
        ours().launch()
        torch.cuda.synchronize()
        print(numbers_are_random())
    """)
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True False True\nTrue\n", "", 0)


# -- a program under a tool -------------------------------------------------------------------

RACE = """
import torch
loader, trainer = torch.cuda.Stream(), torch.cuda.Stream()
batch = torch.zeros(1000, device="cuda")
torch.cuda.synchronize()
with torch.cuda.stream(loader):
    batch.fill_(7)
with torch.cuda.stream(trainer):
    batch.add_(1)
torch.cuda.synchronize()
"""
# the device that torch sees is chosen, and a child uses it, both before the parent initialises CUDA
EARLY = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
child = os.fork()
if not child:
    ok = float(torch.ones(3, device="cuda").sum()) == 3
    os._exit(not ok)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.cuda.device_count() == 1
assert float(torch.ones(3, device="cuda").sum()) == 3
"""


def under(*words, folder, program):
    need("torch", "cupy")
    (folder / "program.py").write_text(program)
    return run_python("-c", COMMAND, *words, folder / "program.py", COLUMNS="100")


def test_a_race_of_a_program_that_does_not_know_streamkit_is_named(tmp_path):
    report = tmp_path / "report.json"
    done = under("races", "--fail", "--json", report, folder=tmp_path, program=RACE)
    assert done.returncode == 3, done.stderr
    races = json.loads(report.read_text())["races"]
    (race,) = [race for race in races if race["certain"]]
    assert race["array"]["name"] == "batch"
    assert "add sk.wrap(trainer).wait(loader) before line 9" in race["fix"]
    fixed = RACE.replace("    batch.add_(1)", "    trainer.wait_stream(loader); batch.add_(1)")
    done = under("races", "--fail", folder=tmp_path, program=fixed)
    assert done.returncode == 0, done.stderr


def test_an_audit_of_a_program_has_its_work_and_its_page(tmp_path):
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    files = "--json", report, "--html", page
    done = under("audit", *files, folder=tmp_path, program=RACE)
    assert done.returncode == 0, done.stderr
    data = json.loads(report.read_text())
    assert sum(one["library"] == "torch" for one in data["operations"]) >= 3
    assert "<canvas" in page.read_text()


@needs_fork
@pytest.mark.parametrize("tool", ["races", "audit"])
def test_a_program_can_choose_its_device_and_fork_before_it_uses_cuda(tmp_path, tool):
    done = under(tool, folder=tmp_path, program=EARLY)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"--- streamkit {tool} ---") == 1
