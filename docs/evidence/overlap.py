"""How much of a step of two ranks a reduction beside the computation saves: torch, and StreamKit.

torchrun --standalone --nproc-per-node 2 docs/evidence/overlap.py

A step computes eight products of matrices and reduces six arrays; nothing of the computation needs
the sums. The first rank prints the median time of a step on the GPU, in milliseconds, done in five
ways.
"""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import streamkit as sk

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, WARM_UP = 30, 5

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
product = torch.empty_like(left)
gradients = [torch.ones(2**27, device=device) for _ in range(6)]  # 512 MB each
train, side = torch.cuda.Stream(), torch.cuda.Stream()
ready, done = torch.cuda.Event(), torch.cuda.Event()
s, beside = sk.wrap(train), sk.wrap(side)


def compute() -> None:
    """Multiply, on torch's current stream."""
    for _ in range(8):
        torch.mm(left, right, out=product)


def reduce() -> list[dist.Work]:
    """Begin to reduce, after torch's current stream."""
    return [dist.all_reduce(one, async_op=True) for one in gradients]


def compute_alone() -> None:
    """Compute, and reduce nothing."""
    with torch.cuda.stream(train):
        compute()


def reduce_alone() -> None:
    """Reduce, and compute nothing."""
    with torch.cuda.stream(train):
        for work in reduce():
            work.wait()


def on_one_stream() -> None:
    """Do one after the other."""
    with torch.cuda.stream(train):
        compute()
        for work in reduce():
            work.wait()


def by_hand() -> None:
    """Compute on a second stream, in order by torch's events."""
    with torch.cuda.stream(train):
        ready.record()
        works = reduce()
    with torch.cuda.stream(side):
        side.wait_event(ready)
        compute()
        done.record()
    with torch.cuda.stream(train):
        for work in works:
            work.wait()
        train.wait_event(done)


def by_streamkit() -> None:
    """Compute on a second stream, in order by StreamKit."""
    beside.wait(s)
    with sk.use(s):
        works = reduce()
    with sk.use(beside):
        compute()
    for work in works:
        s.wait(work)
    s.wait(beside)


def time_of(step: Callable[[], None]) -> float:
    """Return how long a step takes on the GPU, from its first work to the last."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start.record(train)
    step()
    end.record(train)
    torch.cuda.synchronize()
    return start.elapsed_time(end)


steps = compute_alone, reduce_alone, on_one_stream, by_hand, by_streamkit
times = [[time_of(step) for step in steps] for _ in range(ROUNDS + WARM_UP)][WARM_UP:]
medians = dict(zip(steps, map(statistics.median, zip(*times, strict=True)), strict=True))
if dist.get_rank() == 0:
    print(torch.cuda.get_device_name(), torch.__version__)
    for step, took in medians.items():
        print(f"{step.__name__:14} {took:5.1f} ms")
    by_torch, by_us = (medians[on_one_stream] - medians[one] for one in (by_hand, by_streamkit))
    print(f"saved by hand {by_torch:.1f} ms, by StreamKit {by_us:.1f} ms: {by_us / by_torch:.2f}")
dist.destroy_process_group()
