"""Memory as libraries pass it on by DLPack: a ``DLManagedTensorVersioned``, and what holds it.

Memory that StreamKit itself describes is a ``DLManagedTensor``, without a version, which every
library takes.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._base import garbage

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME, _USED = b"dltensor_versioned", b"used_dltensor_versioned"  # of capsules
_PLAIN = b"dltensor"  # of one without a version
_CUDA = 2  # the device type


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


class _Plain(ctypes.Structure):
    """``DLManagedTensor`` of dlpack.h."""

    _fields_ = (
        *_ManagedTensor._fields_[5:],
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
    )


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)  # called from any thread
_call_deleter = ctypes.PYFUNCTYPE(None, c_void_p)

_lent: dict[int, tuple[_ManagedTensor | _Plain, object, list[object]]] = {}
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
    # of no lengths a copy is false, and still one
    given.shape, given.strides = [
        None if copy is None else ctypes.addressof(copy) for copy in copies
    ]
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


def _start(tensor: _ManagedTensor | _Plain) -> int:
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


# -- described without a library ------------------------------------------------------------------


class Layout(NamedTuple):
    """How an array lies in memory, in DLPack's words."""

    address: int
    """Of the first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    element: tuple[int, int, int]
    """DLPack's code of the type, its bits, and how many of them are one element."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        _, bits, lanes = self.element
        return (bits * lanes + 7) // 8

    def moved(self, by: int) -> Layout:
        """Return the same layout further on in memory."""
        return self._replace(address=self.address + by)

    def reach(self) -> tuple[int, int]:
        """Return where its memory begins and where it ends, of an array with elements."""
        steps = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        first = sum(step for step in steps if step < 0) * self.itemsize
        last = sum(step for step in steps if step > 0) * self.itemsize
        return self.address + first, self.address + last + self.itemsize


_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of ``__cuda_array_interface__``, and DLPack's


def layout_of(array: Any) -> Layout:
    """Return how an array lies in memory, waiting for nothing; any error if it does not tell."""
    if not hasattr(array, "__dlpack__"):
        return _of_interface(array.__cuda_array_interface__)
    capsule = array.__dlpack__(stream=-1)
    try:
        tensor: Any = _Plain.from_address(pointer_in(capsule, _PLAIN))
    except ValueError:
        tensor = _ManagedTensor.from_address(pointer_in(capsule, _NAME))
    lengths = c_int64 * tensor.ndim
    shape = tuple(lengths.from_address(tensor.shape)) if tensor.ndim else ()
    strides = tuple(lengths.from_address(tensor.strides)) if tensor.strides and shape else None
    element = tensor.code, tensor.bits, tensor.lanes
    return Layout(
        _start(tensor), shape, _contiguous(shape) if strides is None else strides, element
    )


def _of_interface(told: dict[str, Any]) -> Layout:
    kind, size = told["typestr"][1], int(told["typestr"][2:])
    shape, strides = tuple(told["shape"]), told.get("strides")
    steps = _contiguous(shape) if strides is None else tuple(step // size for step in strides)
    return Layout(told["data"][0], shape, steps, (_KINDS[kind], 8 * size, 1))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return tuple(reversed(steps))


class DescribedMemory:
    """Memory of a CUDA device that a library makes an array of, which then holds the owner."""

    def __init__(self, layout: Layout, device: int, owner: object) -> None:
        self._layout, self._device, self._owner = layout, device, owner

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return CUDA and the ordinal."""
        return _CUDA, self._device

    def __dlpack__(self, **_: object) -> Any:
        """Return a capsule, for a library that takes it over at once; the memory is in order."""
        layout = self._layout
        lengths = c_int64 * len(layout.shape)
        shape, strides = lengths(*layout.shape), lengths(*layout.strides)
        given = _Plain(layout.address, _CUDA, self._device, len(layout.shape), *layout.element)
        given.shape, given.strides = ctypes.addressof(shape), ctypes.addressof(strides)
        given.deleter = ctypes.cast(_deleter, c_void_p)
        address = ctypes.addressof(given)
        _lent[address] = given, self._owner, [shape, strides]
        return _new(address, _PLAIN, None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The same for a library without DLPack; TypeError for an element it has no word for."""
        code, bits, lanes = self._layout.element
        kinds = [kind for kind, number in _KINDS.items() if number == code]
        if not kinds or lanes != 1 or bits % 8:
            raise TypeError(f"NumPy has no type like DLPack's {self._layout.element}.")
        size = bits // 8
        return {
            "version": 3,
            "shape": self._layout.shape,
            "strides": tuple(size * step for step in self._layout.strides),
            "typestr": ("|" if size == 1 else "<") + kinds[0] + str(size),
            "data": (self._layout.address, False),
            "stream": None,
        }

    def forget(self) -> None:
        """Let the owner go, which no library has taken over."""
        for address, (_, owner, _) in tuple(_lent.items()):
            if owner is self._owner:
                _lent.pop(address, None)
