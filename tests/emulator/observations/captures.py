"""Capture: what is legal beside it, what breaks it, what becomes a node; and graphs."""

from __future__ import annotations

import contextlib
import ctypes
import itertools

from cuda.bindings import driver

from emulator.observations.pools import THRESHOLD, access, location, new_pool, properties
from emulator.observations.probe import (
    GLOBAL,
    LEGACY,
    MODES,
    PER_THREAD,
    RELAXED,
    THREAD_LOCAL,
    capture_status,
    code,
    end_capture,
    events,
    exchange,
    ok,
    streams,
)

EXTERNAL = 1
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
IDLE = HOST_FUNCTION(lambda _: None)
FUNCTION = driver.CUhostFn(ctypes.cast(IDLE, ctypes.c_void_p).value)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
IDLE_CALLBACK = CALLBACK(lambda *_: None)
BACK = driver.CUstreamCallback(ctypes.cast(IDLE_CALLBACK, ctypes.c_void_p).value)
MEMORY_TYPE = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE


class Beside:
    """What exists while a stream captures: everything idle, made before."""

    def __init__(self, undo, nonblocking):
        self.capturing = undo.enter_context(streams(nonblocking))
        self.other = undo.enter_context(streams(True))
        self.recorded, self.fresh = undo.enter_context(events(2))
        ok(driver.cuEventRecord(self.recorded, self.other))
        ok(driver.cuStreamSynchronize(self.other))
        self.memory = int(ok(driver.cuMemAlloc(64)))
        undo.callback(driver.cuMemFree, self.memory)
        self.spare = int(ok(driver.cuMemAlloc(64)))
        self.host = (ctypes.c_uint32 * 16)()
        self.address = ctypes.addressof(self.host)
        self.pinned = ok(driver.cuMemAllocHost(64))
        self.pooled = ok(driver.cuMemAllocAsync(64, self.other))
        ok(driver.cuStreamSynchronize(self.other))
        self.device_pool, self.pool = ok(driver.cuDeviceGetMemPool(0)), new_pool()
        self.context = ok(driver.cuCtxGetCurrent())
        graph = ok(driver.cuGraphCreate(0))
        self.executable = ok(driver.cuGraphInstantiate(graph, 0))
        self.graph = graph
        undo.callback(self.free)

    def free(self):
        ok(driver.cuDeviceSetMemPool(0, self.device_pool))
        ok(driver.cuMemPoolDestroy(self.pool))
        ok(driver.cuGraphDestroy(self.graph))
        driver.cuGraphExecDestroy(self.executable)
        driver.cuMemFree(self.spare)
        driver.cuMemFreeHost(self.pinned)
        driver.cuMemFreeAsync(self.pooled, self.other)
        driver.cuStreamSynchronize(self.other)

    def free_spare(self):
        result = driver.cuMemFree(self.spare)
        if not result[0]:
            self.spare = 0
        return result

    def free_pinned(self):
        result = driver.cuMemFreeHost(self.pinned)
        if not result[0]:
            self.pinned = 0
        return result

    def free_pooled(self, stream):
        result = driver.cuMemFreeAsync(self.pooled, stream)
        if not result[0]:
            self.pooled = 0
        return result

    def destroy_executable(self):
        result = driver.cuGraphExecDestroy(self.executable)
        if not result[0]:
            self.executable = ok(driver.cuGraphInstantiate(self.graph, 0))
        return result

    @staticmethod
    def make_and_destroy(make, destroy):
        result = make()
        return result if result[0] else destroy(result[1])


