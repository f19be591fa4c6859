"""Copies and fills, what of them holds the caller, callbacks, and gates of 64 bits."""

from __future__ import annotations

import ctypes
import time

from cuda.bindings import driver

from emulator.observations.probe import (
    LEGACY,
    RELAXED,
    SETTLE,
    Gate,
    answer,
    capture_status,
    code,
    end_capture,
    ok,
    returns,
    settled,
    streams,
)

WORDS = 16
FILLS = {
    "D8": (driver.cuMemsetD8, driver.cuMemsetD8Async, 1),
    "D16": (driver.cuMemsetD16, driver.cuMemsetD16Async, 2),
    "D32": (driver.cuMemsetD32, driver.cuMemsetD32Async, 4),
}
FLAT_FILLS = {
    "D2D8": (driver.cuMemsetD2D8, driver.cuMemsetD2D8Async, 1),
    "D2D16": (driver.cuMemsetD2D16, driver.cuMemsetD2D16Async, 2),
    "D2D32": (driver.cuMemsetD2D32, driver.cuMemsetD2D32Async, 4),
}


class Memory:
    """Words of device memory, the same in ordinary memory, and both as numbers."""

    def __init__(self):
        self.device = int(ok(driver.cuMemAlloc(4 * WORDS)))
        self.other = int(ok(driver.cuMemAlloc(4 * WORDS)))
        self.host = (ctypes.c_uint8 * (4 * WORDS))()
        self.address = ctypes.addressof(self.host)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ok(driver.cuMemFree(self.device))
        ok(driver.cuMemFree(self.other))

    def clear(self):
        ok(driver.cuMemsetD8(self.device, 0, 4 * WORDS))
        ok(driver.cuMemsetD8(self.other, 0, 4 * WORDS))
        ok(driver.cuCtxSynchronize())

    def read(self, pointer=None):
        ok(driver.cuMemcpyDtoH(self.address, pointer or self.device, 4 * WORDS))
        return bytes(self.host).hex()


def fills():
    seen = {}
    with Memory() as memory, streams(True) as raw:

        def look(name, result):
            ok(driver.cuCtxSynchronize())
            seen[name] = [code(result), memory.read()]
            memory.clear()

        memory.clear()
        for name, (now, queued, size) in FILLS.items():
            value = 0x01020304 & ((1 << 8 * size) - 1)
            look(name, now(memory.device + size, value, 3))
            look(f"{name} async", queued(memory.device + size, value, 3, raw))
            look(f"{name} of nothing", now(memory.device, value, 0))
            look(f"{name} to nowhere", queued(0, value, 1, raw))
            look(f"{name} of nothing to nowhere", queued(0, value, 0, raw))
            look(f"{name} between words", queued(memory.device + 1, value, 1, raw))
        for name, (now, queued, size) in FLAT_FILLS.items():
            value = 0x01020304 & ((1 << 8 * size) - 1)
            look(name, now(memory.device, 16, value, 2, 3))
            look(f"{name} async", queued(memory.device, 16, value, 2, 3, raw))
            look(f"{name} in rows wider than the pitch", queued(memory.device, 4, value, 8, 2, raw))
            look(f"{name} of one row", queued(memory.device, 4, value, 8, 1, raw))
    return seen


def copies():
    seen = {}
    with Memory() as memory, streams(True) as raw:
        mine, other, host = memory.device, memory.other, memory.address
        context = ok(driver.cuCtxGetCurrent())
        calls = {
            "cuMemcpy": lambda: driver.cuMemcpy(other, mine, 8),
            "cuMemcpyDtoD": lambda: driver.cuMemcpyDtoD(other, mine, 8),
            "cuMemcpyAsync": lambda: driver.cuMemcpyAsync(other, mine, 8, raw),
            "cuMemcpyDtoDAsync": lambda: driver.cuMemcpyDtoDAsync(other, mine, 8, raw),
            "cuMemcpyPeerAsync": lambda: driver.cuMemcpyPeerAsync(
                other, context, mine, context, 8, raw
            ),
            "cuMemcpy of pageable memory": lambda: driver.cuMemcpy(other, host, 8),
            "cuMemcpyHtoD": lambda: driver.cuMemcpyHtoD(other, host, 8),
            "cuMemcpyHtoDAsync": lambda: driver.cuMemcpyHtoDAsync(other, host, 8, raw),
            "cuMemcpy of nothing": lambda: driver.cuMemcpy(other, mine, 0),
            "cuMemcpyDtoD of nothing": lambda: driver.cuMemcpyDtoD(other, mine, 0),
            "cuMemcpyDtoD to nowhere": lambda: driver.cuMemcpyDtoD(0, mine, 8),
            "cuMemcpyHtoD to nowhere": lambda: driver.cuMemcpyHtoD(0, host, 8),
            "cuMemcpyDtoDAsync from nowhere": lambda: driver.cuMemcpyDtoDAsync(other, 0, 8, raw),
        }
        for name, call in calls.items():
            memory.clear()
            ok(driver.cuMemsetD32(mine, 0x0A0B0C0D, 1))
            ok(driver.cuCtxSynchronize())
            memory.host[:] = bytes(range(4 * WORDS))
            result = call()
            ok(driver.cuCtxSynchronize())
            seen[name] = [code(result), memory.read(other)]
    return seen


