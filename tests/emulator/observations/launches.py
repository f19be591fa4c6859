"""Launches of executable graphs."""

from __future__ import annotations

from cuda.bindings import driver

from emulator.observations.probe import (
    THREAD_LOCAL,
    Gate,
    code,
    events,
    ok,
    settled,
    streams,
)


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
