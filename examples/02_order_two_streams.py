"""Order between two queues, whoever made them: the reader waits for the writer.

The wait happens on the device; the host goes on at once. Without `reader.wait(writer)` the reader
would copy numbers that the writer has not finished.
"""

import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

ROUNDS = 2_000
SIZE = 100_000

on_gpu = sk.is_available()
if on_gpu:
    import cupy
    import torch

    writer = sk.wrap(torch.cuda.Stream())
    reader = sk.wrap(cupy.cuda.Stream(non_blocking=True))
    with writer:
        x = torch.zeros(SIZE, device=writer.device)
        y = cupy.from_dlpack(x)  # the same memory, seen by the other library
        copy = cupy.zeros(SIZE, dtype=y.dtype)
else:
    writer = sk.new_stream(name="writer")
    reader = sk.new_stream(name="reader")
    x = y = np.zeros(SIZE)
    copy = np.zeros(SIZE)
reader.wait(writer)  # once the arrays are there


def write() -> None:
    """Count up, slowly."""
    for _ in range(ROUNDS):
        x[:] += 1


def read() -> None:
    """Copy what is there."""
    copy[:] = y


writer.submit(write)
reader.wait(writer)  # a torch stream and a CuPy stream, or two host streams
reader.submit(read)
reader.sync()

lowest, highest = float(copy.min()), float(copy.max())
print(f"The writer counted to {ROUNDS} in each of {SIZE:,} places: {writer}.")
print(f"The reader waited for it, and read {lowest:.0f} to {highest:.0f}: {reader}.")
sys.exit(not lowest == highest == ROUNDS)
