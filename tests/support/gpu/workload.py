"""Work of torch, CuPy and Warp to be captured, and eager arrays that notice whose memory it is."""

from __future__ import annotations

import contextlib
from collections import deque

from support.libraries import need

COUNT = 4096
DOUBLE = """
extern "C" __global__ void twice(float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] *= 2;
}
"""


class Workload:
    """Work of every library on each other's results, with temporaries of each."""

    def __init__(self):
        self.torch, self.cupy, self.warp = need("torch"), need("cupy"), need("warp")
        from support.gpu.warp_kernel import add_one_to_each

        self.add_one = add_one_to_each
        self.twice = self.cupy.RawKernel(DOUBLE, "twice")
        self.torch.manual_seed(1)
        self.weight = self.torch.randn(64, 64, device="cuda") / 8
        self.x = self.torch.randn(COUNT // 64, 64, device="cuda")
        self.run()
        self.torch.cuda.synchronize()

    def hidden(self):
        return self.torch.relu(self.x @ self.weight) + 0.5  # no zeros but the dropped ones

    def rest(self, dropped):
        """What follows the dropout."""
        cupy, warp, torch = self.cupy, self.warp, self.torch
        c = cupy.from_dlpack(dropped).ravel()
        c = cupy.sin(c) * 2 + cupy.cos(c)
        self.twice((COUNT // 256,), (256,), (c, cupy.int32(COUNT)))
        first = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
        last = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
        warp.launch(self.add_one, dim=COUNT, inputs=[warp.from_dlpack(c), first], device="cuda:0")
        warp.launch(self.add_one, dim=COUNT, inputs=[first, last], device="cuda:0")
        total = cupy.from_dlpack(torch.from_dlpack(last)).sum() + cupy.abs(c).max()
        return torch.from_dlpack(last) * 3 + torch.from_dlpack(total)

    def run(self):
        dropped = self.torch.nn.functional.dropout(self.hidden(), 0.5)
        return dropped, self.rest(dropped)

    def makers(self):
        """How each library makes an array of -1, as large as the temporaries are."""
        makers = warp_and_cupy(self.warp, self.cupy)
        return makers | {"torch": lambda: self.torch.full((COUNT,), -1.0, device="cuda")}


def warp_and_cupy(warp, cupy):
    """How these two make an array of -1."""
    return {
        "cupy": lambda: cupy.full(COUNT, -1.0, "f4"),
        "warp": lambda: warp.full(COUNT, -1.0, dtype=warp.float32, device="cuda:0"),
    }


class Pressure:
    """Eager arrays that live for some rounds beside the launches of a graph.

    They are made on the libraries' current streams and on the stream that captured, whose freed
    memory a library gives to its next array there. They overwrite what a graph uses and does not
    own, and it overwrites them.
    """

    ROUNDS = 4

    def __init__(self, makers, stream):
        self._cupy = need("cupy")
        self._makers = makers
        self._places = contextlib.nullcontext(), stream
        self._rounds = deque()
        self._changed = {name: self._cupy.zeros((), "i8") for name in makers}

    def add(self):
        """Make a round of arrays, and give up the oldest."""
        made = []
        for place in self._places:
            with place:
                for name, make in self._makers.items():
                    made += [(name, make()), (name, make())]
        self._rounds.append(made)
        if len(self._rounds) > self.ROUNDS:
            self._give_up()

    def overwritten(self):
        """Give up all arrays; the libraries of which some did not hold what was written."""
        while self._rounds:
            self._give_up()
        return {name for name, count in self._changed.items() if int(count)}

    def _give_up(self):
        device = self._cupy.cuda.Device()
        device.synchronize()  # no order is at stake here, but who owns what
        for name, array in self._rounds.popleft():
            self._changed[name] += (self._cupy.asarray(array) != -1).any()
        device.synchronize()
