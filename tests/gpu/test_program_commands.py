"""``streamkit races`` and ``streamkit audit`` around programs that use a GPU."""

from __future__ import annotations

import json

import pytest

from support.command import COMMAND
from support.libraries import need
from support.programs import needs_fork, run_python

need("torch", "cupy")

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


@pytest.mark.parametrize("times", [[], ["--times"]], ids=["", "times"])
def test_an_audit_of_a_program_has_its_work_and_its_page(tmp_path, times):
    if times:
        pytest.importorskip("cupti")
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    files = "--json", report, "--html", page
    done = under("audit", *times, *files, folder=tmp_path, program=RACE)
    assert done.returncode == 0, done.stderr
    data = json.loads(report.read_text())
    assert data["has_times"] is bool(times)
    assert sum(one["library"] == "torch" for one in data["operations"]) >= 3
    assert "<canvas" in page.read_text()


@needs_fork
@pytest.mark.parametrize("tool", ["races", "audit"])
def test_a_program_can_choose_its_device_and_fork_before_it_uses_cuda(tmp_path, tool):
    done = under(tool, folder=tmp_path, program=EARLY)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"--- streamkit {tool} ---") == 1
