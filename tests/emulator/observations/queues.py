"""Initialisation, devices, contexts and streams."""

from __future__ import annotations

import os
import signal

from cuda.bindings import driver

from emulator.observations.probe import (
    LEGACY,
    PER_THREAD,
    answer,
    code,
    current,
    device_count,
    in_thread,
    new_context,
    ok,
    primary,
    streams,
)


def before_cuinit():
    """Asked first of all."""
    return {
        "cuDeviceGetCount": code(driver.cuDeviceGetCount()),
        "cuCtxGetCurrent": code(driver.cuCtxGetCurrent()),
        "cuCtxSynchronize": code(driver.cuCtxSynchronize()),
        "cuStreamCreate": code(driver.cuStreamCreate(0)),
        "cuEventCreate": code(driver.cuEventCreate(0)),
        "cuDriverGetVersion": code(driver.cuDriverGetVersion()),
        "cuGetErrorName": code(driver.cuGetErrorName(driver.CUresult(0))),
        "cuInit with flags": code(driver.cuInit(1)),
    }


def without_a_context():
    return {
        "cuCtxGetCurrent": int(ok(driver.cuCtxGetCurrent())),
        "cuCtxGetDevice": code(driver.cuCtxGetDevice()),
        "cuCtxPopCurrent": code(driver.cuCtxPopCurrent()),
        "cuCtxSetCurrent of none": code(driver.cuCtxSetCurrent(0)),
        "cuCtxSynchronize": code(driver.cuCtxSynchronize()),
        "cuCtxGetStreamPriorityRange": code(driver.cuCtxGetStreamPriorityRange()),
        "cuStreamCreate": code(driver.cuStreamCreate(0)),
        "cuEventCreate": code(driver.cuEventCreate(0)),
        "cuMemAlloc": code(driver.cuMemAlloc(4)),
        "cuStreamGetId of legacy": code(driver.cuStreamGetId(LEGACY)),
        "cuStreamGetId of per-thread": code(driver.cuStreamGetId(PER_THREAD)),
        "cuStreamGetCtx of legacy": code(driver.cuStreamGetCtx(LEGACY)),
        "cuStreamQuery of legacy": code(driver.cuStreamQuery(LEGACY)),
        "cuStreamIsCapturing of legacy": code(driver.cuStreamIsCapturing(LEGACY)),
    }


def devices():
    count = device_count()
    return {
        "get -1": code(driver.cuDeviceGet(-1)),
        "get one too many": code(driver.cuDeviceGet(count)),
        "name of one too many": code(driver.cuDeviceGetName(64, count)),
        "retain of one too many": code(driver.cuDevicePrimaryCtxRetain(count)),
        "release without retain": code(driver.cuDevicePrimaryCtxRelease(0)),
        "attribute of one too many": code(
            driver.cuDeviceGetAttribute(
                driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, count
            )
        ),
        "error name of 600": ok(driver.cuGetErrorName(driver.CUresult(600))).decode(),
        "error name of 906": ok(driver.cuGetErrorName(driver.CUresult(906))).decode(),
    }


def contexts():
    first, again = primary(), primary()
    ok(driver.cuDevicePrimaryCtxRelease(0))
    ok(driver.cuCtxSetCurrent(first))
    seen = {
        "primary retained twice is one": int(first) == int(again),
        "primary flags and activity": [
            int(value) for value in ok(driver.cuDevicePrimaryCtxGetState(0))
        ],
        "current after set": int(ok(driver.cuCtxGetCurrent())) == int(first),
        "priority range": [int(value) for value in ok(driver.cuCtxGetStreamPriorityRange())],
    }
    made = new_context()
    seen["created is current"] = int(ok(driver.cuCtxGetCurrent())) == int(made) != int(first)
    seen["device of created"] = int(ok(driver.cuCtxGetDevice()))
    seen["ids differ"] = int(ok(driver.cuCtxGetId(first))) != int(ok(driver.cuCtxGetId(made)))
    seen["id of none is the current one's"] = int(ok(driver.cuCtxGetId(0))) == int(
        ok(driver.cuCtxGetId(made))
    )
    ok(driver.cuCtxSetCurrent(0))
    seen["setting none uncovers what was below"] = int(ok(driver.cuCtxGetCurrent())) == int(first)
    ok(driver.cuCtxPushCurrent(made))
    seen["destroy of the current"] = code(driver.cuCtxDestroy(made))
    seen["current after destroy"] = int(ok(driver.cuCtxGetCurrent())) == int(first)
    below = new_context()
    ok(driver.cuCtxPushCurrent(first))
    seen["destroy of one below"] = code(driver.cuCtxDestroy(below))
    ok(driver.cuCtxPopCurrent())
    seen["use of a destroyed current"] = code(driver.cuStreamCreate(0))
    result = driver.cuCtxGetCurrent()
    seen["current of a destroyed"] = (
        code(result) if result[0] else ["none", "it"][int(result[1]) == int(below)]
    )
    ok(driver.cuCtxSetCurrent(first))
    seen["a new thread has none"] = in_thread(lambda: int(ok(driver.cuCtxGetCurrent())))
    seen["a new thread cannot create"] = in_thread(lambda: code(driver.cuStreamCreate(0)))
    return seen


