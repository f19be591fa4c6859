"""CUDA's calls for events and memory of one process in another."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import devices, driver, loader
from streamkit._cuda.driver import ask
from streamkit._support.tokens import HANDLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

_LAZY_PEER_ACCESS = 1
_GONE = 1, 205, 400  # invalid value, map failed, invalid handle: as opening answers


def device_of(uuid: str) -> int:
    """Return the ordinal of the device here; NoDeviceError if this process does not see it."""
    for device in range(driver.device_count()):
        if devices.uuid_of(device) == uuid:
            return device
    raise errors.NoDeviceError(
        f"this process does not see the device {uuid}: name it in CUDA_VISIBLE_DEVICES, or send a "
        "copy of the array."
    )


def open_event(context: int, handle: bytes) -> int | None:
    """Open an event of another process, to be destroyed as an own one; None if it is gone."""
    opened = handle_of(loader.cu.CUipcEventHandle, handle)
    return _open(context, "cuIpcOpenEventHandle", opened)


def handle_of(kind: Callable[[], Any], data: bytes) -> Any:
    """Return CUDA's handle of a kind with these bytes; ValueError if the size is not its own."""
    handle = kind()
    (ctypes.c_ubyte * HANDLE_SIZE).from_address(handle.getPtr())[:] = list(data)
    return handle


def range_of(pointer: int) -> tuple[int, int]:
    """Return the first address of the allocation around a pointer, and its bytes."""
    base, size = ask("cuMemGetAddressRange", pointer)
    return int(base), int(size)


def number_of(pointer: int) -> int:
    """Return the allocation's number, which no other one of the process ever has."""
    return int(_attribute("BUFFER_ID", pointer))


def why_not(pointer: int) -> str | None:
    """Say why other processes cannot open the memory at a pointer; None if they can."""
    if _attribute("IS_LEGACY_CUDA_IPC_CAPABLE", pointer):
        return None
    if _attribute("IS_MANAGED", pointer):
        return "it is managed memory"
    if int(_attribute("MEMPOOL_HANDLE", pointer) or 0):
        return "it comes from one of CUDA's memory pools (cudaMallocAsync)"
    return "it was not allocated by cudaMalloc (as expandable segments are not)"


def _attribute(name: str, pointer: int) -> Any:
    which = getattr(loader.cu.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    code, value = loader.cu.cuPointerGetAttribute(which, pointer)
    return None if code else value


def memory_handle(base: int) -> bytes:
    """Return what opens an allocation elsewhere."""
    return driver.handle_bytes(ask("cuIpcGetMemHandle", base))


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


# -- copies that can be shared --------------------------------------------------------------------


def allocate(context: int, size: int) -> int:
    """Return memory of cudaMalloc's kind."""
    make, destroy = functools.partial(ask, "cuMemAlloc", size), functools.partial(ask, "cuMemFree")
    return driver.create_in(context, make, destroy)


def free(context: int, pointer: int) -> None:
    """Give it back; waits for the device."""
    driver.call_in(context, ask, "cuMemFree", pointer)
