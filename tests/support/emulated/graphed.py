"""What the tests of ``graphed`` share: work of the driver's own on arrays of numba-cuda."""

from __future__ import annotations

import streamkit as sk
from support.gpu.raw import check, driver


def address(array):
    return array.device_ctypes_pointer.value


def read(array):
    """The one number that is in all of an array."""
    check(driver.cuCtxSynchronize())
    (value,) = set(array.copy_to_host().tolist())
    return value


def copy(to, source):
    """Work of the driver's own, on the current stream."""
    handle = sk.current_stream().handle
    check(driver.cuMemcpyDtoDAsync(address(to), address(source), 16, handle))


def copies(calls=None, **options):
    """A graphed function, which notes when it is called itself."""

    @sk.graphed(**options)
    def function(to, source, *_, **__):
        if calls is not None:
            calls.append(1)
        copy(to, source)
        return to

    return function
