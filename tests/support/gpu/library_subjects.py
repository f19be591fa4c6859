"""The libraries that tests are about: each has a stream class and a kernel ``dst = src + 1``.

What each does is its own public way of doing it, on its own objects.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, ClassVar

from support.libraries import need

# one thread is all these kernels need
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")


class Subject:
    """One library: ``new_stream``, ``handle_of`` and ``add_one`` are all its own API."""

    name: ClassVar[str]
    lane: ClassVar[str]

    def new_stream(self) -> Any:
        raise NotImplementedError

    def stream_class(self) -> type:
        raise NotImplementedError

    def handle_of(self, stream: Any) -> int:
        raise NotImplementedError

    def add_one(self, stream: Any, src: int, dst: int) -> None:
        raise NotImplementedError

    def new_event(self, stream: Any) -> Any:
        """An event of this library, recorded on its stream."""
        raise NotImplementedError


def _interface(pointer: int) -> SimpleNamespace:
    return SimpleNamespace(
        __cuda_array_interface__={
            "shape": (1,), "typestr": "<f4", "data": (pointer, False), "version": 2,
        }
    )  # fmt: skip


class Torch(Subject):
    name = lane = "torch"

    def __init__(self) -> None:
        self.torch = need("torch")

    def new_stream(self):
        return self.torch.cuda.Stream()

    def stream_class(self):
        return self.torch.cuda.Stream

    def handle_of(self, stream):
        return stream.cuda_stream

    def array(self, pointer):
        return self.torch.as_tensor(_interface(pointer), device="cuda")

    def add_one(self, stream, src, dst):
        with self.torch.cuda.stream(stream):
            self.add_one_current(src, dst)

    def add_one_current(self, src, dst):
        self.torch.add(self.array(src), 1, out=self.array(dst))

    def current(self):
        return self.torch.cuda.current_stream()

    def make_current(self, stream):
        self.torch.cuda.set_stream(stream)

    def default(self):
        return self.torch.cuda.default_stream()

    def new_event(self, stream):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


class Cupy(Subject):
    name = lane = "cupy"

    def __init__(self) -> None:
        self.cupy = need("cupy")

    def new_stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def stream_class(self):
        return self.cupy.cuda.Stream

    def handle_of(self, stream):
        return stream.ptr

    def array(self, pointer):
        memory = self.cupy.cuda.UnownedMemory(pointer, 4, None)
        return self.cupy.ndarray(1, "f4", self.cupy.cuda.MemoryPointer(memory, 0))

    def add_one(self, stream, src, dst):
        with stream:
            self.add_one_current(src, dst)

    def add_one_current(self, src, dst):
        self.cupy.add(self.array(src), self.cupy.float32(1), out=self.array(dst))

    def current(self):
        return self.cupy.cuda.get_current_stream()

    def make_current(self, stream):
        stream.use()

    def default(self):
        return self.cupy.cuda.Stream.null

    def new_event(self, stream):
        return stream.record()


class Warp(Subject):
    name = lane = "warp"

    def __init__(self) -> None:
        self.warp = need("warp")
        self.warp.config.log_level = self.warp.LOG_WARNING
        self.warp.init()
        self.kernel = _warp_kernel()
        self.device = "cuda:0"  # where a test works

    def new_stream(self):
        return self.warp.Stream(self.device)

    def stream_class(self):
        return self.warp.Stream

    def handle_of(self, stream):
        return stream.cuda_stream or 0

    def array(self, pointer):
        return self.warp.array(ptr=pointer, dtype=self.warp.float32, shape=1, device=self.device)

    def add_one(self, stream, src, dst):
        self.warp.launch(
            self.kernel, dim=1, inputs=[self.array(src), self.array(dst)], stream=stream
        )

    def add_one_current(self, src, dst):
        self.warp.launch(self.kernel, dim=1, inputs=[self.array(src), self.array(dst)])

    def current(self):
        return self.warp.get_stream(self.device)

    def make_current(self, stream):
        self.warp.set_stream(stream, self.device)

    def default(self):
        return self.warp.get_device(self.device).null_stream

    def new_event(self, stream):
        return stream.record_event()


def _warp_kernel():
    from support.gpu.warp_kernel import add_one

    return add_one


class Core(Subject):
    name, lane = "cuda.core", "cuda"

    def __init__(self) -> None:
        self.core = need("cuda")
        self.device = self.core.Device(0)
        self.device.set_current()
        source = 'extern "C" __global__ void add_one(const float* a, float* b) { b[0] = a[0] + 1; }'
        options = self.core.ProgramOptions(arch=f"sm_{self.device.arch}")
        program = self.core.Program(source, "c++", options)
        self.kernel = program.compile("cubin").get_kernel("add_one")

    def new_stream(self):
        self.device.set_current()
        return self.device.create_stream()

    def stream_class(self):
        return self.core.Stream

    def handle_of(self, stream):
        return stream.__cuda_stream__()[1]

    def add_one(self, stream, src, dst):
        config = self.core.LaunchConfig(grid=1, block=1)
        self.core.launch(stream, config, self.kernel, src, dst)

    def default(self):
        return self.core.LEGACY_DEFAULT_STREAM

    def new_event(self, stream):
        return stream.record()


class Numba(Subject):
    name = lane = "numba"

    def __init__(self) -> None:
        self.cuda = need("numba")

        def add_one(a, b):
            b[0] = a[0] + 1

        self.kernel = self.cuda.jit("void(float32[:], float32[:])")(add_one)

    def new_stream(self):
        return self.cuda.stream()

    def stream_class(self):
        from numba.cuda.cudadrv.driver import Stream

        return Stream

    def handle_of(self, stream):
        return stream.__cuda_stream__()[1]

    def array(self, pointer):
        interface = _interface(pointer).__cuda_array_interface__
        return self.cuda.from_cuda_array_interface(interface, sync=False)

    def add_one(self, stream, src, dst):
        self.kernel[1, 1, stream](self.array(src), self.array(dst))

    def default(self):
        return self.cuda.legacy_default_stream()

    def new_event(self, stream):
        event = self.cuda.event()
        event.record(stream)
        return event


SUBJECTS = {subject.name: subject for subject in (Torch, Cupy, Warp, Core, Numba)}
WITH_CURRENT = ("torch", "cupy", "warp")
