"""Memory pools: their attributes, whose memory is whose, the device's own, and access."""

from __future__ import annotations

from cuda.bindings import driver

from emulator.observations.probe import (
    Gate,
    answer,
    code,
    current,
    device_count,
    ok,
    primary,
    settled,
    streams,
)

ATTRIBUTE = driver.CUmemPool_attribute
REUSE = {
    "follows events": ATTRIBUTE.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
    "opportunistic": ATTRIBUTE.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
    "internal": ATTRIBUTE.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
}
THRESHOLD = ATTRIBUTE.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
USED, HIGH = ATTRIBUTE.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, ATTRIBUTE.CU_MEMPOOL_ATTR_USED_MEM_HIGH
RESERVED = ATTRIBUTE.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
RESERVED_HIGH = ATTRIBUTE.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
COUNTERS = {"used": USED, "high": HIGH, "reserved": RESERVED, "reserved high": RESERVED_HIGH}
POOL_OF = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE


def location(device=0):
    place = driver.CUmemLocation()
    place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = device
    return place


def properties(device=0, kind=driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED):
    wanted = driver.CUmemPoolProps()
    wanted.allocType = kind
    wanted.location = location(device)
    return wanted


def access(device, flags):
    wanted = driver.CUmemAccessDesc()
    wanted.location = location(device)
    wanted.flags = driver.CUmemAccess_flags(flags)
    return wanted


def new_pool(device=0):
    return ok(driver.cuMemPoolCreate(properties(device)))


def attribute(pool, which):
    return answer(driver.cuMemPoolGetAttribute(pool, which))


def change(pool, which, value):
    return code(driver.cuMemPoolSetAttribute(pool, which, driver.cuuint64_t(value)))


def pool_of(pointer):
    result = driver.cuPointerGetAttribute(POOL_OF, pointer)
    return code(result) if result[0] else int(result[1])


def pool_attributes():
    pool, default = new_pool(), ok(driver.cuDeviceGetDefaultMemPool(0))
    invalid = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    seen = {
        "create on one too many": code(driver.cuMemPoolCreate(properties(device_count()))),
        "create of no type": code(driver.cuMemPoolCreate(properties(kind=invalid))),
        "threshold": attribute(pool, THRESHOLD),
        "threshold of the default": attribute(default, THRESHOLD),
        "set the threshold": change(pool, THRESHOLD, 1 << 40),
        "the threshold then": attribute(pool, THRESHOLD),
        "an unknown pool's": code(driver.cuMemPoolGetAttribute(0, THRESHOLD)),
        "set an unknown pool's": change(0, THRESHOLD, 1),
    }
    for name, which in REUSE.items():
        seen[f"reuse {name}"] = attribute(pool, which)
        turned_off = driver.cuMemPoolSetAttribute(pool, which, 0)
        seen[f"reuse {name} turned off"] = [code(turned_off), attribute(pool, which)]
    for name, which in COUNTERS.items():
        seen[f"{name} at first"] = attribute(pool, which)
        seen[f"set {name} to 0"] = change(pool, which, 0)
        seen[f"set {name} to 5"] = change(pool, which, 5)
    seen["trim of an empty one"] = code(driver.cuMemPoolTrimTo(pool, 0))
    seen["trim of none"] = code(driver.cuMemPoolTrimTo(0, 0))
    seen["destroy"] = code(driver.cuMemPoolDestroy(pool))
    seen["destroy of none"] = code(driver.cuMemPoolDestroy(0))
    seen["destroy of the default"] = code(driver.cuMemPoolDestroy(default))
    return seen


def pool_memory():
    """What is counted, where memory comes from, and how long a pool lasts."""
    seen = {}
    with Gate() as gate, streams(True) as raw:
        pool = new_pool()
        seen["alloc of nothing"] = code(driver.cuMemAllocFromPoolAsync(0, pool, raw))
        seen["alloc of nothing from the device's"] = code(driver.cuMemAllocAsync(0, raw))
        seen["alloc from none"] = code(driver.cuMemAllocFromPoolAsync(64, 0, raw))
        first = ok(driver.cuMemAllocFromPoolAsync(64, pool, raw))
        seen["used by 64 bytes"] = attribute(pool, USED)
        second = ok(driver.cuMemAllocFromPoolAsync(1000, pool, raw))
        seen["used by 64 and 1000"] = attribute(pool, USED)
        seen["reserved is no less"] = attribute(pool, RESERVED) >= attribute(pool, USED)
        seen["the memory's pool"] = pool_of(first) == int(pool)
        plain = ok(driver.cuMemAlloc(64))
        seen["pool of what cuMemAlloc gave"] = pool_of(plain)
        ok(driver.cuMemFree(plain))
        gate.hold(raw)
        seen["free behind a gate"] = code(driver.cuMemFreeAsync(second, raw))
        seen["used while it is held"] = attribute(pool, USED)
        gate.open()
        ok(driver.cuStreamSynchronize(raw))
        seen["used afterwards"] = attribute(pool, USED)
        seen["the highest"] = attribute(pool, HIGH)
        seen["forget the highest"] = change(pool, HIGH, 0)
        seen["the highest from then"] = attribute(pool, HIGH)
        seen["trim"] = code(driver.cuMemPoolTrimTo(pool, 0))
        seen["reserved for what is left"] = attribute(pool, RESERVED) >= 64
        seen["destroy with memory out"] = code(driver.cuMemPoolDestroy(pool))
        seen["fill of what it gave"] = code(driver.cuMemsetD32Async(first, 1, 4, raw))
        seen["free of what it gave"] = code(driver.cuMemFreeAsync(first, raw))
        ok(driver.cuStreamSynchronize(raw))
        third = ok(driver.cuMemAllocAsync(64, raw))
        seen["cuMemFree of the device's pool's"] = code(driver.cuMemFree(third))
        fourth = ok(driver.cuMemAlloc(64))
        seen["cuMemFreeAsync of what cuMemAlloc gave"] = code(driver.cuMemFreeAsync(fourth, raw))
        ok(driver.cuStreamSynchronize(raw))
        fifth = ok(driver.cuMemAllocAsync(64, raw))
        seen["free inside it"] = code(driver.cuMemFreeAsync(int(fifth) + 16, raw))
        seen["free"] = code(driver.cuMemFreeAsync(fifth, raw))
        ok(driver.cuStreamSynchronize(raw))
    return seen


