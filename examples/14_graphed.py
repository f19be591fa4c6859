"""A function that becomes a CUDA graph by itself: its second call captures it, later ones launch.

Without a GPU the same program calls the function each time.
"""

import sys
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

    x = torch.zeros(SIZE, device="cuda")
    fill = x.fill_
else:
    xp = np
    x = np.zeros(SIZE)
    fill = x.fill


@sk.graphed
def blend(a: Any, *, rounds: int) -> Any:
    """Blend with 2 again and again: many small kernels of CuPy, on torch's memory."""
    b = xp.from_dlpack(a)
    for _ in range(rounds):
        b = b * 0.5 + 1
    return b


all_right = True
for value in (8, 16, 24, 32):
    fill(value)  # the array stays, its values change
    lowest = float(blend(x, rounds=3).min())
    print(f"{value} blended three times with 2 is {lowest:g}.")
    all_right = all_right and lowest == value / 8 + 1.75

counts = blend.captures, blend.hits
if on_gpu:
    print(f"On {x.device} call 1 ran the function, and call 2 captured it.")
    print(f"{blend.hits} later calls launched that graph, without Python.")
else:
    print("Without a GPU all four calls ran the function, on the cpu.")
sys.exit(not all_right or counts != ((1, 2) if on_gpu else (0, 0)))
