"""Events, gates, host functions, memory: work on queues, and what holds it."""

from __future__ import annotations

import contextlib
import ctypes
import time

from cuda.bindings import driver

from emulator.observations.probe import (
    LEGACY,
    PER_THREAD,
    Gate,
    answer,
    code,
    events,
    in_thread,
    ok,
    settled,
    streams,
)

EXTERNAL = 1


def event_codes():
    seen = {
        "create with unknown flags": code(driver.cuEventCreate(8)),
        "create interprocess with timing": code(driver.cuEventCreate(4)),
    }
    with streams(True) as raw, events() as event, events(2, 0) as (start, end):
        seen["query unrecorded"] = code(driver.cuEventQuery(event))
        seen["synchronize unrecorded"] = code(driver.cuEventSynchronize(event))
        seen["wait unrecorded"] = code(driver.cuStreamWaitEvent(raw, event, 0))
        seen["wait with unknown flags"] = code(driver.cuStreamWaitEvent(raw, event, 2))
        seen["record with unknown flags"] = code(driver.cuEventRecordWithFlags(event, raw, 2))
        seen["external record outside a capture"] = code(
            driver.cuEventRecordWithFlags(event, raw, EXTERNAL)
        )
        seen["external wait outside a capture"] = code(
            driver.cuStreamWaitEvent(raw, event, EXTERNAL)
        )
        seen["elapsed unrecorded"] = code(driver.cuEventElapsedTime(start, end))
        ok(driver.cuEventRecord(start, raw))
        seen["elapsed half recorded"] = code(driver.cuEventElapsedTime(start, end))
        ok(driver.cuEventRecord(end, raw))
        ok(driver.cuEventSynchronize(end))
        result = driver.cuEventElapsedTime(start, end)
        seen["elapsed"] = code(result) if result[0] else result[1] >= 0
        ok(driver.cuEventRecord(event, raw))
        ok(driver.cuEventSynchronize(event))
        seen["elapsed without timing"] = code(driver.cuEventElapsedTime(start, event))
        with streams(True) as other:
            ok(driver.cuEventRecord(start, other))
            ok(driver.cuEventSynchronize(start))
            result = driver.cuEventElapsedTime(end, start)
            seen["elapsed across streams"] = code(result) if result[0] else result[1] >= 0
    return seen


def event_holds():
    """Which record an event stands for while queues are held."""
    seen = {}
    with contextlib.ExitStack() as stack:
        gate = stack.enter_context(Gate())
        held, free, waiting = stack.enter_context(streams(True, True, True))
        event, point, gone = stack.enter_context(events(3))
        start, end = stack.enter_context(events(2, 0))
        ok(driver.cuEventRecord(start, held))
        gate.hold(held)
        ok(driver.cuEventRecord(event, held))
        ok(driver.cuEventRecord(end, held))
        seen["query of a held record"] = settled(lambda: driver.cuEventQuery(event))
        seen["elapsed of a held record"] = code(driver.cuEventElapsedTime(start, end))
        ok(driver.cuStreamWaitEvent(waiting, event, 0))
        ok(driver.cuEventRecord(event, free))
        ok(driver.cuEventRecord(point, waiting))
        seen["a wait keeps the record it was given"] = settled(lambda: driver.cuEventQuery(point))
        seen["the event follows its last record"] = settled(lambda: driver.cuEventQuery(event))
        seen["elapsed of a reached and a held"] = code(driver.cuEventElapsedTime(start, end))
        ok(driver.cuEventRecord(gone, held))
        with streams(True) as late:
            ok(driver.cuStreamWaitEvent(late, gone, 0))
            ok(driver.cuEventRecord(point, late))
            third = ok(driver.cuEventCreate(2))
            ok(driver.cuEventRecord(third, held))
            ok(driver.cuStreamWaitEvent(late, third, 0))
            seen["destroy of a pending event"] = code(driver.cuEventDestroy(third))
            seen["its wait still holds"] = settled(lambda: driver.cuStreamQuery(late))
            gate.open()
            seen["until it is reached"] = settled(lambda: driver.cuStreamQuery(late))
    return seen


KINDS = ("blocking", "nonblocking", "legacy", "per-thread")


def _of_kind(kind, made):
    return {"legacy": LEGACY, "per-thread": PER_THREAD, **made}[kind]


def implicit_order():
    """Who waits for whom without being told: each kind of queue behind a held one of each kind."""
    seen = {}
    for holder in KINDS:
        for follower in KINDS:
            if holder == follower in ("legacy", "per-thread"):
                continue
            with Gate() as gate, streams(False, True, False, True) as raws, events() as event:
                held = _of_kind(holder, {"blocking": raws[0], "nonblocking": raws[1]})
                after = _of_kind(follower, {"blocking": raws[2], "nonblocking": raws[3]})
                gate.hold(held)
                ok(driver.cuEventRecord(event, after))
                name = f"{follower} after {holder}"
                seen[name] = settled(lambda e=event: driver.cuEventQuery(e))
                seen[f"query of {name}"] = settled(lambda raw=after: driver.cuStreamQuery(raw))
    with Gate() as gate, streams(False) as raw:
        gate.hold(raw)
        seen["query of an empty legacy beside a held blocking stream"] = settled(
            lambda: driver.cuStreamQuery(LEGACY)
        )
    context = ok(driver.cuCtxGetCurrent())
    with Gate() as gate:
        gate.hold(PER_THREAD)
        seen["another thread's per-thread stream"] = in_thread(
            lambda: settled(lambda: driver.cuStreamQuery(PER_THREAD)), context=context
        )
    return seen