def device_pool():
    """The pool from which a device's streams allocate."""
    seen = {}
    pool, default = new_pool(), ok(driver.cuDeviceGetDefaultMemPool(0))
    with streams(True) as raw:
        seen["get of one too many"] = code(driver.cuDeviceGetMemPool(device_count()))
        seen["default of one too many"] = code(driver.cuDeviceGetDefaultMemPool(device_count()))
        seen["set of one too many"] = code(driver.cuDeviceSetMemPool(device_count(), pool))
        seen["set none"] = code(driver.cuDeviceSetMemPool(0, 0))
        seen["set"] = code(driver.cuDeviceSetMemPool(0, pool))
        seen["it is the device's"] = int(ok(driver.cuDeviceGetMemPool(0))) == int(pool)
        seen["the default stays"] = int(ok(driver.cuDeviceGetDefaultMemPool(0))) == int(default)
        pointer = ok(driver.cuMemAllocAsync(64, raw))
        seen["memory comes from it"] = pool_of(pointer) == int(pool)
        ok(driver.cuMemFreeAsync(pointer, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["destroy"] = code(driver.cuMemPoolDestroy(pool))
        seen["the default is the device's"] = int(ok(driver.cuDeviceGetMemPool(0))) == int(default)
        if device_count() > 1:
            other = new_pool(1)
            seen["set another device's"] = code(driver.cuDeviceSetMemPool(0, other))
            result = driver.cuMemAllocFromPoolAsync(64, other, raw)
            seen["alloc from another device's"] = code(result)
            if not result[0]:
                ok(driver.cuMemFreeAsync(result[1], raw))
            ok(driver.cuStreamSynchronize(raw))
            ok(driver.cuMemPoolDestroy(other))
    return seen


def pool_access():
    seen = {}
    pool = new_pool()

    def ask(device, of=pool):
        return answer(driver.cuMemPoolGetAccess(of, location(device)))

    def allow(device, flags):
        return code(driver.cuMemPoolSetAccess(pool, [access(device, flags)], 1))

    seen["its own device"] = ask(0)
    seen["one too many"] = ask(device_count())
    seen["of none"] = ask(0, of=0)
    seen["let one too many"] = allow(device_count(), 3)
    seen["let nobody"] = code(driver.cuMemPoolSetAccess(pool, [], 0))
    seen["refuse its own"] = [allow(0, 0), ask(0)]
    seen["read its own"] = [allow(0, 1), ask(0)]
    seen["let its own"] = [allow(0, 3), ask(0)]
    if device_count() > 1:
        seen["another device"] = ask(1)
        seen["another device reads"] = [allow(1, 1), ask(1)]
        seen["let another device"] = [allow(1, 3), ask(1)]
        seen["refuse another device"] = [allow(1, 0), ask(1)]
    ok(driver.cuMemPoolDestroy(pool))
    return seen


def pool_order():
    """Memory of a queue that is held comes back to others only once they are ordered."""
    seen = {}
    with Gate() as gate, streams(True, True) as (held, other):
        pool = new_pool()
        gate.hold(held)
        pointer = ok(driver.cuMemAllocFromPoolAsync(64, pool, held))
        seen["alloc of a held queue returns"] = bool(int(pointer))
        ok(driver.cuMemFreeAsync(pointer, held))
        again = ok(driver.cuMemAllocFromPoolAsync(64, pool, held))
        seen["the same queue gets it again"] = int(again) == int(pointer)
        ok(driver.cuMemFreeAsync(again, held))
        third = ok(driver.cuMemAllocFromPoolAsync(64, pool, other))
        seen["another queue gets it"] = int(third) == int(pointer)
        seen["another queue is held by that"] = settled(lambda: driver.cuStreamQuery(other))
        gate.open()
        ok(driver.cuMemFreeAsync(third, other))
        ok(driver.cuStreamSynchronize(other))
        ok(driver.cuStreamSynchronize(held))
        ok(driver.cuMemPoolDestroy(pool))
    return seen


def pools_of_two_devices():
    if device_count() < 2:
        return {}
    with current(primary(1)), streams(True) as raw:
        pointer = ok(driver.cuMemAllocAsync(64, raw))
        default = int(ok(driver.cuDeviceGetDefaultMemPool(1)))
        seen = {"from the pool of the stream's device": pool_of(pointer) == default}
        ok(driver.cuMemFreeAsync(pointer, raw))
        ok(driver.cuStreamSynchronize(raw))
    ok(driver.cuDevicePrimaryCtxRelease(1))
    return seen
