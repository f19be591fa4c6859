"""Memory that libraries pass on by DLPack, and the owners that such memory holds.

Libraries pass on a ``DLManagedTensorVersioned``. StreamKit itself describes memory by a
``DLManagedTensor``, which has no version, because every library takes one.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._support import garbage, messages

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME, _PLAIN = b"dltensor_versioned", b"dltensor"  # names of capsules; one with a version
ON_CUDA = CUDA, _ = 2, 13  # the device types of CUDA's memory, the second of managed memory


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

    _fields_ = (*_ManagedTensor._fields_[5:], ("manager_ctx", c_void_p), ("deleter", c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)  # called from any thread
_call_deleter = ctypes.PYFUNCTYPE(None, c_void_p)

_lent: dict[int, tuple[_ManagedTensor | _Plain, object, list[object]]] = {}
"""Lent memory by address: the tensor that was given on, its owner, its shape and strides."""

# Called when nothing uses the given tensor any more, so that the owner can go.
_deleter = _Deleter(_lent.__delitem__)
garbage.keep_forever(_deleter)  # a library can give memory back when the modules have gone


def _release(address: int) -> None:
    deleter = _ManagedTensor.from_address(address).deleter
    if deleter:
        _call_deleter(deleter)(address)


def _given(given: _ManagedTensor | _Plain, layout: Layout, owner: object) -> int:
    """Return the address of a tensor with this layout, which a library takes over."""
    lengths = c_int64 * len(layout.shape)
    shape, strides = lengths(*layout.shape), lengths(*layout.strides)
    given.data, given.byte_offset, given.ndim = layout.address, 0, len(layout.shape)
    given.code, given.bits, given.lanes = layout.element
    given.shape, given.strides = ctypes.addressof(shape), ctypes.addressof(strides)
    given.deleter = ctypes.cast(_deleter, c_void_p)
    address = ctypes.addressof(given)
    _lent[address] = given, owner, [shape, strides]
    return address


def owner_at(address: int) -> Any:
    """Return the owner of the lent memory that begins there, None if none does."""
    lent = list(_lent.values())
    return next((owner for given, owner, _ in lent if given.data == address), None)


def _start(tensor: _ManagedTensor | _Plain) -> int:
    return (tensor.data or 0) + int(tensor.byte_offset)


# -- in capsules, as ``__dlpack__`` returns them ----------------------------------------------


def _of_python(name: str, *types: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


_new = _of_python("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, c_void_p)
pointer_in: Callable[[object, bytes], int] = _of_python(
    "PyCapsule_GetPointer", c_void_p, ctypes.py_object, c_char_p
)
"""Return the address in a capsule of this name; ValueError if the object is no such capsule."""


# -- described without a library ------------------------------------------------------------------


class Layout(NamedTuple):
    """The layout of an array in memory, in DLPack's words."""

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
        return self._replace(address=self.address + by)

    def reach(self) -> tuple[int, int]:
        """Return where the array's memory begins and ends; the array must have elements."""
        steps = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        first = sum(step for step in steps if step < 0) * self.itemsize
        last = sum(step for step in steps if step > 0) * self.itemsize
        return self.address + first, self.address + last + self.itemsize


_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of ``__cuda_array_interface__``, and DLPack's


def layout_of(array: Any) -> Layout:
    """Return the layout of an array, without a wait; errors of the array's own methods pass."""
    if not hasattr(array, "__dlpack__"):
        return _of_interface(array.__cuda_array_interface__)
    capsule = array.__dlpack__(stream=-1)
    try:
        return _layout_in(_Plain.from_address(pointer_in(capsule, _PLAIN)))
    except ValueError:
        return _layout_in(_ManagedTensor.from_address(pointer_in(capsule, _NAME)))


def _layout_in(tensor: Any) -> Layout:
    lengths = c_int64 * tensor.ndim
    shape = tuple(lengths.from_address(tensor.shape)) if tensor.ndim else ()
    has_strides = tensor.strides and shape
    strides = tuple(lengths.from_address(tensor.strides)) if has_strides else _contiguous(shape)
    return Layout(_start(tensor), shape, strides, (tensor.code, tensor.bits, tensor.lanes))


