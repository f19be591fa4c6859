"""Memory as libraries pass it on by DLPack: a ``DLManagedTensorVersioned``, and what holds it."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from streamkit._base import garbage

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME, _USED = b"dltensor_versioned", b"used_dltensor_versioned"  # of capsules


class _ManagedTensor(ctypes.Structure):
    """``DLManagedTensorVersioned`` of dlpack.h; major version 1."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)  # called from any thread
_call_deleter = ctypes.PYFUNCTYPE(None, c_void_p)

_lent: dict[int, tuple[_ManagedTensor, object, list[object]]] = {}
"""By address, what is lent: the tensor that was given on, the owner, and the shape and strides."""


def _give_back(address: int, lent: dict[int, Any] = _lent) -> None:
    """Let the owner go: nothing uses what was given on any more."""
    del lent[address]


_deleter = _Deleter(_give_back)
garbage.keep_forever(_deleter)  # a library can give memory back when the modules have gone


def _release(address: int) -> None:
    deleter = _ManagedTensor.from_address(address).deleter
    if deleter:
        _call_deleter(deleter)(address)


def lend(source: int, owner: object, make: Callable[[int], Any]) -> Any:
    """Return what ``make`` makes of a managed tensor at ``source``, which then holds ``owner``.

    ``make`` gets the address of another managed tensor on the same memory, and takes it over. The
    one at ``source`` is released, so the owner has to hold the memory.
    """
    given = _ManagedTensor.from_buffer_copy(_ManagedTensor.from_address(source))
    lengths = c_int64 * given.ndim
    copies = [
        pointer and lengths.from_buffer_copy(lengths.from_address(pointer))
        for pointer in (given.shape, given.strides)  # strides can be NULL
    ]
    given.shape, given.strides = [copy and ctypes.addressof(copy) for copy in copies]
    _release(source)
    given.deleter = ctypes.cast(_deleter, c_void_p)
    address = ctypes.addressof(given)
    _lent[address] = given, owner, copies
    try:
        return make(address)
    except BaseException:
        _lent.pop(address, None)  # if it was not given back already
        raise


def owner_of(array: int) -> Any:
    """Return the owner of what was lent, if the managed tensor at ``array`` begins in its memory.

    That one is released here.
    """
    start = _start(_ManagedTensor.from_address(array))
    _release(array)
    for given, owner, _ in tuple(_lent.values()):
        if _start(given) == start:
            return owner
    return None


def _start(tensor: _ManagedTensor) -> int:
    return (tensor.data or 0) + int(tensor.byte_offset)


# -- in capsules, as ``__dlpack__`` returns them ----------------------------------------------

_python = ctypes.pythonapi
_get_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _python)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
    ("PyCapsule_New", _python)
)


def pointer_in(capsule: object, name: bytes) -> int:
    """Return the address in a capsule of this name; ValueError if it is none."""
    found: int = _get_pointer(capsule, name)
    return found


def taken_from(capsule: object) -> int:
    """Return the address of the managed tensor in a capsule, which gives it up."""
    address = pointer_in(capsule, _NAME)
    _set_name(capsule, _USED)
    return address


def as_capsule(address: int) -> Any:
    """Return a managed tensor in a capsule, for a library that takes it over at once."""
    return _new(address, _NAME, None)
