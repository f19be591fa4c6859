# Warp reads a kernel's annotations as objects, so this file has no "from __future__" import.
import warp as wp


@wp.kernel
def fill(a: wp.array(dtype=wp.int32), value: int):
    a[wp.tid()] = value


@wp.kernel
def copy(a: wp.array(dtype=wp.int32), b: wp.array(dtype=wp.int32)):
    i = wp.tid()
    b[i] = a[i]
