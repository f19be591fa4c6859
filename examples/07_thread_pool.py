"""Each worker of a thread pool fills its part on a queue of its own; one queue joins them all.

A scope belongs to its thread, so the function that the worker runs enters it.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

PARTS, SIZE = 4, 10_000

join = sk.new_stream(name="join")
if not sk.is_available():
    numbers = np.zeros(PARTS * SIZE)
else:
    import cupy

    with join:
        numbers = cupy.zeros(PARTS * SIZE)


def fill(part: Any, value: int) -> None:
    """Fill one part, slowly."""
    if not sk.is_available():
        time.sleep(0.02)
    part[:] = value


def on_its_own_queue(index: int) -> sk.Stream:
    """Let the worker's queue do the work, and return it."""
    s = sk.new_stream(join.device, name=f"part {index}")
    s.wait(join)  # the array is there
    part = numbers[index * SIZE : (index + 1) * SIZE]
    if not sk.is_available():
        s.submit(fill, part, index + 1)
    else:
        with sk.use(s, libraries=["cupy"]):  # each thread's own; Warp's is the process's
            fill(part, index + 1)
    return s


with ThreadPoolExecutor(PARTS) as pool:
    for s in pool.map(on_its_own_queue, range(PARTS)):
        join.wait(s)
join.sync()

total, expected = float(numbers.sum()), SIZE * sum(range(1, PARTS + 1))
print(f"{PARTS} threads filled {PARTS} parts, each on a queue of its own on {join.device}.")
print(f"One queue waited for all of them. The sum is {total:,.0f}, expected {expected:,}.")
sys.exit(total != expected)
