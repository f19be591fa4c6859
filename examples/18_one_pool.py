"""One memory pool for three libraries: what torch has freed serves CuPy and Warp next.

Without a GPU there is one pool anyway, the host's: the same program uses it three times.
"""

import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

SIZE = 1 << 24  # float32: 64 MB
MEGABYTE = 1 << 20

s = sk.new_stream()


def in_turn() -> list[float]:
    """Let each library fill an array, sum it up, and drop it before the next one begins."""
    return [float(fill(SIZE).sum()) for fill in fills]


if s.device == "cpu":
    fills = [lambda size: np.full(size, 0.5, "f4")] * 3
    sums = in_turn()
    print("Without a GPU there is one pool, the host's, and nothing to share.")
    is_less = True
else:
    import cupy
    import torch
    import warp as wp

    wp.config.quiet = True
    fills = [
        lambda size: torch.full((size,), 0.5, device=s.device),
        lambda size: cupy.full(size, 0.5, "f4"),
        lambda size: wp.to_torch(wp.full(size, 0.5, dtype=wp.float32, device=s.device)),
    ]

    def held() -> int:
        """Return how many megabytes the pools of the three libraries have taken from CUDA."""
        of_torch = torch.cuda.memory_reserved(s.device)
        of_cupy = cupy.get_default_memory_pool().total_bytes()
        return (of_torch + of_cupy + wp.get_mempool_used_mem_high(s.device)) // MEGABYTE

    with s:
        with sk.share_pool("torch", libraries=["cupy", "warp"]):
            in_turn()
            together = held()
        sums = in_turn()
        apart = held()
    print(f"Each library used {4 * SIZE // MEGABYTE} MB of {s.device}, one after the other.")
    print(f"With one pool they took {together} MB, with a pool of each {apart} MB.")
    is_less = together < apart

print(f"The sums are {', '.join(f'{total:,.0f}' for total in sums)}.")
sys.exit(sums != [SIZE / 2] * 3 or not is_less)
