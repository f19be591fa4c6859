"""A toy library of arrays that knows nothing of StreamKit and has DLPack's exchange API.

Its table has the C functions of dlpack.h, which are written in Python here.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int, c_int32, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

OBJECT_OUT = POINTER(c_void_p)
FROM_OBJECT = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, OBJECT_OUT)
TO_OBJECT = ctypes.PYFUNCTYPE(c_int, c_void_p, OBJECT_OUT)
CURRENT = ctypes.PYFUNCTYPE(c_int, c_int, c_int32, OBJECT_OUT)
DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Header(ctypes.Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("prev_api", c_void_p))


class Table(ctypes.Structure):
    _fields_ = (
        ("header", Header),
        ("allocator", c_void_p),
        ("from_object", FROM_OBJECT),
        ("to_object", TO_OBJECT),
        ("look", c_void_p),
        ("current", CURRENT),
    )


class Managed(ctypes.Structure):
    _fields_ = (
        ("version", c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", DELETER),
        ("flags", c_uint64),
        ("data", c_void_p),
        ("device", c_int32 * 2),
        ("ndim", c_int32),
        ("dtype", c_uint8 * 2),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("offset", c_uint64),
    )


class Library:
    """One such library: its class of arrays, and its current stream of each device."""

    def __init__(self, *, place=2, major=1, functions=("from_object", "to_object", "current")):
        self.current = {}  # device -> handle
        self.fails = self.makes_none = False
        self.exported = {}  # address -> what a managed tensor needs, until its deleter is called
        made = {
            "from_object": FROM_OBJECT(self._from_object),
            "to_object": TO_OBJECT(self._to_object),
            "current": CURRENT(self._current),
        }
        self.table = Table(Header(1, 3, None), **{name: made[name] for name in functions})
        table = self.table
        if major != 1:  # a newer one before it
            table = Table(Header(major, 0, ctypes.addressof(self.table)))
        self._delete = DELETER(lambda address: self.exported.pop(address) and None)
        new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )
        self._tables = made, table
        capsule = new(ctypes.addressof(table), b"dlpack_exchange_api", None)

        class Array:
            """Numbers on a device, in memory of another object, which the array keeps alive."""

            __dlpack_c_exchange_api__ = capsule

            def __init__(self, pointer, device=0, keeps=None):
                self.pointer, self.device, self.keeps = pointer, device, keeps

            def __dlpack_device__(self):
                return place, self.device

            shape, strides, dtype = (4,), (4,), "float32"

            @property
            def __cuda_array_interface__(self):
                return {"data": (self.pointer, False)}

            def __getitem__(self, _):
                return type(self)(self.pointer, self.device, self)

            def reshape(self, _):
                return self[:]

        Array.library = self  # as a table lives as long as the process
        self.Array = Array
        self.place = place

    def _from_object(self, array, out):
        if self.fails:
            return -1
        shape = (ctypes.c_int64 * 1)(4)
        managed = Managed((1, 3), None, self._delete, 0, array.pointer, (self.place, array.device))
        managed.ndim, managed.shape = 1, ctypes.addressof(shape)
        address = ctypes.addressof(managed)
        self.exported[address] = managed, shape, array
        out[0] = address
        return 0

    def _to_object(self, address, out):
        if self.makes_none:
            return -1
        managed = Managed.from_address(address)

        class Import:
            def __del__(self, delete=managed.deleter):
                delete(address)

        array = self.Array(managed.data, managed.device[1], Import())
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
        out[0] = id(array)
        return 0

    def _current(self, place, device, out):
        if self.fails:
            return -1
        out[0] = self.current.get(device, 0)
        return 0
