"""CuPy in a capture: memory that stays the graph's, and what CuPy does not capture."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import cupy

from streamkit import _driver

if TYPE_CHECKING:
    from collections.abc import Generator

_NOT_CAPTURED = (
    "CuPy captures no cuBLAS, cuSOLVER, cuSPARSE and cuRAND (matmul, linalg, sparse, random). Do "
    "that step with PyTorch's operators on the same memory (from_dlpack), with a kernel of your "
    "own, or outside the capture."
)
_FIRST_USE = (
    "If it is none of these, run it once before the capture: what CuPy makes at a first use is "
    "illegal inside."
)


def _allocate(size: int) -> Any:
    with _driver._beside_captures():  # noqa: SLF001 - the same package
        return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)


@contextlib.contextmanager
def pool() -> Generator[Any]:
    """Allocate from a pool of the graph's in this thread.

    What an array frees would go back to CuPy's own pool otherwise, and be given to others.
    """
    own = cupy.cuda.MemoryPool(_allocate)
    with cupy.cuda.using_allocator(own.malloc):
        yield own


def explain_capture(error: Exception) -> str | None:
    """Say what to do about an error of CuPy's inside a capture."""
    if isinstance(error, NotImplementedError) and "stream capture" in str(error):
        return _NOT_CAPTURED
    if type(error).__module__.startswith("cupy"):
        return f"{_NOT_CAPTURED} {_FIRST_USE}"
    return None
