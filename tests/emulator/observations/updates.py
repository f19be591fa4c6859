"""Launches of one executable graph, and updates of it to the work of another graph."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver

from emulator.observations.captures import EXTERNAL
from emulator.observations.probe import (
    THREAD_LOCAL,
    Gate,
    code,
    end_capture,
    events,
    ok,
    settled,
    streams,
)

INSTANTIATE = driver.CUgraphInstantiate_flags


def launches():
    """Runs of one executable, on two streams."""
    seen = {}
    with Gate() as gate, streams(True, True) as (one, other), events(2) as (mark, free):
        ok(driver.cuStreamBeginCapture(one, THREAD_LOCAL))
        ok(driver.cuMemsetD32Async(gate.device_word + 8, 1, 1, one))
        graph = ok(driver.cuStreamEndCapture(one))
        executables = [ok(driver.cuGraphInstantiate(graph, 0)) for _ in range(2)]
        gate.hold(one)
        ok(driver.cuGraphLaunch(executables[0], one))
        ok(driver.cuGraphLaunch(executables[1], other))
        ok(driver.cuEventRecord(free, other))
        seen["another executable"] = settled(lambda: driver.cuEventQuery(free))
        ok(driver.cuGraphLaunch(executables[0], other))
        ok(driver.cuEventRecord(mark, other))
        seen["the same one"] = settled(lambda: driver.cuEventQuery(mark))
        gate.open()
        seen["once the first has run"] = settled(lambda: driver.cuEventQuery(mark))
        context = ok(driver.cuCtxGetCurrent())
        ok(driver.cuCtxSetCurrent(0))
        seen["without a context"] = code(driver.cuGraphLaunch(executables[0], one))
        ok(driver.cuCtxSetCurrent(context))
        ok(driver.cuStreamSynchronize(one))
        for executable in executables:
            ok(driver.cuGraphExecDestroy(executable))
        ok(driver.cuGraphDestroy(graph))
    return seen


def captured(raw, *steps):
    """The graph of these steps."""
    ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
    for step in steps:
        step(raw)
    return ok(driver.cuStreamEndCapture(raw))


def filling(pointer, value):
    return lambda raw: ok(driver.cuMemsetD32Async(pointer, value, 1, raw))


def filling_rows(pointer, width):
    return lambda raw: ok(driver.cuMemsetD2D8Async(pointer, 64, 0, width, 2, raw))


def recording(event):
    return lambda raw: ok(driver.cuEventRecordWithFlags(event, raw, EXTERNAL))


def waiting(event):
    return lambda raw: ok(driver.cuStreamWaitEvent(raw, event, EXTERNAL))


def forking(event, side, pointer):
    """Two nodes beside each other, and one behind both."""

    def fork(raw):
        ok(driver.cuEventRecord(event, raw))
        ok(driver.cuStreamWaitEvent(side, event, 0))
        filling(pointer, 1)(side)
        filling(pointer + 4, 1)(raw)
        ok(driver.cuEventRecord(event, side))
        ok(driver.cuStreamWaitEvent(raw, event, 0))
        filling(pointer, 1)(raw)

    return fork


def allocating(raw):
    """Memory that a launch leaves allocated, and its first number; return where it is."""
    pointer = ok(driver.cuMemAllocAsync(64, raw))
    ok(driver.cuMemsetD32Async(pointer, 5, 1, raw))
    return int(pointer)


def borrowing(raw):
    """The same, freed in the graph."""
    pointer = allocating(raw)
    ok(driver.cuMemFreeAsync(pointer, raw))
    return pointer


class _Result(ctypes.Structure):
    """CUgraphExecUpdateResultInfo, which the bindings drop if the update failed."""

    _fields_ = (
        ("result", ctypes.c_int),
        ("node", ctypes.c_void_p),
        ("from_node", ctypes.c_void_p),
    )


def _updated(executable, graph):
    """The code of an update, its result, and whether it names a node."""
    found = _Result()
    update = ctypes.CDLL("libcuda.so.1").cuGraphExecUpdate_v2
    answered = update(
        ctypes.c_void_p(int(executable)), ctypes.c_void_p(int(graph)), ctypes.byref(found)
    )
    name = driver.CUgraphExecUpdateResult(found.result).name
    return [code((answered,)), name.removeprefix("CU_GRAPH_EXEC_UPDATE_"), bool(found.node)]


def updates():
    """What an executable answers that is to get the work of another graph."""
    seen = {}
    with streams(True, True) as (raw, side), events() as event:
        data = int(ok(driver.cuMemAlloc(256)))
        one, two = filling(data, 1), filling(data + 8, 2)
        for name, before, after in (
            ("other parameters", [one], [two]),
            ("more nodes", [one], [one, two]),
            ("another kind", [recording(event)], [waiting(event)]),
            ("other edges", [forking(event, side, data)], [one, two, one]),
            ("wider rows", [filling_rows(data, 4)], [filling_rows(data, 8)]),
        ):
            graphs = captured(raw, *before), captured(raw, *after)
            executable = ok(driver.cuGraphInstantiate(graphs[0], 0))
            seen[name] = _updated(executable, graphs[1])
            ok(driver.cuGraphExecDestroy(executable))
            for graph in graphs:
                ok(driver.cuGraphDestroy(graph))
        ok(driver.cuMemFree(data))
    return seen


def updates_of_a_launched_one():
    """When an update takes effect, and what it does beside a capture."""
    seen = {}
    with Gate() as gate, streams(True, True) as (raw, other):
        graphs = [captured(raw, filling(gate.device_word + 4, value)) for value in (1, 2)]
        executable = ok(driver.cuGraphInstantiate(graphs[0], 0))
        gate.hold(raw)
        ok(driver.cuGraphLaunch(executable, raw))
        seen["while it is held"] = code(driver.cuGraphExecUpdate(executable, graphs[1]))
        gate.open()
        ok(driver.cuStreamSynchronize(raw))
        seen["what that launch wrote"] = gate.view[1]
        ok(driver.cuGraphLaunch(executable, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["what the next one wrote"] = gate.view[1]
        ok(driver.cuStreamBeginCapture(other, THREAD_LOCAL))
        answered = code(driver.cuGraphExecUpdate(executable, graphs[0]))
        seen["beside a capture"] = [answered, end_capture(other)]
        ok(driver.cuGraphExecDestroy(executable))
        for graph in graphs:
            ok(driver.cuGraphDestroy(graph))
    return seen


def updates_of_memory():
    """An executable that allocates, and gets the work of a graph that allocates elsewhere."""
    seen = {}
    for kind, step in (("leaves it", allocating), ("frees it", borrowing)):
        for launches in (0, 1):
            for flags in (0, int(INSTANTIATE.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)):
                found = _updated_memory(step, launches, flags)
                seen[f"{kind}, launches before: {launches}, flags {flags}"] = found
    return seen


def _updated_memory(step, launches, flags):
    """The update's answer, and of each of two launches after it; and what is in memory it left."""
    with streams(True) as raw:
        pointers = []
        graphs = [captured(raw, lambda raw: pointers.append(step(raw))) for _ in range(2)]
        executable = ok(driver.cuGraphInstantiate(graphs[0], flags))
        for _ in range(launches):
            ok(driver.cuGraphLaunch(executable, raw))
            ok(driver.cuStreamSynchronize(raw))
        seen = [_updated(executable, graphs[1])]
        for _ in range(2):
            launched = code(driver.cuGraphLaunch(executable, raw))
            ok(driver.cuStreamSynchronize(raw))
            seen.append(launched)
            if step is allocating:
                seen.append(_first_number(pointers[1]))
        for graph in graphs:
            ok(driver.cuGraphDestroy(graph))
        ok(driver.cuGraphExecDestroy(executable))
        for pointer in pointers if flags == 0 else ():
            driver.cuMemFree(pointer)  # what a launch has left, if it has
        return seen


def _first_number(pointer):
    """What is there, None if nothing is allocated there."""
    number = (ctypes.c_uint32 * 1)()
    (answered,) = driver.cuMemcpyDtoH(number, pointer, 4)
    return None if answered else number[0]
