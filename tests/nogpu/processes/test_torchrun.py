"""The example of data-parallel training, in two processes that torchrun starts, with gloo."""

from __future__ import annotations

import sys

import pytest

from support.documents import ROOT
from support.engines import run_with_children
from support.libraries import need

need("torch")

EXAMPLE = ROOT / "examples" / "11_torchrun.py"
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
LOOPBACK = "--local-addr", "127.0.0.1"  # the name of the machine may lead nowhere


def run(path):
    """Run the example in two processes, whose lines can come one within the other."""
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    return run_with_children(*TORCHRUN, *LOOPBACK, path, **variables)


def test_each_rank_has_the_weights_of_one_process_alone():
    done = run(EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Its 64 weights are those of one process alone.") == 2


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("all_reduce(gradients,", "all_reduce(gradients.clone(),")],
)
def test_without_the_sum_it_fails(tmp_path, right, wrong):
    source = EXAMPLE.read_text(encoding="utf-8")
    assert source.count(right) == 1
    changed = tmp_path / EXAMPLE.name
    changed.write_text(source.replace(right, wrong), encoding="utf-8")
    done = run(changed)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Its 64 weights are not those of one process alone." in done.stdout