CALLS = {
    # asked of the capturing stream itself
    "cuStreamGetFlags": lambda b: driver.cuStreamGetFlags(b.capturing),
    "cuStreamGetId": lambda b: driver.cuStreamGetId(b.capturing),
    "cuStreamGetDevice": lambda b: driver.cuStreamGetDevice(b.capturing),
    "cuStreamGetCtx": lambda b: driver.cuStreamGetCtx(b.capturing),
    "cuStreamGetPriority": lambda b: driver.cuStreamGetPriority(b.capturing),
    "cuStreamGetCaptureInfo": lambda b: driver.cuStreamGetCaptureInfo(b.capturing),
    "cuStreamQuery": lambda b: driver.cuStreamQuery(b.capturing),
    "cuStreamSynchronize": lambda b: driver.cuStreamSynchronize(b.capturing),
    "cuStreamBeginCapture again": lambda b: driver.cuStreamBeginCapture(b.capturing, RELAXED),
    # work on it
    "cuMemsetD32Async": lambda b: driver.cuMemsetD32Async(b.memory, 1, 4, b.capturing),
    "cuMemcpyDtoDAsync": lambda b: driver.cuMemcpyDtoDAsync(b.memory, b.memory + 32, 16,
                                                            b.capturing),
    "cuMemcpyDtoHAsync": lambda b: driver.cuMemcpyDtoHAsync(ctypes.addressof(b.host), b.memory,
                                                            16, b.capturing),
    "cuLaunchHostFunc": lambda b: driver.cuLaunchHostFunc(b.capturing, FUNCTION, 0),
    "cuStreamWaitValue32": lambda b: driver.cuStreamWaitValue32(b.capturing, b.memory, 0, 0),
    "cuStreamWriteValue32": lambda b: driver.cuStreamWriteValue32(b.capturing, b.memory, 0, 0),
    "cuGraphLaunch": lambda b: driver.cuGraphLaunch(b.executable, b.capturing),
    "cuGraphUpload": lambda b: driver.cuGraphUpload(b.executable, b.capturing),
    "cuEventRecord": lambda b: driver.cuEventRecord(b.fresh, b.capturing),
    "external record": lambda b: driver.cuEventRecordWithFlags(b.fresh, b.capturing, EXTERNAL),
    "external wait": lambda b: driver.cuStreamWaitEvent(b.capturing, b.recorded, EXTERNAL),
    "external wait unrecorded": lambda b: driver.cuStreamWaitEvent(b.capturing, b.fresh, EXTERNAL),
    "wait for a reached event": lambda b: driver.cuStreamWaitEvent(b.capturing, b.recorded, 0),
    "wait for an unrecorded event": lambda b: driver.cuStreamWaitEvent(b.capturing, b.fresh, 0),
    # beside it
    "query of another": lambda b: driver.cuStreamQuery(b.other),
    "synchronize of another": lambda b: driver.cuStreamSynchronize(b.other),
    "id of another": lambda b: driver.cuStreamGetId(b.other),
    "flags of another": lambda b: driver.cuStreamGetFlags(b.other),
    "status of another": lambda b: driver.cuStreamIsCapturing(b.other),
    "record on another": lambda b: driver.cuEventRecord(b.fresh, b.other),
    "fill on another": lambda b: driver.cuMemsetD32Async(b.memory, 1, 4, b.other),
    "launch on another": lambda b: driver.cuGraphLaunch(b.executable, b.other),
    "query of an event": lambda b: driver.cuEventQuery(b.recorded),
    "query of an unrecorded event": lambda b: driver.cuEventQuery(b.fresh),
    "synchronize of an event": lambda b: driver.cuEventSynchronize(b.recorded),
    "cuCtxSynchronize": lambda b: driver.cuCtxSynchronize(),
    "cuMemAlloc": lambda b: b.make_and_destroy(lambda: driver.cuMemAlloc(64), driver.cuMemFree),
    "cuMemFree": lambda b: b.free_spare(),
    "cuMemAllocAsync on another": lambda b: b.make_and_destroy(
        lambda: driver.cuMemAllocAsync(64, b.other),
        lambda pointer: driver.cuMemFreeAsync(pointer, b.other)),
    "cuMemcpyHtoD": lambda b: driver.cuMemcpyHtoD(b.memory, ctypes.addressof(b.host), 16),
    "cuGraphExecDestroy": lambda b: b.destroy_executable(),
    "create and destroy a stream": lambda b: b.make_and_destroy(
        lambda: driver.cuStreamCreate(1), driver.cuStreamDestroy),
    "create and destroy an event": lambda b: b.make_and_destroy(
        lambda: driver.cuEventCreate(2), driver.cuEventDestroy),
    # memory beside it
    "cuMemHostAlloc": lambda b: b.make_and_destroy(
        lambda: driver.cuMemHostAlloc(64, 0), driver.cuMemFreeHost),
    "cuMemAllocHost": lambda b: b.make_and_destroy(
        lambda: driver.cuMemAllocHost(64), driver.cuMemFreeHost),
    "cuMemFreeHost": lambda b: b.free_pinned(),
    "cuMemHostGetDevicePointer": lambda b: driver.cuMemHostGetDevicePointer(b.pinned, 0),
    "cuMemGetInfo": lambda b: driver.cuMemGetInfo(),
    "cuPointerGetAttribute": lambda b: driver.cuPointerGetAttribute(MEMORY_TYPE, b.memory),
    "cuPointerGetAttributes": lambda b: driver.cuPointerGetAttributes(1, [MEMORY_TYPE], b.memory),
    "cuMemcpy": lambda b: driver.cuMemcpy(b.memory, b.memory + 32, 16),
    "cuMemcpyDtoH": lambda b: driver.cuMemcpyDtoH(b.address, b.memory, 16),
    "cuMemcpyDtoD": lambda b: driver.cuMemcpyDtoD(b.memory, b.memory + 32, 16),
    "cuMemsetD8": lambda b: driver.cuMemsetD8(b.memory, 1, 4),
    "cuMemsetD16": lambda b: driver.cuMemsetD16(b.memory, 1, 4),
    "cuMemsetD32": lambda b: driver.cuMemsetD32(b.memory, 1, 4),
    "cuMemsetD2D8": lambda b: driver.cuMemsetD2D8(b.memory, 16, 1, 4, 2),
    "cuMemsetD2D16": lambda b: driver.cuMemsetD2D16(b.memory, 16, 1, 4, 2),
    "cuMemsetD2D32": lambda b: driver.cuMemsetD2D32(b.memory, 16, 1, 4, 2),
    # pools beside it
    "cuMemFreeAsync on another": lambda b: b.free_pooled(b.other),
    "cuMemAllocFromPoolAsync on another": lambda b: b.make_and_destroy(
        lambda: driver.cuMemAllocFromPoolAsync(64, b.pool, b.other),
        lambda pointer: driver.cuMemFreeAsync(pointer, b.other)),
    "cuDeviceGetMemPool": lambda b: driver.cuDeviceGetMemPool(0),
    "cuDeviceGetDefaultMemPool": lambda b: driver.cuDeviceGetDefaultMemPool(0),
    "cuDeviceSetMemPool": lambda b: driver.cuDeviceSetMemPool(0, b.pool),
    "cuDeviceSetMemPool of the same": lambda b: driver.cuDeviceSetMemPool(0, b.device_pool),
    "cuMemPoolCreate": lambda b: b.make_and_destroy(
        lambda: driver.cuMemPoolCreate(properties()), driver.cuMemPoolDestroy),
    "cuMemPoolTrimTo": lambda b: driver.cuMemPoolTrimTo(b.pool, 0),
    "cuMemPoolGetAttribute": lambda b: driver.cuMemPoolGetAttribute(b.pool, THRESHOLD),
    "cuMemPoolSetAttribute": lambda b: driver.cuMemPoolSetAttribute(
        b.pool, THRESHOLD, driver.cuuint64_t(1)),
    "cuMemPoolGetAccess": lambda b: driver.cuMemPoolGetAccess(b.pool, location()),
    "cuMemPoolSetAccess": lambda b: driver.cuMemPoolSetAccess(b.pool, [access(0, 3)], 1),
    # graphs and what they keep
    "cuGraphCreate": lambda b: b.make_and_destroy(
        lambda: driver.cuGraphCreate(0), driver.cuGraphDestroy),
    "cuGraphInstantiate": lambda b: b.make_and_destroy(
        lambda: driver.cuGraphInstantiate(b.graph, 0), driver.cuGraphExecDestroy),
    "cuGraphInstantiateWithParams": lambda b: b.make_and_destroy(
        lambda: driver.cuGraphInstantiateWithParams(
            b.graph, driver.CUDA_GRAPH_INSTANTIATE_PARAMS()), driver.cuGraphExecDestroy),
    "cuGraphExecGetFlags": lambda b: driver.cuGraphExecGetFlags(b.executable),
    "cuGraphUpload on another": lambda b: driver.cuGraphUpload(b.executable, b.other),
    "cuUserObjectCreate": lambda b: b.make_and_destroy(
        lambda: driver.cuUserObjectCreate(0, FUNCTION, 1, 1),
        lambda made: driver.cuUserObjectRelease(made, 1)),
    # contexts and devices beside it
    "cuDevicePrimaryCtxRetain": lambda b: b.make_and_destroy(
        lambda: driver.cuDevicePrimaryCtxRetain(0),
        lambda _: driver.cuDevicePrimaryCtxRelease(0)),
    "cuCtxGetLimit": lambda b: driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE),
    "cuCtxGetFlags": lambda b: driver.cuCtxGetFlags(),
    "cuCtxGetId": lambda b: driver.cuCtxGetId(b.context),
    "cuDeviceTotalMem": lambda b: driver.cuDeviceTotalMem(0),
    # more work on it
    "cuStreamAddCallback": lambda b: driver.cuStreamAddCallback(b.capturing, BACK, 0, 0),
    "cuStreamWaitValue64": lambda b: driver.cuStreamWaitValue64(b.capturing, b.memory, 0, 0),
    "cuStreamWriteValue64": lambda b: driver.cuStreamWriteValue64(b.capturing, b.memory, 0, 0),
    "cuStreamGetGreenCtx": lambda b: driver.cuStreamGetGreenCtx(b.capturing),
    "cuMemcpyAsync": lambda b: driver.cuMemcpyAsync(b.memory, b.memory + 32, 16, b.capturing),
    "cuMemcpyHtoDAsync": lambda b: driver.cuMemcpyHtoDAsync(b.memory, b.address, 16, b.capturing),
    "cuMemcpyPeerAsync": lambda b: driver.cuMemcpyPeerAsync(
        b.memory, b.context, b.memory + 32, b.context, 16, b.capturing),
    "cuMemsetD8Async": lambda b: driver.cuMemsetD8Async(b.memory, 1, 4, b.capturing),
    "cuMemsetD2D32Async": lambda b: driver.cuMemsetD2D32Async(
        b.memory, 16, 1, 4, 2, b.capturing),
    "cuMemAllocAsync": lambda b: driver.cuMemAllocAsync(64, b.capturing),
    "cuMemAllocFromPoolAsync": lambda b: driver.cuMemAllocFromPoolAsync(64, b.pool, b.capturing),
    "cuMemFreeAsync of what was there": lambda b: b.free_pooled(b.capturing),
    # the default streams beside it
    "query of legacy": lambda b: driver.cuStreamQuery(LEGACY),
    "synchronize of legacy": lambda b: driver.cuStreamSynchronize(LEGACY),
    "id of legacy": lambda b: driver.cuStreamGetId(LEGACY),
    "flags of legacy": lambda b: driver.cuStreamGetFlags(LEGACY),
    "device of legacy": lambda b: driver.cuStreamGetDevice(LEGACY),
    "context of legacy": lambda b: driver.cuStreamGetCtx(LEGACY),
    "priority of legacy": lambda b: driver.cuStreamGetPriority(LEGACY),
    "status of legacy": lambda b: driver.cuStreamIsCapturing(LEGACY),
    "capture info of legacy": lambda b: driver.cuStreamGetCaptureInfo(LEGACY),
    "record on legacy": lambda b: driver.cuEventRecord(b.fresh, LEGACY),
    "wait on legacy": lambda b: driver.cuStreamWaitEvent(LEGACY, b.recorded, 0),
    "fill on legacy": lambda b: driver.cuMemsetD32Async(b.memory, 1, 4, LEGACY),
    "id of per-thread": lambda b: driver.cuStreamGetId(PER_THREAD),
    "record on per-thread": lambda b: driver.cuEventRecord(b.fresh, PER_THREAD),
}  # fmt: skip


