"""The adapter of numba-cuda-mlir."""

from numba_cuda_mlir import numba_cuda

from streamkit.backends._numba.adapter import NumbaAdapter

adapter = NumbaAdapter("numba_mlir", numba_cuda)
