"""Each example on a GPU, in a process of its own: its check passes, and it used the device."""

from __future__ import annotations

import re

import pytest

from support.engines import examples, run_with_children
from support.libraries import cuda_devices, need
from support.programs import run_python

need("torch", "cupy", "warp")

EXAMPLES = examples(with_engine=False)
OTHER = "cuda:1" if cuda_devices() > 1 else "cuda:0"

# the last that each prints: what it has checked, and on what
LAST = {
    "01_torch_cupy.py": r"torch and cupy on <streamkit\.CudaStream .*>\nmean 0\.2726.*",
    "02_order_two_streams.py": r"read 2000 to 2000 after <streamkit\.CudaStream .*>\nwrote 2000",
    "03_library_author.py": r"smooth on <streamkit\.CudaStream .*>: 3 of 3 calls right",
    "04_without_a_gpu.py": r"<streamkit\.HostStream .*> got \[10\.0, 20\.0, 30\.0, 40\.0\] .*",
    "05_events_and_timing.py": r"\d.* ms of <streamkit\.CudaStream .*>, and \d.* ms of the host",
    "06_two_devices.py": rf"cuda:0 wrote 7, {OTHER} read 7 to 7",
    "07_thread_pool.py": r"4 parts on 4 queues of cuda:0: 100000, expected 100000",
    "08_asyncio_service.py": r"100 requests, on 4 queues such as <streamkit\.CudaStream .*>",
    "09_see_the_queues.py": r"== after: x is 7\.0, and should be 7\n[\s\S]*",
    "10_one_graph.py": r"relu\(x\) \* 2 \+ 2 of 1, 2 and -3: \[4\.0, 6\.0, 2\.0\], on cuda:0",
}


def test_what_each_example_prints_is_known():
    assert [path.name for path in EXAMPLES] == list(LAST)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_on_a_gpu_and_is_right(path):
    if "sk.audit(" in path.read_text(encoding="utf-8"):
        pytest.importorskip("cupti")  # of CUDA 13 alone
    done = run_python("-P", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{LAST[path.name]}\n\Z", done.stdout, re.MULTILINE), done.stdout


def test_data_parallel_training_with_a_gpu_for_each_rank():
    pytest.importorskip("cupti")  # of CUDA 13 alone
    (path,) = (one for one in examples(with_engine=True) if one.name == "11_torchrun.py")
    ranks = min(2, cuda_devices())
    start = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks
    done = run_with_children(*start, path)
    assert done.returncode == 0, done.stdout + done.stderr
    right = "Its 64 weights are those of one process alone.\n"
    assert done.stdout.count(right) == ranks, done.stdout