def calls_beside_a_capture():
    """Each call's code, what the capture is afterwards, and how it ends."""
    seen = {}
    for (mode, number), nonblocking, relaxed in itertools.product(
        MODES.items(), (True, False), (False, True)
    ):
        kind = "nonblocking" if nonblocking else "blocking"
        for name, call in CALLS.items():
            with contextlib.ExitStack() as undo:
                beside = Beside(undo, nonblocking)
                ok(driver.cuStreamBeginCapture(beside.capturing, number))
                if relaxed:
                    exchange(RELAXED)
                found = code(call(beside))
                if relaxed:
                    exchange(GLOBAL)
                status = capture_status(beside.capturing)
                ended = end_capture(beside.capturing)
                exchanged = ", relaxed thread" if relaxed else ""
                seen[f"{mode}, {kind}{exchanged}: {name}"] = [found, status, ended]
                ok(driver.cuCtxSynchronize())
    return seen


def captured_events():
    """What a captured event answers, during its capture and after."""
    seen = {}
    for name, call in {
        "query": lambda event, raw, other: driver.cuEventQuery(event),
        "synchronize": lambda event, raw, other: driver.cuEventSynchronize(event),
        "elapsed": lambda event, raw, other: driver.cuEventElapsedTime(event, event),
        "wait on legacy": lambda event, raw, other: driver.cuStreamWaitEvent(LEGACY, event, 0),
        "record again outside": lambda event, raw, other: driver.cuEventRecord(event, other),
        "external wait elsewhere": lambda event, raw, other: driver.cuStreamWaitEvent(
            other, event, EXTERNAL),
    }.items():  # fmt: skip
        with streams(True, True) as (raw, other), events(1, 0) as event:
            ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
            exchange(RELAXED)
            ok(driver.cuEventRecord(event, raw))
            found = code(call(event, raw, other))
            exchange(GLOBAL)
            seen[f"{name} during"] = [found, capture_status(raw), end_capture(raw)]
            if not name.startswith("record"):
                seen[f"{name} after"] = code(call(event, raw, other))
            seen[f"{name}: record afterwards"] = code(driver.cuEventRecord(event, raw))
            ok(driver.cuStreamSynchronize(raw))
            ok(driver.cuStreamSynchronize(other))
    with streams(True, True) as (raw, other), events() as event:
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        ok(driver.cuEventRecord(event, raw))
        seen["ended"] = end_capture(raw)
        seen["wait after its capture"] = code(driver.cuStreamWaitEvent(other, event, 0))
        seen["the waiting stream"] = capture_status(other)
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        seen["wait in the next capture"] = code(driver.cuStreamWaitEvent(raw, event, 0))
        seen["the next capture"] = [capture_status(raw), end_capture(raw)]
    return seen
