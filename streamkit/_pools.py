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
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    pool = _driver.ask("cuMemPoolCreate", properties)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    try:
        _driver.ask("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(_ALL))
    except BaseException:
        _driver.ask("cuMemPoolDestroy", pool)
        raise
    return pool


def current(device: int) -> Any:
    """Return the device's current pool."""
    return _driver.ask("cuDeviceGetMemPool", device)


def set_current(device: int, pool: Any) -> None:
    """Make a pool the device's current one, in all threads. Invalidates this thread's capture."""
    _driver.ask("cuDeviceSetMemPool", device, pool)
