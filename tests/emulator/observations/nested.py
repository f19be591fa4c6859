"""Graphs that are nodes of other graphs."""

from __future__ import annotations

from cuda.bindings import driver

from emulator.observations.kept import MOVE, Destroyed
from emulator.observations.probe import (
    THREAD_LOCAL,
    Gate,
    capture_status,
    code,
    node_types,
    ok,
    streams,
)
from emulator.observations.updates import captured, filling

SET = 1


def depend(raw, node):
    arguments = [None] if driver.CUDA_VERSION >= 13000 else []  # the edges' data
    ok(driver.cuStreamUpdateCaptureDependencies(raw, [node], *arguments, 1, SET))


def inside(child):
    """A step of a capture: the child, behind what was captured so far."""

    def step(raw):
        found = ok(driver.cuStreamGetCaptureInfo(raw))
        before = list(found[3])[: int(found[-1])]
        depend(raw, ok(driver.cuGraphAddChildGraphNode(found[2], before, len(before), child)))

    return step


def copying(to, source):
    return lambda raw: ok(driver.cuMemcpyDtoDAsync(to, source, 4, raw))


def child_graphs():
    """A graph added to captures; launches and updates of what was captured."""
    seen = {}
    with Gate() as gate, streams(True) as raw:
        first, second, third = (gate.device_word + 8 + 4 * place for place in range(3))

        def run(executable):
            """What a launch has written, into words that were 0."""
            gate.view[2:5] = [0, 0, 0]
            found = code(driver.cuGraphLaunch(executable, raw))
            ok(driver.cuStreamSynchronize(raw))
            return [found, list(gate.view[2:5])]

        child = captured(raw, copying(second, first))
        whole = captured(raw, filling(first, 1), inside(child), copying(third, second))
        seen["types"] = node_types(whole)
        seen["edges"] = int(ok(driver.cuGraphGetEdges(whole))[-1])
        executable = ok(driver.cuGraphInstantiate(whole, 0))
        seen["run"] = run(executable)
        again = captured(raw, filling(first, 2), inside(child), copying(third, second))
        seen["update"] = code(driver.cuGraphExecUpdate(executable, again))
        seen["run of the update"] = run(executable)
        for graph in (again, whole, child):
            ok(driver.cuGraphDestroy(graph))
        seen["run without the graphs"] = run(executable)[0]
        ok(driver.cuGraphExecDestroy(executable))
    return seen


def kept_by_child_graphs():
    """What a graph keeps that was told to while its capture took another graph in."""
    seen = {}
    with Gate() as gate, streams(True) as raw:
        destroyed = Destroyed()
        made, state = destroyed.new()
        child = captured(raw, filling(gate.device_word + 8, 1))
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        inside(child)(raw)
        graph = ok(driver.cuStreamGetCaptureInfo(raw))[2]
        kept = code(driver.cuGraphRetainUserObject(graph, made, 1, MOVE))
        seen["kept by what is captured"] = [kept, capture_status(raw)]
        whole = ok(driver.cuStreamEndCapture(raw))
        executable = ok(driver.cuGraphInstantiate(whole, 0))
        ok(driver.cuGraphDestroy(whole))
        ok(driver.cuGraphDestroy(child))
        seen["while there is an instance"] = state()
        gate.hold(raw)
        ok(driver.cuGraphLaunch(executable, raw))
        ok(driver.cuGraphExecDestroy(executable))
        seen["while it runs"] = state()
        gate.open()
        ok(driver.cuStreamSynchronize(raw))
        seen["once it has run"] = state()
    return seen
