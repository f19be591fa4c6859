"""A function of CuPy that works on torch's current stream, whichever that is at each call.

Without a GPU there is no stream to follow, and the function stays as it is.
"""

import sys
from collections.abc import Callable
from typing import Any

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

SIZE = 1000

on_gpu = sk.is_available()
if on_gpu:
    import cupy as xp
    import torch

    follow = sk.follow("torch", libraries=["cupy"])
else:
    xp = np

    def follow(fn: Callable[[Any], float]) -> Callable[[Any], float]:
        """Leave the function as it is."""
        return fn


@follow
def doubled_sum(a: Any) -> float:
    """Return the sum of twice the array, and take no stream."""
    if on_gpu:
        sk.assert_one_queue(libraries=["torch", "cupy"])
    return float((xp.from_dlpack(a) * 2).sum())


all_right = True
for number in (1, 2, 3):
    if on_gpu:
        mine = torch.cuda.Stream()
        before = sk.current_stream("cupy")
        with torch.cuda.stream(mine):
            total = doubled_sum(torch.full((SIZE,), float(number), device="cuda"))
        all_right = all_right and sk.current_stream("cupy") == before
        print(f"CuPy followed torch to {sk.wrap(mine)}, and returned to its own stream.")
    else:
        total = doubled_sum(np.full(SIZE, float(number)))
    print(f"Twice {number} in {SIZE:,} places is {total:,.0f}, on {'cuda' if on_gpu else 'cpu'}.")
    all_right = all_right and total == 2 * number * SIZE
sys.exit(not all_right)
