"""CuPy in a capture: memory that stays the graph's, and what CuPy does not capture."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import cupy

from streamkit import errors
from streamkit._cuda import driver, memory_pools
from streamkit.backends._cupy import fft_plans

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_NOT_CAPTURED = (
    "CuPy captures no cuBLAS, cuSOLVER, cuSPARSE and cuRAND (matmul, linalg, sparse, random). Do "
    "that step with PyTorch's operators on the same memory (from_dlpack), with a kernel of your "
    "own, or outside the capture."
)
_FIRST_USE = (
    "If it is none of these, run it once before the capture: what CuPy makes at a first use is "
    "illegal inside."
)
_NO_DEVICE = (
    "CUDA does not know the device of memory that a graph allocates before the graph has run. Take "
    "an array that another library made inside with cupy.from_dlpack, not with cupy.asarray."
)
_ROOTS = ("cupy", "cupy_backends", "cupyx")
_ITS_OWN = (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.compiler.CompileException)
"""Errors of CuPy's that no capture causes, so they need no explanation."""

_spare: deque[tuple[Any, _GraphMemory]] = deque()
"""CuPy's pools that no graph uses. CuPy (14) never frees one that dies, so they are used again."""


def _malloc(size: int, device: int) -> int:  # CuPy's signature; the device is current
    try:
        return driver.call_beside_captures(memory_pools.allocate, device, size)
    except errors.DriverError as error:  # CuPy knows only its own error, of which it tries again
        raise cupy.cuda.runtime.CUDARuntimeError(error.code) from error


def _free(
    memory: _GraphMemory,
    pointer: int,
    device: int,
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    # because a traceback can keep an array alive, and drop it inside any later capture
    if not is_finalizing() and driver.is_usable():
        driver.call_beside_captures(memory.free, device, pointer)


class _GraphMemory:
    """The memory of one graph after another: freed blocks stay allocated until the graph ends."""

    def __init__(self) -> None:
        self.is_used = False
        self._freed: list[tuple[int, int]] = []

    def free(self, device: int, pointer: int) -> None:
        """Give a block back, at the end of the graph if a graph has the memory."""
        if self.is_used:
            self._freed.append((device, pointer))
        else:
            memory_pools.free(device, pointer)

    def end(self) -> None:
        """Give the freed blocks back; nothing uses the graph's memory any more."""
        self.is_used = False
        while self._freed:
            memory_pools.free(*self._freed.pop())


class _GraphPool:
    """A pool of CuPy's while one graph has it."""

    def __init__(self) -> None:
        self._device: int = cupy.cuda.runtime.getDevice()
        driver.call_beside_captures(memory_pools.prepare, self._device)
        try:
            self.pool, self._memory = _spare.popleft()
        except IndexError:
            # by ``_GraphMemory``: when memory has run out, CuPy may free a block of a graph
            self._memory = _GraphMemory()
            free = functools.partial(_free, self._memory)
            malloc = cupy.cuda.PythonFunctionAllocator(_malloc, free).malloc
            self.pool = cupy.cuda.MemoryPool(malloc)
        self._memory.is_used = True  # from now on: the graph has the addresses of its blocks
        self.plans: list[Any] = []  # of cuFFT, with tables that the graph reads

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and driver.is_usable():
            # not CuPy's own block, which leaves a thread without a context on a device
            context = driver.primary_context(self._device)
            # only a broken context can fail here, which every other call reports
            with (
                contextlib.suppress(errors.DriverError),
                driver.in_context(context),
                driver.beside_captures(),
            ):
                self.plans.clear()  # first, as a plan can have memory of the pool
                self._memory.end()
                self.pool.free_all_blocks()
            _spare.append((self.pool, self._memory))


@contextlib.contextmanager
def around_capture(*, captures: bool) -> Generator[object]:
    """Allocate from a pool of the graph's own in this thread, for cuFFT's plans too.

    Otherwise blocks freed inside would go to CuPy's common pool, which gives them to others.
    """
    if not captures:
        yield None
        return
    own = _GraphPool()
    with cupy.cuda.using_allocator(own.pool.malloc), fft_plans.of_the_graph() as own.plans:
        yield own


def explain_capture(error: Exception) -> str | None:
    # the built-in class, which any code may raise for other reasons, so the text has to decide
    if type(error) is NotImplementedError and "stream capture" in str(error):
        return _NOT_CAPTURED
    if isinstance(error, _ITS_OWN) or str(type(error).__module__).partition(".")[0] not in _ROOTS:
        return None
    return _NO_DEVICE if "cudaErrorInvalidDevice" in str(error) else f"{_NOT_CAPTURED} {_FIRST_USE}"
