"""The two arms of a test of graphs beside each other: a graph of StreamKit, and of torch alone."""

from __future__ import annotations

import streamkit as sk
from support.gpu.raw import check, driver


class WithStreamKit:
    """A graph of StreamKit."""

    is_wrong = False

    def __init__(self, torch, work, stream):
        self.work = work
        with sk.capture(stream) as self.graph:
            self.result = work()

    def launch(self, stream):
        self.graph.launch(stream)


class WithTorch:
    """A graph of torch alone: the control, which must be wrong."""

    is_wrong = True

    def __init__(self, torch, work, stream):
        self.work, self.torch, self.graph = work, torch, torch.cuda.CUDAGraph()
        check(driver.cuCtxSynchronize())
        with torch.cuda.stream(stream.to("torch")):
            self.graph.capture_begin(capture_error_mode="thread_local")
            self.result = work()
            self.graph.capture_end()

    def launch(self, stream):
        with self.torch.cuda.stream(stream.to("torch")):
            self.graph.replay()
