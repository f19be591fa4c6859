"""The memory pools from which ``cuMemAllocAsync`` takes; each device has a current one."""

from __future__ import annotations

from typing import Any

from streamkit._cuda import driver, loader

_ALL = 2**64 - 1  # bytes that a pool keeps


def create(device: int) -> Any:
    """Create a pool of the device's memory that gives none of it back to the system."""
    cu = loader.cu
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _place(device)
    pool = driver.ask("cuMemPoolCreate", properties)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    try:
        driver.ask("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(_ALL))
    except BaseException:
        driver.ask("cuMemPoolDestroy", pool)
        raise
    return pool


def copy_access(pool: Any, other: Any, device: int) -> None:
    """Let the devices that can use the other pool of this device's memory use this pool too."""
    access = []
    for peer in range(driver.device_count()):
        if peer == device:
            continue
        place = _place(peer)
        found = driver.ask("cuMemPoolGetAccess", other, place)
        if int(found) and found != driver.ask("cuMemPoolGetAccess", pool, place):
            one = loader.cu.CUmemAccessDesc()
            one.location, one.flags = place, found
            access.append(one)
    if access:
        driver.ask("cuMemPoolSetAccess", pool, access, len(access))


def _place(device: int) -> Any:
    place = loader.cu.CUmemLocation()
    place.type = loader.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = device
    return place


def current(device: int) -> Any:
    """Return the device's current pool."""
    return driver.ask("cuDeviceGetMemPool", device)


def set_current(device: int, pool: Any) -> None:
    """Make a pool the device's current one, in all threads. Invalidates this thread's capture."""
    driver.ask("cuDeviceSetMemPool", device, pool)