def _of_interface(told: dict[str, Any]) -> Layout:
    kind, size = told["typestr"][1], int(told["typestr"][2:])
    shape, strides = tuple(told["shape"]), told.get("strides")
    steps = _contiguous(shape) if strides is None else tuple(step // size for step in strides)
    return Layout(told["data"][0], shape, steps, (_KINDS[kind], 8 * size, 1))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class DescribedMemory:
    """Memory of which a library makes an array that holds the owner."""

    def __init__(self, layout: Layout, device: int, owner: object, kind: int = CUDA) -> None:
        """``kind`` is DLPack's type of the device."""
        self._layout, self._place, self._owner = layout, (kind, device), owner

    def adopted(self, adopt: Callable[[Any], Any]) -> Any:
        """Return the array that a library makes by ``adopt``; an error lets the owner go."""
        try:
            return adopt(self)
        except BaseException:
            for address, (_, owner, _) in list(_lent.items()):
                if owner is self._owner:
                    _lent.pop(address, None)
            raise

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place

    def __dlpack__(self, **_: object) -> Any:
        """Return a capsule, for a library that takes it over at once and need not wait."""
        given = _Plain(None, *self._place)
        return _new(_given(given, self._layout, self._owner), _PLAIN, None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For a library without DLPack; TypeError if the elements are of a type NumPy lacks."""
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


# -- DLPack's exchange API ------------------------------------------------------------------------

# From DLPack 1.3 on a class of arrays can have ``__dlpack_c_exchange_api__``: a capsule with a
# table of C functions, which tell the library's current stream, and make an array of the library
# from memory that somebody else holds.
_Pointer = ctypes.POINTER(c_void_p)


class _Api(ctypes.Structure):
    """``DLPackExchangeAPI`` of dlpack.h; the functions are called with the GIL held."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("prev_api", c_void_p),
        ("managed_tensor_allocator", c_void_p),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _Pointer)),
        ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, _Pointer)),
        ("dltensor_from_py_object_no_sync", c_void_p),
        ("current_work_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, c_int32, _Pointer)),
    )


class Exchange:
    """The exchange functions of one class of arrays."""

    def __init__(self, kind: type, api: _Api) -> None:
        self._kind, self._api = kind, api

    def array_device(self, array: Any) -> int:
        """Return the CUDA ordinal of the array's device; TypeError if it is on none."""
        place, ordinal = array.__dlpack_device__()
        if place not in ON_CUDA:
            raise messages.not_an_array(array)
        return int(ordinal)

    def current(self, device: int) -> int:
        handle = c_void_p()
        self._check(self._api.current_work_stream(CUDA, device, ctypes.byref(handle)))
        return handle.value or 0

    def lend(self, array: Any, owner: object) -> Any:
        """Return another array on the memory, which the owner has to hold."""
        source = self._source(array)
        given = _ManagedTensor.from_buffer_copy(_ManagedTensor.from_address(source))
        address = _given(given, _layout_in(given), owner)
        _release(source)
        try:
            lent = self._make(address)
        except BaseException:
            _lent.pop(address, None)  # if it was not given back already
            raise
        if type(lent) is not type(array):
            raise messages.cannot_lend(array, f"its library makes a {type(lent).__name__} of it")
        return lent

    def lent_by(self, array: Any) -> Any:
        source = self._source(array)
        start = _start(_ManagedTensor.from_address(source))
        _release(source)
        return owner_at(start)

    def _source(self, array: Any) -> int:
        source = c_void_p()
        self._check(self._api.from_object(array, ctypes.byref(source)))
        return source.value or 0

    def _make(self, address: int) -> Any:
        made = c_void_p()
        self._check(self._api.to_object(address, ctypes.byref(made)))
        array: Any = ctypes.cast(made, ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))  # the reference of the pointer
        return array

    def _check(self, code: int) -> None:
        if code:  # the function has raised nothing
            raise RuntimeError(
                f"a function of the DLPack exchange API of {self._kind.__module__}."
                f"{self._kind.__qualname__} failed without a reason. Ask its author."
            )


def exchange_of(kind: type) -> Exchange | None:
    """Return the exchange functions of a class of arrays, None if it has no readable table."""
    try:
        address = pointer_in(
            getattr(kind, "__dlpack_c_exchange_api__", None), b"dlpack_exchange_api"
        )
    except ValueError:  # no capsule, or one of another name
        return None
    while address:  # from the newest table that the library has to its older ones
        api = _Api.from_address(address)
        if api.major == 1:  # the major version of DLPack whose table is read here
            whole = api.from_object and api.to_object and api.current_work_stream
            return Exchange(kind, api) if whole else None
        address = api.prev_api
    return None
