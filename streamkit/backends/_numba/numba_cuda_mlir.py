"""The adapter of numba-cuda-mlir."""

from numba_cuda_mlir import cuda
from numba_cuda_mlir.numba_cuda.cudadrv import devicearray, driver

from streamkit.backends._numba.adapter import NumbaAdapter

adapter = NumbaAdapter("numba_mlir", cuda, driver, devicearray)