def created_streams():
    seen = {}
    with streams(False, True) as (blocking, nonblocking):
        seen["flags"] = [answer(driver.cuStreamGetFlags(raw)) for raw in (blocking, nonblocking)]
        seen["priority"] = answer(driver.cuStreamGetPriority(blocking))
        seen["device"] = answer(driver.cuStreamGetDevice(blocking))
        seen["context"] = int(ok(driver.cuStreamGetCtx(blocking))) == int(
            ok(driver.cuCtxGetCurrent())
        )
        seen["ids differ"] = answer(driver.cuStreamGetId(blocking)) != answer(
            driver.cuStreamGetId(nonblocking)
        )
    for wanted in (-99, -5, -2, 0, 7):
        raw = ok(driver.cuStreamCreateWithPriority(1, wanted))
        seen[f"priority {wanted}"] = answer(driver.cuStreamGetPriority(raw))
        ok(driver.cuStreamDestroy(raw))
    seen["create with unknown flags"] = code(driver.cuStreamCreate(2))
    ids = []
    for _ in range(50):
        raw = ok(driver.cuStreamCreate(0))
        ids.append(int(ok(driver.cuStreamGetId(raw))))
        ok(driver.cuStreamDestroy(raw))
    seen["ids are never given again"] = len(set(ids)) == len(ids)
    return seen


def default_streams():
    mine = int(ok(driver.cuStreamGetId(PER_THREAD)))
    context = ok(driver.cuCtxGetCurrent())
    other = in_thread(lambda: int(ok(driver.cuStreamGetId(PER_THREAD))), context=context)
    seen = {
        "0 and 1 are one": int(ok(driver.cuStreamGetId(0))) == int(ok(driver.cuStreamGetId(1))),
        "2 is another": mine != int(ok(driver.cuStreamGetId(1))),
        "2 is each thread's own": mine != other,
        "2 keeps its id": mine == int(ok(driver.cuStreamGetId(PER_THREAD))),
    }
    for raw in (0, 1, 2):
        seen[f"flags of {raw}"] = answer(driver.cuStreamGetFlags(raw))
        seen[f"priority of {raw}"] = answer(driver.cuStreamGetPriority(raw))
        seen[f"device of {raw}"] = answer(driver.cuStreamGetDevice(raw))
        seen[f"context of {raw}"] = int(ok(driver.cuStreamGetCtx(raw))) == int(context)
        seen[f"query of {raw}"] = code(driver.cuStreamQuery(raw))
        seen[f"status of {raw}"] = answer(driver.cuStreamIsCapturing(raw))
    legacy = int(ok(driver.cuStreamGetId(LEGACY)))
    made = new_context()
    seen["legacy of another context is another"] = int(ok(driver.cuStreamGetId(1))) != legacy
    seen["per-thread of another context is another"] = int(ok(driver.cuStreamGetId(2))) != mine
    ok(driver.cuCtxDestroy(made))
    return seen


def another_context_current():
    """What a stream answers while a context that is not its own is current."""
    seen = {}
    with streams(True) as raw:
        facts = {
            "id": driver.cuStreamGetId,
            "flags": driver.cuStreamGetFlags,
            "device": driver.cuStreamGetDevice,
            "priority": driver.cuStreamGetPriority,
        }
        own = {name: answer(ask(raw)) for name, ask in facts.items()}
        made = new_context()
        for name, ask in facts.items():
            seen[name] = answer(ask(raw)) == own[name] or code(ask(raw))
        seen["context"] = int(ok(driver.cuStreamGetCtx(raw))) != int(made)
        seen["query"] = code(driver.cuStreamQuery(raw))
        seen["synchronize"] = code(driver.cuStreamSynchronize(raw))
        seen["status"] = answer(driver.cuStreamIsCapturing(raw))
        event = ok(driver.cuEventCreate(2))
        seen["record of an event of the other context"] = code(driver.cuEventRecord(event, raw))
        ok(driver.cuEventRecord(event, LEGACY))
        seen["wait for an event of the other context"] = code(
            driver.cuStreamWaitEvent(raw, event, 0)
        )
        ok(driver.cuEventDestroy(event))
        ok(driver.cuCtxDestroy(made))
        with current(primary()):
            ok(driver.cuStreamSynchronize(raw))
    return seen


def two_devices():
    if device_count() < 2:
        return {}
    seen = {}
    one = primary(1)
    with current(one):
        raw = ok(driver.cuStreamCreate(1))
        event = ok(driver.cuEventCreate(0))
        seen["device of legacy"] = answer(driver.cuStreamGetDevice(LEGACY))
        legacy = int(ok(driver.cuStreamGetId(LEGACY)))
    seen["device of a stream"] = answer(driver.cuStreamGetDevice(raw))
    seen["legacy ids differ"] = legacy != int(ok(driver.cuStreamGetId(LEGACY)))
    seen["id from the other device"] = answer(driver.cuStreamGetId(raw)) > 0
    with streams(True) as mine:
        seen["record on the other device's stream"] = code(driver.cuEventRecord(event, mine))
        seen["record on its own"] = code(driver.cuEventRecord(event, raw))
        seen["wait across devices"] = code(driver.cuStreamWaitEvent(mine, event, 0))
        ok(driver.cuStreamSynchronize(mine))
    seen["destroy from the other device"] = code(driver.cuStreamDestroy(raw))
    seen["destroy of an event from there"] = code(driver.cuEventDestroy(event))
    ok(driver.cuDevicePrimaryCtxRelease(1))
    return seen


def forked_child():
    """The codes a forked child gets, sent back through a pipe."""
    reader, writer = os.pipe()
    with streams(True) as raw:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            codes = [
                code(driver.cuInit(0)),
                code(driver.cuDeviceGetCount()),
                code(driver.cuStreamQuery(raw)),
                code(driver.cuStreamCreate(0)),
            ]
            os.write(writer, " ".join(codes).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as answers:
            names = answers.read().split()
        seen = dict(zip(("cuInit", "cuDeviceGetCount", "query", "create"), names, strict=False))
        seen["the parent goes on"] = code(driver.cuStreamQuery(raw))
    return seen
