"""torch and CuPy on one shared stream: torch makes the numbers, CuPy goes on with them.

Nothing waits on the way, and no array is copied. Without a GPU the same program runs on a host
stream, with NumPy in place of both.
"""

import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

COUNT = 1_000_001

s = sk.new_stream()  # a CUDA stream, or a host stream where there is no GPU
on_gpu = sk.is_available()
if on_gpu:
    import cupy as xp
    import torch
else:
    xp = np

with sk.use(s, ordered=True):
    if on_gpu:
        x = torch.linspace(0, 1, steps=COUNT, device=s.device)  # torch works on s
    else:
        x = np.linspace(0, 1, num=COUNT)
    y = xp.sin(xp.from_dlpack(x)) ** 2  # and so does CuPy, on the same memory
    mean = y.mean()
s.sync()  # the host waits here, and nowhere before

expected = (1 - np.sin(2) / 2) / 2  # the integral of sin(x)**2 from 0 to 1
first, second = ("torch", "CuPy") if on_gpu else ("NumPy", "NumPy again")
print(f"{first} wrote {COUNT:,} numbers, and {second} read them, on one queue: {s}.")
print(f"The mean of sin(x)**2 is {float(mean):.6f}; the integral says {expected:.6f}.")
sys.exit(not np.isclose(float(mean), expected, atol=1e-5))
