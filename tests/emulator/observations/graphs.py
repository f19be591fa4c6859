"""Forks and joins inside a capture, how captures end, and graphs."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver

from emulator.observations.captures import EXTERNAL
from emulator.observations.probe import (
    GLOBAL,
    LEGACY,
    MODES,
    PER_THREAD,
    RELAXED,
    THREAD_LOCAL,
    Gate,
    capture_status,
    code,
    end_capture,
    events,
    exchange,
    in_thread,
    new_context,
    node_types,
    ok,
    settled,
    streams,
)


def _info(stream):
    """(capture id, how many nodes the next one depends on)."""
    _, number, _, *rest = ok(driver.cuStreamGetCaptureInfo(stream))
    return int(number), int(rest[-1])


def _fork(raw, side, event):
    ok(driver.cuEventRecord(event, raw))
    ok(driver.cuStreamWaitEvent(side, event, 0))


def _fill(gate, raw):
    ok(driver.cuMemsetD32Async(gate.device_word + 8, 1, 1, raw))


def forks_and_joins():
    seen = {}
    with Gate() as gate, streams(True, True, False) as (raw, side, blocking), events() as event:
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        seen["nodes it depends on at first"] = _info(raw)[1]
        _fill(gate, raw)
        _fork(raw, side, event)
        seen["one capture"] = _info(side)[0] == _info(raw)[0]
        seen["ending it on the fork"] = code(driver.cuStreamEndCapture(side))
        seen["which leaves"] = [capture_status(raw), end_capture(raw), capture_status(side)]

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        _fork(raw, side, event)
        _fill(gate, raw)
        _fill(gate, side)
        ok(driver.cuEventRecord(event, side))
        ok(driver.cuStreamWaitEvent(raw, event, 0))
        seen["nodes it depends on once joined"] = _info(raw)[1]
        seen["joined"] = end_capture(raw)
        seen["the fork afterwards"] = capture_status(side)

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        _fork(raw, side, event)
        _fill(gate, side)
        seen["unjoined"] = end_capture(raw)
        seen["the fork after unjoined"] = capture_status(side)

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        _fork(raw, side, event)
        seen["an unjoined fork without work"] = end_capture(raw)

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        _fork(raw, blocking, event)
        seen["status of legacy beside a blocking fork"] = capture_status(LEGACY)
        seen["that"] = end_capture(raw)

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        ok(driver.cuStreamBeginCapture(side, THREAD_LOCAL))
        ok(driver.cuEventRecord(event, raw))
        seen["merging two captures"] = code(driver.cuStreamWaitEvent(side, event, 0))
        seen["both after that"] = [end_capture(raw), end_capture(side)]

        late = int(ok(driver.cuStreamCreate(1)))
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        _fork(raw, late, event)
        _fill(gate, late)
        ok(driver.cuEventRecord(event, late))
        ok(driver.cuStreamWaitEvent(raw, event, 0))
        seen["destroying a joined fork"] = code(driver.cuStreamDestroy(late))
        seen["its capture"] = [capture_status(raw), end_capture(raw)]
    return seen


def ends():
    seen = {}
    context = ok(driver.cuCtxGetCurrent())
    with streams(True) as raw:
        seen["not capturing"] = end_capture(raw)
        seen["begin on legacy"] = code(driver.cuStreamBeginCapture(LEGACY, RELAXED))
        seen["begin on per-thread"] = code(driver.cuStreamBeginCapture(PER_THREAD, RELAXED))
        seen["end on per-thread"] = end_capture(PER_THREAD)
        for mode, number in MODES.items():
            ok(driver.cuStreamBeginCapture(raw, number))
            seen[f"{mode}: end in another thread"] = in_thread(
                lambda: end_capture(raw), context=context
            )
            seen[f"{mode}: then"] = [capture_status(raw), end_capture(raw)]
            ok(driver.cuStreamBeginCapture(raw, number))
            for thread_mode in (GLOBAL, THREAD_LOCAL, RELAXED):

                def ask(thread_mode=thread_mode):
                    exchange(thread_mode)
                    pointer = driver.cuMemAlloc(64)
                    if not pointer[0]:
                        driver.cuMemFree(pointer[1])
                    return code(pointer)

                name = f"{mode}: alloc in another thread of mode {int(thread_mode)}"
                seen[name] = [in_thread(ask, context=context), capture_status(raw)]
                if capture_status(raw) != "active":
                    end_capture(raw)
                    ok(driver.cuStreamBeginCapture(raw, number))
            end_capture(raw)
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        first = _info(raw)[0]
        end_capture(raw)
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        seen["capture ids differ"] = first != _info(raw)[0]
        end_capture(raw)
        seen["modes are exchanged"] = [exchange(RELAXED), exchange(GLOBAL), exchange(GLOBAL)]
        made = new_context()
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        seen["begun with another context current"] = capture_status(raw)
        seen["and ended"] = end_capture(raw)
        ok(driver.cuCtxDestroy(made))
    return seen


def graphs():
    seen = {}
    with Gate() as gate, streams(True, True) as (raw, other), events(2) as (mark, point):
        pointer = ok(driver.cuMemAlloc(64))
        host = (ctypes.c_uint32 * 1)()

        def clear():
            # A memset of the legacy stream is over for no other stream before it is waited for.
            ok(driver.cuMemsetD32(pointer, 0, 1))
            ok(driver.cuStreamSynchronize(LEGACY))

        clear()
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        seen["a value wait in a capture"] = code(
            driver.cuStreamWaitValue32(raw, gate.device_word, 1, 0)
        )
        ok(driver.cuMemsetD32Async(pointer, 5, 1, raw))
        ok(driver.cuEventRecordWithFlags(mark, raw, EXTERNAL))
        graph = ok(driver.cuStreamEndCapture(raw))
        seen["nodes"] = node_types(graph)
        seen["edges"] = int(ok(driver.cuGraphGetEdges(graph))[-1])
        seen["roots"] = int(ok(driver.cuGraphGetRootNodes(graph))[-1])
        executable = ok(driver.cuGraphInstantiate(graph, 0))
        seen["destroy of the graph"] = code(driver.cuGraphDestroy(graph))
        seen["upload"] = code(driver.cuGraphUpload(executable, other))
        seen["launch"] = code(driver.cuGraphLaunch(executable, other))
        ok(driver.cuEventRecord(point, other))
        seen["held in the graph"] = settled(lambda: driver.cuEventQuery(point))
        seen["its own event"] = settled(lambda: driver.cuEventQuery(mark))
        gate.open()
        seen["let go"] = settled(lambda: driver.cuEventQuery(point))
        seen["its own event reached"] = settled(lambda: driver.cuEventQuery(mark))
        ok(driver.cuMemcpyDtoH(ctypes.addressof(host), pointer, 4))
        seen["what it wrote"] = host[0]
        clear()
        seen["launch again"] = code(driver.cuGraphLaunch(executable, raw))
        seen["destroy while it may run"] = code(driver.cuGraphExecDestroy(executable))
        ok(driver.cuStreamSynchronize(raw))
        ok(driver.cuMemcpyDtoH(ctypes.addressof(host), pointer, 4))
        seen["what it wrote again"] = host[0]
        ok(driver.cuMemFree(pointer))

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        pooled = driver.cuMemAllocAsync(64, raw)
        seen["alloc in a capture"] = code(pooled)
        if not pooled[0]:
            ok(driver.cuMemsetD32Async(pooled[1], 5, 1, raw))
            seen["free in a capture"] = code(driver.cuMemFreeAsync(pooled[1], raw))
        seen["its nodes"] = end_capture(raw)

        empty = ok(driver.cuGraphCreate(0))
        seen["nodes of an empty graph"] = node_types(empty)
        executable = ok(driver.cuGraphInstantiate(empty, 0))
        seen["launch of an empty graph"] = code(driver.cuGraphLaunch(executable, raw))
        ok(driver.cuStreamSynchronize(raw))
        ok(driver.cuGraphExecDestroy(executable))
        ok(driver.cuGraphDestroy(empty))
    return seen
