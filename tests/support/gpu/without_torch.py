"""A graph of CuPy's and Warp's work in a process without torch, launched a thousand times.

``test_graph_memory.py`` runs it.
"""

from __future__ import annotations

import sys

import cupy
import warp

import streamkit as sk
from support.gpu.warp_kernel import add_one_to_each
from support.gpu.workload import COUNT, Pressure, warp_and_cupy

LAUNCHES = 1000


def work(x):
    """Temporaries of both, the one's work on the other's results."""
    c = cupy.sin(x) * 2 + cupy.cos(x)
    first = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
    last = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
    warp.launch(add_one_to_each, dim=COUNT, inputs=[warp.from_dlpack(c), first], device="cuda:0")
    warp.launch(add_one_to_each, dim=COUNT, inputs=[first, last], device="cuda:0")
    return cupy.from_dlpack(last) * 3 + cupy.abs(c).max()


def main():
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    x = cupy.linspace(-1, 1, COUNT, dtype="f4")
    work(x)
    cupy.cuda.Device().synchronize()
    with sk.capture() as g:
        result = work(x)
    g.keep(x)
    pressure = Pressure(warp_and_cupy(warp, cupy), g.stream)
    wrong = []
    for index in range(LAUNCHES):
        x += cupy.float32(0.01)
        g.launch()
        pressure.add()
        if not bool((result == work(x)).all()):
            wrong.append(index)
    assert "torch" not in sys.modules
    print(f"{LAUNCHES} launches: {wrong} wrong, {sorted(pressure.overwritten())} overwritten")


main()
