"""User objects, executable graphs, and what each keeps alive."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

from cuda.bindings import driver

from emulator.observations.probe import (
    RELAXED,
    THREAD_LOCAL,
    Gate,
    answer,
    capture_status,
    code,
    end_capture,
    node_types,
    ok,
    settled,
    streams,
)

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NO_SYNC, MOVE = 1, 1
INSTANTIATE = driver.CUgraphInstantiate_flags


class Destroyed:
    """User objects whose destruction is noted."""

    def __init__(self):
        self.numbers = []
        self.function = HOST_FUNCTION(lambda number: self.numbers.append(number or 0))
        self.address = driver.CUhostFn(ctypes.cast(self.function, ctypes.c_void_p).value)
        self.made = 0

    def create(self, references=1, flags=NO_SYNC):
        self.made += 1
        return driver.cuUserObjectCreate(self.made, self.address, references, flags)

    def new(self, references=1):
        """A new object, and what tells whether it is gone."""
        made = ok(self.create(references))
        number = self.made

        def ask():
            there = number not in self.numbers
            return (driver.CUresult.CUDA_ERROR_NOT_READY if there else driver.CUresult(0),)

        return made, lambda: {"held": "alive", "reached": "gone"}[settled(ask)]


def user_objects():
    destroyed = Destroyed()
    seen = {
        "create without a reference": code(destroyed.create(references=0)),
        "create with other flags": code(destroyed.create(flags=0)),
        "create without a destructor": code(driver.cuUserObjectCreate(1, 0, 1, NO_SYNC)),
    }
    made, state = destroyed.new()
    seen["retain"] = code(driver.cuUserObjectRetain(made, 2))
    seen["release"] = [code(driver.cuUserObjectRelease(made, 2)), state()]
    seen["release of the last"] = [code(driver.cuUserObjectRelease(made, 1)), state()]

    made, state = destroyed.new(3)
    seen["release of all that it began with"] = [code(driver.cuUserObjectRelease(made, 3)), state()]

    graph = ok(driver.cuGraphCreate(0))
    made, state = destroyed.new()
    seen["moved to a graph"] = code(driver.cuGraphRetainUserObject(graph, made, 1, MOVE))
    seen["retain with unknown flags"] = code(driver.cuGraphRetainUserObject(graph, made, 1, 2))
    seen["destroy of its graph"] = [code(driver.cuGraphDestroy(graph)), state()]

    graph = ok(driver.cuGraphCreate(0))
    made, state = destroyed.new()
    seen["shared with a graph"] = code(driver.cuGraphRetainUserObject(graph, made, 2, 0))
    seen["release of one's own"] = [code(driver.cuUserObjectRelease(made, 1)), state()]
    seen["release of one of the graph's"] = [
        code(driver.cuGraphReleaseUserObject(graph, made, 1)),
        state(),
    ]
    seen["release of the graph's last"] = [
        code(driver.cuGraphReleaseUserObject(graph, made, 1)),
        state(),
    ]
    ok(driver.cuGraphDestroy(graph))
    return seen


def kept_by_launches():
    seen = {}
    destroyed = Destroyed()
    with Gate() as gate, streams(True, True) as (raw, other):
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        ok(driver.cuStreamWaitValue32(raw, gate.device_word, 1, 0))
        graph = ok(driver.cuStreamEndCapture(raw))
        made, state = destroyed.new()
        ok(driver.cuGraphRetainUserObject(graph, made, 1, MOVE))
        executable = ok(driver.cuGraphInstantiate(graph, 0))
        ok(driver.cuGraphDestroy(graph))
        seen["with its executable"] = state()
        ok(driver.cuGraphLaunch(executable, other))
        seen["destroy of the executable while it runs"] = code(
            driver.cuGraphExecDestroy(executable)
        )
        seen["while it runs"] = state()
        gate.open()
        ok(driver.cuStreamSynchronize(other))
        seen["when it has run"] = state()
    with streams(True) as raw:
        graph = ok(driver.cuGraphCreate(0))
        made, state = destroyed.new()
        ok(driver.cuGraphRetainUserObject(graph, made, 1, MOVE))
        executable = ok(driver.cuGraphInstantiate(graph, 0))
        ok(driver.cuGraphDestroy(graph))
        ok(driver.cuGraphLaunch(executable, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["after a launch"] = state()
        ok(driver.cuGraphExecDestroy(executable))
        seen["after its executable"] = state()

        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        graph = ok(driver.cuStreamGetCaptureInfo(raw))[2]
        made, state = destroyed.new()
        seen["kept by a graph in the making"] = code(
            driver.cuGraphRetainUserObject(graph, made, 1, MOVE)
        )
        seen["the capture"] = [capture_status(raw), end_capture(raw)]
        seen["after its graph"] = state()

        ok(driver.cuStreamBeginCapture(raw, RELAXED))
        graph = ok(driver.cuStreamGetCaptureInfo(raw))[2]
        made, state = destroyed.new()
        ok(driver.cuGraphRetainUserObject(graph, made, 1, MOVE))
        driver.cuStreamQuery(raw)
        seen["a broken capture"] = [capture_status(raw), end_capture(raw)]
        seen["after a broken capture"] = state()
    return seen


def executables():
    seen = {}
    with streams(True, True) as (raw, other):
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        pointer = ok(driver.cuMemAllocAsync(64, raw))
        ok(driver.cuMemsetD32Async(pointer, 1, 4, raw))
        graph = ok(driver.cuStreamEndCapture(raw))
        plain = ok(driver.cuGraphInstantiate(graph, 0))
        seen["flags"] = answer(driver.cuGraphExecGetFlags(plain))
        seen["a second instance of one that allocates"] = code(driver.cuGraphInstantiate(graph, 0))
        seen["launch"] = code(driver.cuGraphLaunch(plain, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["launch again, its memory not freed"] = code(driver.cuGraphLaunch(plain, raw))
        seen["free of its memory"] = code(driver.cuMemFreeAsync(pointer, raw))
        seen["launch again, its memory freed"] = code(driver.cuGraphLaunch(plain, raw))
        ok(driver.cuStreamSynchronize(raw))
        seen["free of its memory by cuMemFree"] = code(driver.cuMemFree(pointer))
        ok(driver.cuGraphExecDestroy(plain))
        frees = int(INSTANTIATE.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        result = driver.cuGraphInstantiate(graph, frees)
        seen["instance that frees"] = code(result)
        if not result[0]:
            seen["its flags"] = answer(driver.cuGraphExecGetFlags(result[1]))
            seen["its launches"] = [code(driver.cuGraphLaunch(result[1], raw)) for _ in "123"]
            ok(driver.cuStreamSynchronize(raw))
            ok(driver.cuGraphExecDestroy(result[1]))
        ok(driver.cuGraphDestroy(graph))

        graph = ok(driver.cuGraphCreate(0))
        wanted = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
        wanted.flags = int(INSTANTIATE.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        wanted.hUploadStream = driver.CUstream(other)
        result = driver.cuGraphInstantiateWithParams(graph, wanted)
        seen["instance with parameters"] = code(result)
        seen["what its parameters tell"] = int(wanted.result_out)
        ok(driver.cuStreamSynchronize(other))
        if not result[0]:
            seen["flags of that"] = answer(driver.cuGraphExecGetFlags(result[1]))
            ok(driver.cuGraphExecDestroy(result[1]))
        seen["instance with unknown flags"] = code(driver.cuGraphInstantiate(graph, 1 << 20))
        seen["instance of none"] = code(driver.cuGraphInstantiate(0, 0))
        seen["graph with flags"] = code(driver.cuGraphCreate(1))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "graph.dot")
            seen["dot"] = code(driver.cuGraphDebugDotPrint(graph, bytes(path), 0))
            seen["a digraph"] = path.read_text().lstrip().startswith("digraph")
            nowhere = bytes(Path(folder, "nowhere", "graph.dot"))
            seen["dot in no folder"] = code(driver.cuGraphDebugDotPrint(graph, nowhere, 0))
        ok(driver.cuGraphDestroy(graph))
    return seen


def dependencies():
    """What a capturing stream's next node depends on, changed by hand."""
    seen = {}

    def update(stream, nodes, flags):
        arguments = [None] if driver.CUDA_VERSION >= 13000 else []  # the edges' data
        return driver.cuStreamUpdateCaptureDependencies(
            stream, nodes, *arguments, len(nodes), flags
        )

    def latest(stream):
        found = ok(driver.cuStreamGetCaptureInfo(stream))
        return list(found[3])[: int(found[-1])]

    ADD, SET = 0, 1  # noqa: N806 - CUDA's own names of the flags
    with Gate() as gate, streams(True) as raw:
        word = gate.device_word + 8
        seen["not capturing"] = code(update(raw, [], SET))
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        seen["nothing to nothing"] = code(update(raw, [], SET))
        ok(driver.cuMemsetD32Async(word, 1, 1, raw))
        first = latest(raw)
        seen["set to none"] = [code(update(raw, [], SET)), len(latest(raw))]
        ok(driver.cuMemsetD32Async(word, 1, 1, raw))
        seen["one added"] = [code(update(raw, first, ADD)), len(latest(raw))]
        seen["the same again"] = [code(update(raw, first, ADD)), len(latest(raw))]
        seen["unknown flags"] = [code(update(raw, first, 2)), capture_status(raw)]
        ok(driver.cuMemsetD32Async(word, 1, 1, raw))
        graph = ok(driver.cuStreamEndCapture(raw))
        seen["nodes"] = node_types(graph)
        seen["edges"] = int(ok(driver.cuGraphGetEdges(graph))[-1])
        seen["roots"] = int(ok(driver.cuGraphGetRootNodes(graph))[-1])
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        result = update(raw, first, SET)
        seen["a node of another graph"] = [code(result), capture_status(raw), end_capture(raw)]
        ok(driver.cuGraphDestroy(graph))
    return seen
