"""The adapter of numba-cuda."""

from numba import cuda
from numba.cuda.cudadrv import devicearray, driver

from streamkit.backends._numba.adapter import NumbaAdapter

adapter = NumbaAdapter("numba", cuda, driver, devicearray)
