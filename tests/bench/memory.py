"""How much memory the libraries take that use the same amount one after the other."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import streamkit as sk
from streamkit._cuda import memory_pools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench.timing import Libraries

BYTES = 1 << 28  # of each library's array
_FEW = 1 << 10  # for the first use, which loads kernels


@dataclass(frozen=True)
class Memory:
    """The most memory that was taken at a time: from one pool, and with a pool of each library."""

    name: str
    against: str
    each_bytes: int
    """What each library uses."""
    ours_bytes: int
    theirs_bytes: int
    at_most: float
    """Of theirs."""

    @property
    def met(self) -> bool:
        """Whether ours is at most what the design allows."""
        return self.ours_bytes <= self.at_most * self.theirs_bytes


def measure(libraries: Libraries) -> list[Memory]:
    """Let torch, CuPy and Warp use an array in turn, twice, in one scope, in both ways.

    What they hold unused goes back to CUDA before and after. Memory of other processes counts too.
    """
    cuda = libraries.torch.cuda

    def free() -> int:
        cuda.synchronize()
        left: int = cuda.mem_get_info(libraries.device)[0]
        return left

    def empty() -> None:
        gc.collect()
        cuda.synchronize()
        cuda.empty_cache()
        libraries.cupy.get_default_memory_pool().free_all_blocks()
        memory_pools.trim(libraries.device)

    # in one scope: torch's pool keeps memory for the stream that had it
    with sk.new_stream(libraries.device):
        peak(_uses(libraries, _FEW), free)
        uses = 2 * _uses(libraries, BYTES)
        empty()
        theirs = peak(uses, free)
        empty()
        with sk.share_pool("torch", libraries=["cupy", "warp"]):
            ours = peak(uses, free)
    empty()
    name, against = "torch's pool for torch, CuPy and Warp in turn", "a pool of each"
    return [Memory(name, against, BYTES, ours, theirs, at_most=0.5)]


def peak(uses: Iterable[Callable[[], object]], free: Callable[[], int]) -> int:
    """Return by how much free memory shrinks at most, while one result after another lives."""
    before = least = free()
    for use in uses:
        array = use()
        least = min(least, free())
        del array  # before the next one is made
    return before - least


def _uses(libraries: Libraries, size: int) -> list[Callable[[], object]]:
    torch, cupy, warp = libraries.torch, libraries.cupy, libraries.warp
    place = f"cuda:{libraries.device}"
    return [
        partial(torch.full, (size,), 1, dtype=torch.uint8, device=place),
        partial(cupy.full, size, 1, "u1"),
        partial(warp.full, size, 1, dtype=warp.uint8, device=place),
    ]
