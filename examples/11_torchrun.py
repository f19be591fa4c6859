"""A data-parallel training step: gradients are reduced while the next batch is prepared.

``torchrun --standalone --nproc-per-node 2 examples/11_torchrun.py``; without GPUs, on the CPU.
"""

import os
import sys

try:
    import numpy as np
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:
    sys.exit("This example needs torch and NumPy. Install them with: pip install torch numpy")

import streamkit as sk

if "RANK" not in os.environ:
    sys.exit("Start this example with: torchrun --standalone --nproc-per-node 2 " + sys.argv[0])
STEPS, ROWS, COLUMNS, RATE = 5, 20_000, 64, 0.01
on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
if on_gpu:
    torch.cuda.set_device(device)
    import cupy
    import warp as wp
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
train, prepare = (sk.new_stream(str(device), name=name) for name in ("train", "prepare"))
batches = [torch.zeros(ROWS, COLUMNS, device=device) for _ in range(2)]
weights = torch.zeros(COLUMNS, device=device)


def read(step: int, rank: int) -> np.ndarray:
    """Return the raw batch of a step, another one in each rank."""
    return np.arange(ROWS * COLUMNS, dtype="f4").reshape(ROWS, COLUMNS) % 97 + step * ranks + rank


def next_batch(step: int) -> None:
    """Prepare the batch of a step in one of the two buffers."""
    batch = batches[step % 2]
    if on_gpu:
        cupy.sin(cupy.asarray(read(step, rank)), out=cupy.from_dlpack(batch))
        wp.map(wp.abs, wp.from_torch(batch), out=wp.from_torch(batch))
    else:
        np.abs(np.sin(read(step, rank)), out=batch.numpy())


prepare.submit(next_batch, 0)
for step in range(STEPS):
    train.wait(prepare)
    with sk.use(train):
        batch = batches[step % 2]
        gradients = batch.T @ (batch @ weights - 1) / (ROWS * ranks)
        work = dist.all_reduce(gradients, async_op=True)  # always begun on this stream
    prepare.wait(train)  # which has read the other buffer; the reduction goes on
    prepare.submit(next_batch, step + 1)
    train.wait(work)
    train.submit(weights.sub_, gradients, alpha=RATE)
train.sync()
prepare.sync()
dist.destroy_process_group()

expected = np.zeros(COLUMNS)
for step in range(STEPS):  # what one process alone would do
    data = np.concatenate([np.abs(np.sin(read(step, one))) for one in range(ranks)])
    expected -= RATE * data.T @ (data @ expected - 1) / len(data)
right = np.allclose(weights.cpu().numpy(), expected, rtol=1e-3, atol=1e-5)
print(f"Its {COLUMNS} weights are {'those' if right else 'not those'} of one process alone.")
sys.exit(not right)
