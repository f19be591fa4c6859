"""torch and CuPy on one shared stream: torch makes the numbers, CuPy goes on with them.

Nothing waits on the way, and no array is copied. Without a GPU the same program runs on a host
queue, with NumPy in the place of CuPy, and of torch if that is not installed.
"""

import sys

import numpy as np

import streamkit as sk

s = sk.new_stream()  # a CUDA stream, or a host queue where there is no GPU

if s.device == "cpu":
    xp = np
    try:
        import torch
    except ModuleNotFoundError:
        torch = np  # its linspace takes `device` too
else:
    import cupy as xp
    import torch

with sk.use(s, ordered=True):
    x = torch.linspace(0, 1, 1_000_001, device=s.device)  # torch works on s
    y = xp.sin(xp.from_dlpack(x)) ** 2  # and so does CuPy, on the same memory
    mean = y.mean()
s.sync()

expected = (1 - np.sin(2) / 2) / 2  # the integral of sin(x)**2 from 0 to 1
print(f"{torch.__name__} and {xp.__name__} on {s}")
print(f"mean {float(mean):.6f}, expected {expected:.6f}")
sys.exit(not np.isclose(float(mean), expected, atol=1e-5))
