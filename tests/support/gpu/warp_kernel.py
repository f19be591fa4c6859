# Warp reads a kernel's annotations as objects, so this file has no "from __future__" import.
import warp as wp


@wp.kernel
def add_one(src: wp.array(dtype=wp.float32), dst: wp.array(dtype=wp.float32)):
    dst[0] = src[0] + 1.0


@wp.kernel
def add_one_to_each(a: wp.array(dtype=wp.float32), b: wp.array(dtype=wp.float32)):
    i = wp.tid()
    b[i] = a[i] + wp.float32(1.0)


@wp.kernel
def square(a: wp.array2d(dtype=wp.float32), b: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    b[i, j] = a[i, j] * a[i, j]
