"""What a driver tells of itself: entry points, errors, devices and contexts."""

from __future__ import annotations

import re
from pathlib import Path

from cuda.bindings import driver

from emulator.observations.probe import (
    LEGACY,
    answer,
    code,
    current,
    device_count,
    new_context,
    ok,
    primary,
    streams,
)

SOURCE = Path(__file__).parents[1] / "source"
PER_THREAD = int(driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)


def entry_points():
    """Of each name that the emulated driver has: [in its version, just before, one per thread]."""
    text = (SOURCE / "entry_points.h").read_text()
    versions = {}
    for name, version in re.findall(r"^(?:ENTRY|BOTH|MISSING)\((\w+), (\d+)", text, re.MULTILINE):
        versions[name] = min(int(version), versions.get(name, 99999))

    def find(name, version, flags=0):
        return driver.cuGetProcAddress(name.encode(), version, flags)

    def status(result):
        return code(result) if result[0] else int(result[2])

    seen = {"an unknown name": status(find("cuUnicorn", 13000))}
    for name, version in versions.items():
        plain, own = find(name, version), find(name, version, PER_THREAD)
        seen[name] = [
            status(plain),
            status(find(name, version - 1)),
            not plain[0] and not own[0] and int(plain[1]) != int(own[1]),
        ]
    return seen


def error_texts():
    text = (SOURCE / "errors.c").read_text()
    seen = {}
    for name in re.findall(r"ERROR\((CUDA_\w+),", text):
        found = getattr(driver.CUresult, name)
        seen[name] = [
            ok(driver.cuGetErrorName(found)).decode(),
            ok(driver.cuGetErrorString(found)).decode(),
        ]
    return seen


def device_facts():
    count = device_count()
    bus = ok(driver.cuDeviceGetPCIBusId(32, 0)).rstrip(b"\0")
    seen = {
        "compute capability": [int(part) for part in ok(driver.cuDeviceComputeCapability(0))],
        "compute capability of one too many": code(driver.cuDeviceComputeCapability(count)),
        "bus id finds the device": int(ok(driver.cuDeviceGetByPCIBusId(bus))),
        "bus id of one too many": code(driver.cuDeviceGetPCIBusId(32, count)),
        "no bus id": code(driver.cuDeviceGetByPCIBusId(b"unicorn")),
        "nobody's bus id": code(driver.cuDeviceGetByPCIBusId(b"0000:FE:1F.0")),
        "luid": code(driver.cuDeviceGetLuid(0)),
        "uuid": any(bytes(ok(driver.cuDeviceGetUuid(0)).bytes)),
        "uuid of one too many": code(driver.cuDeviceGetUuid(count)),
        "memory": answer(driver.cuDeviceTotalMem(0)) > 0,
        "memory of one too many": code(driver.cuDeviceTotalMem(count)),
        "access to itself": answer(driver.cuDeviceCanAccessPeer(0, 0)),
        "access to one too many": code(driver.cuDeviceCanAccessPeer(0, count)),
    }
    peer = driver.CUdevice_P2PAttribute
    for name in ("ACCESS_SUPPORTED", "NATIVE_ATOMIC_SUPPORTED", "CUDA_ARRAY_ACCESS_SUPPORTED"):
        asked = getattr(peer, f"CU_DEVICE_P2P_ATTRIBUTE_{name}")
        seen[f"{name} of itself"] = answer(driver.cuDeviceGetP2PAttribute(asked, 0, 0))
        if count > 1:
            seen[name] = answer(driver.cuDeviceGetP2PAttribute(asked, 0, 1))
    if count > 1:
        one, other = (bytes(ok(driver.cuDeviceGetUuid(device)).bytes) for device in (0, 1))
        seen["uuids differ"] = one != other
        seen["access to another"] = answer(driver.cuDeviceCanAccessPeer(0, 1))
    kinds = driver.CUdevice_attribute
    for name in (
        "COMPUTE_CAPABILITY_MAJOR",
        "WARP_SIZE",
        "MAX_THREADS_PER_BLOCK",
        "MAX_BLOCK_DIM_Z",
        "MAX_GRID_DIM_Y",
        "UNIFIED_ADDRESSING",
        "CAN_MAP_HOST_MEMORY",
        "CONCURRENT_KERNELS",
        "STREAM_PRIORITIES_SUPPORTED",
        "MEMORY_POOLS_SUPPORTED",
        "CAN_USE_64_BIT_STREAM_MEM_OPS",
        "CAN_USE_STREAM_WAIT_VALUE_NOR",
    ):
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        seen[name] = answer(driver.cuDeviceGetAttribute(kind, 0))
    return seen


def context_facts():
    blocking, spin = 4, 1
    made = new_context()
    seen = {
        "flags": answer(driver.cuCtxGetFlags()),
        "set flags": [code(driver.cuCtxSetFlags(blocking)), answer(driver.cuCtxGetFlags())],
        "set unknown flags": code(driver.cuCtxSetFlags(1 << 20)),
        "set two ways to wait": code(driver.cuCtxSetFlags(blocking | spin)),
        "api version": answer(driver.cuCtxGetApiVersion(made)),
        "stack size": answer(driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE)) >= 0,
        "unknown limit": code(driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_MAX)),
        "access to itself": code(driver.cuCtxEnablePeerAccess(made, 0)),
        "access to none": code(driver.cuCtxEnablePeerAccess(0, 0)),
    }
    with streams(True) as raw:
        result = driver.cuStreamGetGreenCtx(raw)
        seen["green context of a stream"] = code(result) if result[0] else bool(int(result[1]))
    result = driver.cuStreamGetGreenCtx(LEGACY)
    seen["green context of legacy"] = code(result) if result[0] else bool(int(result[1]))
    if device_count() > 1:
        other = new_context(1)
        seen["access to the other device"] = code(driver.cuCtxEnablePeerAccess(made, 0))
        seen["access once more"] = code(driver.cuCtxEnablePeerAccess(made, 0))
        seen["access with flags"] = code(driver.cuCtxEnablePeerAccess(made, 1))
        ok(driver.cuCtxDestroy(other))
    ok(driver.cuCtxDestroy(made))
    flags = int(ok(driver.cuDevicePrimaryCtxGetState(0))[0])
    seen["set a primary context's flags"] = code(driver.cuDevicePrimaryCtxSetFlags(0, blocking))
    seen["its state then"] = [int(value) for value in ok(driver.cuDevicePrimaryCtxGetState(0))]
    with current(primary()):
        seen["its flags then"] = answer(driver.cuCtxGetFlags())
    ok(driver.cuDevicePrimaryCtxRelease(0))
    seen["set unknown flags of it"] = code(driver.cuDevicePrimaryCtxSetFlags(0, 1 << 20))
    seen["set flags of one too many"] = code(driver.cuDevicePrimaryCtxSetFlags(device_count(), 0))
    seen["state of one too many"] = code(driver.cuDevicePrimaryCtxGetState(device_count()))
    seen["set them back"] = code(driver.cuDevicePrimaryCtxSetFlags(0, flags))
    return seen
