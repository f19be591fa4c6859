"""Arrays of any library with DLPack's exchange API: ``__dlpack_c_exchange_api__`` of their class.

That is a capsule with a table of C functions, from DLPack 1.3 on. It tells the library's current
stream, and makes an array of the library from memory that somebody else holds.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_int32, c_uint32, c_void_p
from typing import Any

from streamkit._base import messages
from streamkit.backends import _managed_tensor

_MAJOR = 1
"""The major version of DLPack of which this is the table."""
_CUDA, _CUDA_MANAGED = 2, 13  # DLPack's device types


class _Api(ctypes.Structure):
    """``DLPackExchangeAPI`` of dlpack.h; the functions are called with the GIL held."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("prev_api", c_void_p),
        ("managed_tensor_allocator", c_void_p),
        ("from_object", ctypes.PYFUNCTYPE(c_int, ctypes.py_object, POINTER(c_void_p))),
        ("to_object", ctypes.PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))),
        ("dltensor_from_py_object_no_sync", c_void_p),
        ("current_work_stream", ctypes.PYFUNCTYPE(c_int, c_int, c_int32, POINTER(c_void_p))),
    )


class Exchange:
    """What one class of arrays offers."""

    def __init__(self, kind: type, api: _Api) -> None:
        self._kind, self._api = kind, api

    def array_device(self, array: Any) -> int:
        """Return the CUDA ordinal of the array's device; TypeError if it is on none."""
        place, ordinal = array.__dlpack_device__()
        if place not in (_CUDA, _CUDA_MANAGED):
            raise messages.not_an_array(array)
        return int(ordinal)

    def current(self, device: int) -> int:
        handle = c_void_p()
        self._check(self._api.current_work_stream(_CUDA, device, byref(handle)))
        return handle.value or 0

    def lend(self, array: Any, owner: object) -> Any:
        lent = _managed_tensor.lend(self._source(array), owner, self._make)
        if type(lent) is not type(array):
            raise messages.cannot_lend(array, f"its library makes a {type(lent).__name__} of it")
        return lent

    def lent_by(self, array: Any) -> Any:
        return _managed_tensor.owner_of(self._source(array))

    def _source(self, array: Any) -> int:
        source = c_void_p()
        self._check(self._api.from_object(array, byref(source)))
        return source.value or 0

    def _make(self, address: int) -> Any:
        made = c_void_p()
        self._check(self._api.to_object(address, byref(made)))
        array: Any = ctypes.cast(made, ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))  # the reference of the pointer
        return array

    def _check(self, code: int) -> None:
        if code:  # and it has raised nothing
            raise RuntimeError(
                f"a function of the DLPack exchange API of {self._kind.__module__}."
                f"{self._kind.__qualname__} failed without a reason. Ask its author."
            )


def exchange_of(kind: type) -> Exchange | None:
    """Return what a class of arrays offers, None if it has no table that can be read."""
    try:
        address = _managed_tensor.pointer_in(
            getattr(kind, "__dlpack_c_exchange_api__", None), b"dlpack_exchange_api"
        )
    except ValueError:  # no capsule, or one of another thing
        return None
    while address:  # from the newest table that the library has to its older ones
        api = _Api.from_address(address)
        if api.major == _MAJOR:
            whole = api.from_object and api.to_object and api.current_work_stream
            return Exchange(kind, api) if whole else None
        address = api.prev_api
    return None
