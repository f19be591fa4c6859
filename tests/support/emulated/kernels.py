"""Launches of kernels on the emulated driver, with parameters as libraries pass them."""

from __future__ import annotations

import ctypes
import functools
import struct

import emulator
from support.gpu.raw import check, driver

_function = functools.cache(emulator.function)


def launch(stream, symbol, *parameters):
    """Launch a kernel; it is given these bytes."""
    function = _function(symbol, *map(len, parameters))
    held = [ctypes.create_string_buffer(one, len(one)) for one in parameters]
    pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    where = ctypes.addressof(pointers)
    check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, int(stream), where, 0))


def carray(address, count, itemsize=4, step=None):
    """An array of one axis, as a kernel of CuPy's is given it."""
    return struct.pack("<QQqq", address, count, count, step or itemsize)


def pointers(*values):
    return struct.pack(f"<{len(values)}Q", *values)
