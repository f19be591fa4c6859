"""Where memory is, and CUDA's calls for events and memory of one process in another."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask

if TYPE_CHECKING:
    from collections.abc import Callable

_LAZY_PEER_ACCESS = 1
_GONE = 1, 205, 400  # invalid value, map failed, invalid handle: as opening answers
_Bytes = ctypes.c_ubyte * 64  # of CUDA's handles for other processes


# -- devices, which each process numbers for itself ----------------------------------------------


@functools.cache
def uuid_of(device: int) -> str:
    """Return the device's UUID, as CUDA_VISIBLE_DEVICES takes it."""
    text = bytes(ask("cuDeviceGetUuid", device).bytes).hex()
    parts = text[:8], text[8:12], text[12:16], text[16:20], text[20:]
    return "GPU-" + "-".join(parts)


def device_of(uuid: str) -> int:
    """Return the ordinal of the device here; NoDeviceError if this process does not see it."""
    for device in range(driver.device_count()):
        if uuid_of(device) == uuid:
            return device
    raise errors.NoDeviceError(
        f"this process does not see the device {uuid}: name it in CUDA_VISIBLE_DEVICES, or send a "
        "copy of the array."
    )


# -- events -------------------------------------------------------------------------------------


def event_handle(context: int, event: int) -> bytes:
    """Return what opens an event elsewhere; DriverError if it was not made for that."""
    # any one of the device: without one the call fails
    return handle_bytes(driver.call_in(context, ask, "cuIpcGetEventHandle", event))


def open_event(context: int, handle: bytes) -> int | None:
    """Open an event of another process; None if that is gone. It is destroyed as an own one."""
    return _open(context, "cuIpcOpenEventHandle", handle_of(loader.cu.CUipcEventHandle, handle))


# -- memory -------------------------------------------------------------------------------------


class Allocation(NamedTuple):
    """Memory that CUDA allocated as one, or that it pinned; a library's pool may divide it."""

    start: int
    size: int
    is_host: bool
    """Whether it is pinned memory of the host."""
    context: int
    """0 where the driver names none, as for memory of its pools."""


_CONTEXT, _TYPE, _START, _SIZE = 1, 2, 11, 12  # of CUpointer_attribute
_HOST_MEMORY = 1


def allocation(address: int) -> Allocation | None:
    """Return the allocation with this address in it; None for memory that CUDA does not know.

    It lets no other thread run meanwhile, so that a callback can ask it.
    """
    found = (ctypes.c_uint64 * 4)()
    which = (ctypes.c_int * 4)(_START, _SIZE, _TYPE, _CONTEXT)
    place = ctypes.addressof(found)
    where = (ctypes.c_void_p * 4)(*range(place, place + 32, 8))
    ask_all = loader.with_gil("cuPointerGetAttributes")
    code = ask_all(ctypes.c_uint(4), which, where, ctypes.c_uint64(address))
    start, size, sort, context = found
    if code or not size:
        return None
    return Allocation(start, size, sort & 0xFFFFFFFF == _HOST_MEMORY, context)


def range_of(pointer: int) -> tuple[int, int]:
    """Return where the allocation around a pointer begins, and its bytes."""
    base, size = ask("cuMemGetAddressRange", pointer)
    return int(base), int(size)


def number_of(pointer: int) -> int:
    """Return the allocation's number, which no other one of the process ever has."""
    return int(_attribute("BUFFER_ID", pointer))


def why_not(pointer: int) -> str | None:
    """Say why no other process can open the memory at a pointer; None if one can."""
    if _attribute("IS_LEGACY_CUDA_IPC_CAPABLE", pointer):
        return None
    if _attribute("IS_MANAGED", pointer):
        return "it is managed memory"
    if int(_attribute("MEMPOOL_HANDLE", pointer) or 0):
        return "it comes from one of CUDA's memory pools (cudaMallocAsync)"
    return "it was not allocated by cudaMalloc (as expandable segments are not)"


def _attribute(name: str, pointer: int) -> Any:
    code, value = _asked(name, pointer)
    return None if code else value


def _asked(name: str, pointer: int) -> Any:
    which = getattr(loader.cu.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    return loader.cu.cuPointerGetAttribute(which, pointer)


def memory_handle(base: int) -> bytes:
    """Return what opens an allocation elsewhere."""
    return handle_bytes(ask("cuIpcGetMemHandle", base))


def open_memory(context: int, handle: bytes) -> int | None:
    """Map an allocation of another process; return its address, None if it is gone."""
    opened = handle_of(loader.cu.CUipcMemHandle, handle)
    return _open(context, "cuIpcOpenMemHandle", opened, _LAZY_PEER_ACCESS)


def _open(context: int, call: str, *arguments: object) -> int | None:
    code, found = driver.call_in(context, getattr(loader.cu, call), *arguments)
    if code in _GONE:
        return None
    if code:
        raise driver.error(call, code)
    return int(found)


def handle_bytes(handle: Any) -> bytes:
    """Return what is in CUDA's handle, of which the bindings have no attribute since 13.4."""
    return bytes(_Bytes.from_address(handle.getPtr()))


def handle_of(kind: Callable[[], Any], data: bytes) -> Any:
    """Return CUDA's handle of a kind with that in it; ValueError if the size is not its own."""
    handle = kind()
    _Bytes.from_address(handle.getPtr())[:] = list(data)
    return handle


# -- copies that can be shared --------------------------------------------------------------------


def allocate(context: int, size: int) -> int:
    """Return memory of cudaMalloc's kind."""
    make, destroy = functools.partial(ask, "cuMemAlloc", size), functools.partial(ask, "cuMemFree")
    return driver.create_in(context, make, destroy)


def free(context: int, pointer: int) -> None:
    """Give it back; waits for the device."""
    driver.call_in(context, ask, "cuMemFree", pointer)
