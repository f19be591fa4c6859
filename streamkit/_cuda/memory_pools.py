"""Memory pools, from which ``cuMemAllocAsync`` takes, and the allocation around an address."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

from streamkit._cuda import driver, loader

_ALL = 2**64 - 1  # bytes that a pool keeps


def create(device: int, *, keeps: int = _ALL) -> Any:
    """Create a pool of the device's memory, which keeps at most ``keeps`` unused bytes."""
    cu = loader.cu
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _place(device)
    pool = driver.ask("cuMemPoolCreate", properties)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    try:
        driver.ask("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(keeps))
    except BaseException:
        driver.ask("cuMemPoolDestroy", pool)
        raise
    return pool


def copy_access(pool: Any, other: Any, device: int) -> None:
    """Let the devices that can use the other pool of this device's memory use this pool too."""
    access = {}
    for peer in _peers(device):
        place = _place(peer)
        found = driver.ask("cuMemPoolGetAccess", other, place)
        if int(found) and found != driver.ask("cuMemPoolGetAccess", pool, place):
            access[peer] = found
    _give_access(pool, access)


def _peers(device: int) -> list[int]:
    return [peer for peer in range(driver.device_count()) if peer != device]


def _give_access(pool: Any, access: dict[int, Any]) -> None:
    made = []
    for peer, flags in access.items():
        one = loader.cu.CUmemAccessDesc()
        one.location, one.flags = _place(peer), flags
        made.append(one)
    if made:
        driver.ask("cuMemPoolSetAccess", pool, made, len(made))


def _place(device: int) -> Any:
    place = loader.cu.CUmemLocation()
    place.type = loader.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = device
    return place


# -- memory for any stream, without a wait ---------------------------------------------------------


def prepare(device: int) -> None:
    """Make the pool for ``allocate`` now, because a capture could forbid that."""
    _source(device)


def allocate(device: int, size: int) -> int:
    """Return memory that every stream may use at once, and ``free`` takes back."""
    source = _source(device)
    if source is None:
        return int(driver.ask("cuMemAlloc", size))
    pool, stream = source
    pointer = int(driver.ask("cuMemAllocFromPoolAsync", size, pool, stream))
    driver.ask("cuStreamSynchronize", stream)
    return pointer


def free(device: int, pointer: int) -> None:
    """Give back memory that nothing uses any more. If the device has pools, waits for no work.

    ``cuMemFree`` would wait for the whole device.
    """
    source = _source(device)
    if source is None:
        driver.ask("cuMemFree", pointer)
        return
    _, stream = source
    driver.ask("cuMemFreeAsync", pointer, stream)
    driver.ask("cuStreamSynchronize", stream)  # then the pool returns it to the device


@functools.cache
def _source(device: int) -> tuple[Any, int] | None:
    """Return a pool and a stream without other work; None if the device has no pools.

    Every device that can reach the pool's memory may use it, as with ``cuMemAlloc``.
    """
    supported = loader.cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    if not driver.ask("cuDeviceGetAttribute", supported, device):
        return None
    pool = create(device, keeps=0)
    both = loader.cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    peers = [one for one in _peers(device) if driver.ask("cuDeviceCanAccessPeer", one, device)]
    _give_access(pool, dict.fromkeys(peers, both))
    return pool, driver.create_private_stream(device, nonblocking=True, priority=0)


# -- the allocation around an address ----------------------------------------------------------


class Allocation(NamedTuple):
    """One piece of memory that CUDA allocated or pinned; a library's pool may divide it."""

    start: int
    size: int
    is_host: bool
    """Whether it is pinned memory of the host."""
    context: int
    """The context of the memory; 0 if the driver names none, as for memory of its pools."""


_CONTEXT, _TYPE, _START, _SIZE = 1, 2, 11, 12  # of CUpointer_attribute
_HOST_MEMORY = 1


def allocation(address: int) -> Allocation | None:
    """Return the allocation around this address; None for memory that CUDA does not know."""
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
