"""Each worker of a thread pool fills its part on a queue of its own; one queue joins them all.

A scope belongs to its thread, so the function that the worker runs enters it.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import streamkit as sk

PARTS, SIZE = 4, 10_000

join = sk.new_stream(name="join")
if join.device == "cpu":
    xp, libraries = np, []
else:
    import cupy as xp

    libraries = ["cupy"]  # each thread's own; Warp's current stream is the process's

with join:
    numbers = xp.zeros(PARTS * SIZE)


def fill(part: int) -> None:
    """Fill one part, slowly."""
    if xp is np:
        time.sleep(0.02)
    numbers[part * SIZE : (part + 1) * SIZE] = part + 1


def on_its_own_queue(part: int) -> sk.Stream:
    """Let the worker's queue do the work, and return it."""
    s = sk.new_stream(join.device, name=f"part {part}")
    s.wait(join)  # the array is there
    if xp is np:
        s.submit(fill, part)
    else:
        with sk.use(s, libraries=libraries):
            fill(part)
    return s


with ThreadPoolExecutor(PARTS) as pool:
    for s in pool.map(on_its_own_queue, range(PARTS)):
        join.wait(s)
join.sync()

total, expected = float(numbers.sum()), SIZE * sum(range(1, PARTS + 1))
print(f"{PARTS} parts on {PARTS} queues of {join.device}: {total:g}, expected {expected}")
sys.exit(total != expected)
