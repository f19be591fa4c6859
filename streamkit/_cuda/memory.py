"""Where memory is that CUDA knows."""

from __future__ import annotations

from streamkit._cuda import driver, loader

_INVALID_VALUE = 1


def allocation(address: int) -> tuple[int, int] | None:
    """Return the address and bytes of the driver's allocation with this address in it, if any.

    A library's pool divides such allocations among arrays.
    """
    attributes = loader.cu.CUpointer_attribute
    code, start = loader.cu.cuPointerGetAttribute(
        attributes.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address
    )
    if code == _INVALID_VALUE:
        return None
    if code:
        raise driver.error("cuPointerGetAttribute", code)
    size = driver.ask("cuPointerGetAttribute", attributes.CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)
    return int(start), int(size)