def copies_that_wait():
    """Which calls come back while a queue before them is held."""
    seen = {}
    for kind in ("legacy", "blocking", "nonblocking"):
        calls = {
            "cuMemcpyDtoD": lambda b, _: driver.cuMemcpyDtoD(b.other, b.device, 8),
            "cuMemcpyHtoD": lambda b, _: driver.cuMemcpyHtoD(b.other, b.address, 8),
            "cuMemcpyDtoH": lambda b, _: driver.cuMemcpyDtoH(b.address, b.device, 8),
            "cuMemsetD8": lambda b, _: driver.cuMemsetD8(b.device, 1, 8),
            "cuMemsetD32": lambda b, _: driver.cuMemsetD32(b.device, 1, 2),
            "cuMemcpyHtoDAsync": lambda b, raw: driver.cuMemcpyHtoDAsync(
                b.other, b.address, 8, raw
            ),
            "cuMemcpyDtoHAsync": lambda b, raw: driver.cuMemcpyDtoHAsync(
                b.address, b.device, 8, raw
            ),
            "cuMemAlloc": lambda b, _: driver.cuMemAlloc(64),
            "cuMemFree": lambda b, _: driver.cuMemFree(b.spare),
            "cuCtxSynchronize": lambda b, _: driver.cuCtxSynchronize(),
            "cuStreamSynchronize of legacy": lambda b, _: driver.cuStreamSynchronize(LEGACY),
            "cuStreamDestroy": lambda b, raw: driver.cuStreamDestroy(b.created),
            "cuMemPoolTrimTo": lambda b, _: driver.cuMemPoolTrimTo(
                ok(driver.cuDeviceGetDefaultMemPool(0)), 0
            ),
        }
        for name, call in calls.items():
            with Memory() as memory, Gate() as gate, streams(kind == "nonblocking") as made:
                memory.spare = ok(driver.cuMemAlloc(64))
                memory.created = ok(driver.cuStreamCreate(1))
                raw = LEGACY if kind == "legacy" else made
                gate.hold(raw)
                found = returns(lambda c=call, m=memory, r=raw: c(m, r), gate)
                seen[f"{name} beside a held {kind} stream"] = found
                if name != "cuMemFree":
                    ok(driver.cuMemFree(memory.spare))
                if name != "cuStreamDestroy":
                    ok(driver.cuStreamDestroy(memory.created))
    return seen


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def callbacks():
    ran = []
    with Gate() as gate, streams(True, True) as (raw, other):
        back = CALLBACK(lambda stream, status, data: ran.append([stream == raw, status, data]))
        host = HOST_FUNCTION(ran.append)
        address = driver.CUstreamCallback(ctypes.cast(back, ctypes.c_void_p).value)
        function = driver.CUhostFn(ctypes.cast(host, ctypes.c_void_p).value)
        seen = {
            "with flags": code(driver.cuStreamAddCallback(raw, address, 7, 1)),
        }
        gate.hold(raw)
        seen["add"] = code(driver.cuStreamAddCallback(raw, address, 7, 0))
        ok(driver.cuLaunchHostFunc(raw, function, 8))
        time.sleep(SETTLE / 5)  # if it were not held, it would have run
        seen["behind a gate"] = list(ran)
        gate.open()
        seen["through"] = settled(lambda: driver.cuStreamQuery(raw))
        seen["in order"] = ran
        ok(driver.cuStreamBeginCapture(other, RELAXED))
        seen["in a capture"] = [
            code(driver.cuStreamAddCallback(other, address, 7, 0)),
            capture_status(other),
            end_capture(other),
        ]
    return seen


