"""One CUDA graph of the work of torch, CuPy and Warp: captured once, launched for each input."""

import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

SIZE = 1000

s = sk.new_stream(nonblocking=True)
if not sk.is_available():
    x, y = np.zeros(SIZE), np.zeros(SIZE)
    fill = x.fill

    def _work() -> None:
        np.maximum(x, 0, out=y)
        np.multiply(y, 2, out=y)
        np.add(y, 2, out=y)

    def _launch() -> None:  # host work is not captured: it is called again
        s.submit(_work)

else:
    import cupy
    import torch
    import warp as wp

    @wp.kernel
    def _inc(a: wp.array(dtype=float)) -> None:
        a[wp.tid()] += 1.0

    wp.init()
    x = torch.zeros(SIZE, device=s.device)
    torch.cuda.synchronize()
    fill = x.fill_

    def _work() -> cupy.ndarray:
        made = cupy.from_dlpack(torch.relu(x) * 2) + 1
        wp.launch(_inc, dim=SIZE, inputs=[wp.from_dlpack(made)])
        return made

    s.submit(_work)  # once: what a library makes at its first use is illegal inside
    with sk.capture(s) as graph:
        y = _work()  # the graph's: it holds the result of the last launch
    graph.keep(x)
    print(f"The graph has {graph.nodes} nodes. graph.to_svg() is its picture.")

    def _launch() -> None:
        graph.launch(s)


all_right = True
for value, expected in ((1, 4), (2, 6), (-3, 2)):
    s.submit(fill, value)  # the input changes in place
    _launch()
    s.sync()
    lowest, highest = float(y.min()), float(y.max())
    print(f"relu({value}) * 2 + 2 is {lowest:g} in every place, on {s.device}.")
    all_right = all_right and lowest == highest == expected
sys.exit(not all_right)