def value_gates():
    """The conditions of a wait on a value, and what a write leaves."""
    seen = {}
    flags = {"geq": 0, "eq": 1, "and": 2, "nor": 3}
    word = 4  # of the gate's, counted in bytes from it
    for name, flag in flags.items():
        for value, there in ((4, 4), (4, 5), (5, 4), (1, 0xFFFFFFFF)):
            with Gate() as gate, streams(True) as raw:
                gate.view[1] = there
                ok(driver.cuStreamWaitValue32(raw, gate.device_word + word, value, flag))
                seen[f"{name}: {there} against {value}"] = settled(
                    lambda raw=raw: driver.cuStreamQuery(raw)
                )
                for let_go in (value, value ^ 0xFFFFFFFF, 0):  # what each condition accepts
                    gate.view[1] = let_go
                    if settled(lambda raw=raw: driver.cuStreamQuery(raw)) == "reached":
                        break
    with Gate() as gate, streams(True) as raw:
        gate.hold(raw)
        ok(driver.cuStreamWriteValue32(raw, gate.device_word + 8, 7, 0))
        seen["a write behind the gate"] = gate.view[2]
        gate.open()
        ok(driver.cuStreamSynchronize(raw))
        seen["a write once it opened"] = gate.view[2]
    with Gate() as gate:
        raw = int(ok(driver.cuStreamCreate(1)))
        gate.hold(raw)
        ok(driver.cuStreamWriteValue32(raw, gate.device_word + 8, 7, 0))
        seen["destroy of a busy stream"] = code(driver.cuStreamDestroy(raw))
        gate.open()
        ok(driver.cuCtxSynchronize())
        seen["its work is done all the same"] = _becomes(gate, 7)
    return seen


def _becomes(gate, value):
    deadline = time.monotonic() + 2
    while gate.view[2] != value and time.monotonic() < deadline:
        time.sleep(0.001)
    return gate.view[2]


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def host_functions():
    """In which order they run, and what they may call."""
    ran, codes = [], {}
    with streams(True) as raw, events() as event:
        ok(driver.cuEventRecord(event, raw))
        ok(driver.cuStreamSynchronize(raw))
        calls = {
            "cuStreamQuery": lambda: driver.cuStreamQuery(raw),
            "cuEventQuery": lambda: driver.cuEventQuery(event),
            "cuEventRecord": lambda: driver.cuEventRecord(event, raw),
            "cuStreamGetId": lambda: driver.cuStreamGetId(raw),
            "cuStreamIsCapturing": lambda: driver.cuStreamIsCapturing(raw),
            "cuCtxGetCurrent": driver.cuCtxGetCurrent,
            "cuStreamCreate": lambda: driver.cuStreamCreate(1),
            "cuDeviceGetCount": driver.cuDeviceGetCount,
            "cuInit": lambda: driver.cuInit(0),
        }

        def first(_):
            ran.append(1)
            for name, call in calls.items():
                codes[name] = code(call())

        kept = [HOST_FUNCTION(first), HOST_FUNCTION(lambda _: ran.append(2))]
        for function in kept:
            address = ctypes.cast(function, ctypes.c_void_p).value
            ok(driver.cuLaunchHostFunc(raw, driver.CUhostFn(address), 0))
        deadline = time.monotonic() + 10
        while code(driver.cuStreamQuery(raw)) == "NOT_READY" and time.monotonic() < deadline:
            time.sleep(0.01)  # not a synchronise: the functions need this thread's GIL
        seen = {f"inside one, {name}": found for name, found in codes.items()}
        seen["order"] = ran
    return seen


def memory():
    seen = {
        "alloc of nothing": code(driver.cuMemAlloc(0)),
        "free of null": code(driver.cuMemFree(0)),
        "free of a stranger": code(driver.cuMemFree(4096)),
        "pool of the device is its default": int(ok(driver.cuDeviceGetMemPool(0)))
        == int(ok(driver.cuDeviceGetDefaultMemPool(0))),
    }
    with Gate() as gate, streams(True) as raw, contextlib.ExitStack() as undo:
        pointer = ok(driver.cuMemAlloc(64))
        undo.callback(driver.cuMemFree, pointer)
        host = (ctypes.c_uint32 * 4)()
        gate.hold(raw)
        ok(driver.cuMemsetD32Async(pointer, 7, 4, raw))
        ok(driver.cuMemsetD8Async(int(pointer) + 4, 1, 4, raw))
        ok(driver.cuMemcpyDtoDAsync(int(pointer) + 16, pointer, 16, raw))
        gate.open()
        ok(driver.cuStreamSynchronize(raw))
        ok(driver.cuMemcpyDtoH(ctypes.addressof(host), int(pointer) + 16, 16))
        seen["fills and a copy in order"] = list(host)
        pooled = ok(driver.cuMemAllocAsync(64, raw))
        ok(driver.cuMemsetD32Async(pooled, 9, 4, raw))
        ok(driver.cuMemcpyDtoHAsync(ctypes.addressof(host), pooled, 16, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["from the pool"] = list(host)
        seen["free in order"] = code(driver.cuMemFreeAsync(pooled, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["async free of a stranger"] = code(driver.cuMemFreeAsync(4096, raw))
        kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        seen["type of device memory"] = answer(driver.cuPointerGetAttribute(kind, pointer))
        seen["type of pinned memory"] = answer(driver.cuPointerGetAttribute(kind, gate.word))
        ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        seen["device of memory"] = answer(driver.cuPointerGetAttribute(ordinal, pointer))
        seen["type of a stranger's"] = answer(driver.cuPointerGetAttribute(kind, id(host)))
    return seen
