"""A graphed function of CuPy's work with more signatures than graphs, in a process without torch.

``test_graphed.py`` runs it.
"""

from __future__ import annotations

import gc
import sys

import cupy
from cupy.cuda import runtime

import streamkit as sk
from streamkit._cuda import graphs  # the executables are counted

COUNT, GRAPHS, SIGNATURES, HELD = 4096, 4, 300, 8


def work(x):
    """Temporaries, and an argument that is written."""
    c = cupy.sin(x) * 2 + cupy.cos(x)
    x += cupy.float32(1)
    return c * 3 + cupy.abs(c).max()


def expected(value):
    return work(cupy.full(COUNT, value, "f4"))


def main():
    expected(1)
    made, instantiate = [], graphs.instantiate
    graphs.instantiate = lambda graph: made.append(graph) or instantiate(graph)
    function = sk.graphed(max_graphs=GRAPHS)(work)
    held, wrong, used = [], [], []
    for index in range(SIGNATURES):
        x = cupy.full(COUNT, index, "f4")
        for value in range(index, index + 3):  # run, captured, launched
            result = function(x)
            if not bool((result == expected(value)).all()):
                wrong.append((index, value))
        held.append((x, result, value))
        for _, kept, value in held:  # its graph may have gone
            if not bool((kept == expected(value)).all()):
                wrong.append((index, value, "held"))
        del held[:-HELD]
        if index in (SIGNATURES // 3, SIGNATURES - 1):
            gc.collect()
            cupy.get_default_memory_pool().free_all_blocks()
            runtime.deviceSynchronize()
            used.append(-runtime.memGetInfo()[0])
    assert "torch" not in sys.modules
    print(
        f"{function.captures} captures, {function.graphs} graphs, {len(made)} executables,"
        f" {wrong} wrong, memory {'flat' if used[1] - used[0] < 8 * 2**20 else used}"
    )


main()
