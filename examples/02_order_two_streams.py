"""Order between two queues, whoever made them: the reader waits for the writer.

The wait happens on the device; the host goes on at once. Without `reader.wait(writer)` the reader
would copy numbers that the writer has not finished.
"""

import sys

import numpy as np

import streamkit as sk

ROUNDS = 2_000

if sk.new_stream().device == "cpu":
    torch, xp = np, np
    writer, reader = sk.new_stream(name="writer"), sk.new_stream(name="reader")
else:
    import cupy as xp
    import torch

    writer = sk.wrap(torch.cuda.Stream())
    reader = sk.wrap(xp.cuda.Stream(non_blocking=True))

with writer:
    x = torch.zeros(100_000, device=writer.device)
    y = xp.from_dlpack(x)  # the same memory, seen by the other library
    copy = xp.zeros(100_000, dtype=y.dtype)
reader.wait(writer)  # once the arrays are there


def write() -> None:
    """Count up, slowly."""
    for _ in range(ROUNDS):
        torch.add(x, 1, out=x)


def read() -> None:
    """Copy what is there."""
    copy[:] = y


writer.submit(write)
reader.wait(writer)  # a torch stream and a CuPy stream, or two host queues
reader.submit(read)
reader.sync()

lowest, highest = float(copy.min()), float(copy.max())
print(f"{reader}\nread {lowest:.0f} to {highest:.0f} after {writer}\nwrote {ROUNDS}")
sys.exit(not lowest == highest == ROUNDS)
