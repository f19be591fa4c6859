"""The driver's memory pools: what ``cuMemAllocAsync`` takes from, one current for each device."""

from __future__ import annotations

from typing import Any

from streamkit import _driver, _library

_ALL = 2**64 - 1


def create(device: int) -> Any:
    """Create a pool of the device's memory that gives nothing back, so it never unmaps any."""
    cu = _library.cu
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _place(device)
    pool = _driver.ask("cuMemPoolCreate", properties)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    try:
        _driver.ask("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(_ALL))
    except BaseException:
        _driver.ask("cuMemPoolDestroy", pool)
        raise
    return pool


def open_as(pool: Any, other: Any, device: int) -> None:
    """Let the devices that reach one pool of this device's memory reach another of them."""
    access = []
    for peer in range(_driver.device_count()):
        if peer == device:
            continue
        place = _place(peer)
        found = _driver.ask("cuMemPoolGetAccess", other, place)
        if int(found) and found != _driver.ask("cuMemPoolGetAccess", pool, place):
            one = _library.cu.CUmemAccessDesc()
            one.location, one.flags = place, found
            access.append(one)
    if access:
        _driver.ask("cuMemPoolSetAccess", pool, access, len(access))


def _place(device: int) -> Any:
    place = _library.cu.CUmemLocation()
    place.type = _library.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = device
    return place


def current(device: int) -> Any:
    """Return the device's current pool."""
    return _driver.ask("cuDeviceGetMemPool", device)


def set_current(device: int, pool: Any) -> None:
    """Make a pool the device's current one, in all threads. Invalidates this thread's capture."""
    _driver.ask("cuDeviceSetMemPool", device, pool)
