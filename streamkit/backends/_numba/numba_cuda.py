"""The adapter of numba-cuda."""

from numba import cuda

from streamkit.backends._numba.adapter import NumbaAdapter

adapter = NumbaAdapter("numba", cuda)
