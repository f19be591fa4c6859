"""Each example on a GPU, in a process of its own: its check passes, and it names the device."""

from __future__ import annotations

import pytest

from support.engines import examples, run_with_children
from support.libraries import cuda_devices, need
from support.programs import run_python

need("torch", "cupy", "warp")

ON_THE_HOST = {"04_without_a_gpu.py", "17_missing_wait.py", "18_prefetcher.py"}


@pytest.mark.parametrize("path", examples(with_engine=False), ids=lambda path: path.name)
def test_an_example_runs_on_a_gpu_and_is_right(path):
    done = run_python("-P", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("cuda" in done.stdout) is (path.name not in ON_THE_HOST), done.stdout


def test_data_parallel_training_with_a_gpu_for_each_rank():
    (path,) = (one for one in examples(with_engine=True) if one.name == "11_torchrun.py")
    ranks = min(2, cuda_devices())
    start = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks
    done = run_with_children(*start, path)
    assert done.returncode == 0, done.stdout + done.stderr
    right = "Its 64 weights are those of one process alone.\n"
    assert done.stdout.count(right) == ranks, done.stdout