def wide_value_gates():
    """Waits on 64 bits, and what neither width takes."""
    seen = {}
    flags = {"geq": 0, "eq": 1, "and": 2, "nor": 3}
    high = 1 << 40
    for name, flag in flags.items():
        for value, there in ((high, high), (high, high + 1), (high + 1, high), (1, (1 << 64) - 1)):
            with Gate() as gate, streams(True) as raw:
                word = ctypes.c_uint64.from_address(int(gate.word) + 8)
                word.value = there
                ok(driver.cuStreamWaitValue64(raw, gate.device_word + 8, value, flag))
                seen[f"{name}: {there} against {value}"] = settled(
                    lambda raw=raw: driver.cuStreamQuery(raw)
                )
                for let_go in (value, ~value, 0):  # what each condition accepts
                    word.value = let_go
                    if settled(lambda raw=raw: driver.cuStreamQuery(raw)) == "reached":
                        break
    with Gate() as gate, streams(True) as raw:
        word = ctypes.c_uint64.from_address(int(gate.word) + 8)
        ok(driver.cuStreamWriteValue64(raw, gate.device_word + 8, high, 0))
        ok(driver.cuStreamSynchronize(raw))
        seen["written"] = word.value == high
        waits = {32: driver.cuStreamWaitValue32, 64: driver.cuStreamWaitValue64}
        writes = {32: driver.cuStreamWriteValue32, 64: driver.cuStreamWriteValue64}
        for bits in (32, 64):
            for verb, calls in (("wait", waits), ("write", writes)):
                call = calls[bits]
                seen[f"{verb} of {bits} bits at an odd place"] = code(
                    call(raw, gate.device_word + 2, 0, 0)
                )
                seen[f"{verb} of {bits} bits nowhere"] = code(call(raw, 0, 0, 0))
                seen[f"{verb} of {bits} bits with unknown flags"] = code(
                    call(raw, gate.device_word + 8, 0, 1 << 10)
                )
        ok(driver.cuStreamSynchronize(raw))
    return seen


def pointers():
    """What is told of memory of each kind."""
    kinds = driver.CUpointer_attribute
    asked = {
        "type": kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        "device": kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        "managed": kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED,
        "device pointer": kinds.CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        "host pointer": kinds.CU_POINTER_ATTRIBUTE_HOST_POINTER,
        "context": kinds.CU_POINTER_ATTRIBUTE_CONTEXT,
        "pool": kinds.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    }
    seen = {}
    with streams(True) as raw:
        ordinary = ctypes.create_string_buffer(64)
        context = int(ok(driver.cuCtxGetCurrent()))
        pinned = ok(driver.cuMemAllocHost(64))
        mapped = ok(driver.cuMemHostAlloc(64, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        device = ok(driver.cuMemAlloc(64))
        pooled = ok(driver.cuMemAllocAsync(64, raw))
        ok(driver.cuStreamSynchronize(raw))
        pointers = {
            "device memory": int(device),
            "memory of a pool": int(pooled),
            "pinned memory": int(pinned),
            "mapped memory": int(mapped),
            "ordinary memory": ctypes.addressof(ordinary),
        }

        def told(name, value, pointer):
            """Without an address: what it is of those that are known."""
            if name in ("type", "device", "managed"):
                return int(value)
            known = {0: "none", pointer: "the pointer", context: "the context"}
            known[int(ok(driver.cuDeviceGetDefaultMemPool(0)))] = "the default pool"
            return known.get(int(value), "another")

        for memory, pointer in pointers.items():
            for name, attribute in asked.items():
                result = driver.cuPointerGetAttribute(attribute, pointer)
                found = code(result) if result[0] else told(name, result[1], pointer)
                seen[f"{name} of {memory}"] = found
            result = driver.cuPointerGetAttributes(len(asked), list(asked.values()), pointer)
            found = code(result)
            if not result[0]:
                values = zip(asked, result[1], strict=True)
                found = [told(name, value, pointer) for name, value in values]
            seen[f"all of {memory}"] = found
        seen["device pointer of ordinary memory"] = code(
            driver.cuMemHostGetDevicePointer(pointers["ordinary memory"], 0)
        )
        seen["device pointer with flags"] = code(driver.cuMemHostGetDevicePointer(mapped, 1))
        seen["pinned alloc of nothing"] = code(driver.cuMemAllocHost(0))
        seen["mapped alloc of nothing"] = code(driver.cuMemHostAlloc(0, 0))
        seen["mapped alloc with unknown flags"] = code(driver.cuMemHostAlloc(64, 1 << 10))
        seen["free of pinned memory as the device's"] = code(driver.cuMemFree(pinned))
        seen["free of device memory as pinned"] = code(driver.cuMemFreeHost(device))
        seen["free of pinned memory"] = code(driver.cuMemFreeHost(pinned))
        seen["free of mapped memory"] = code(driver.cuMemFreeHost(mapped))
        seen["free of no pinned memory"] = code(driver.cuMemFreeHost(0))
        seen["free inside device memory"] = code(driver.cuMemFree(int(device) + 16))
        seen["free of device memory"] = code(driver.cuMemFree(device))
        seen["free of memory of a pool"] = code(driver.cuMemFreeAsync(pooled, raw))
        free, total = ok(driver.cuMemGetInfo())
        seen["no more is free than there is"] = 0 < free <= total
        seen["total is the device's"] = total == answer(driver.cuDeviceTotalMem(0))
        ok(driver.cuStreamSynchronize(raw))
    return seen
