"""The driver's calls for captures and for the graphs they make."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
"""How strictly a capture forbids unsafe calls: in all threads, in its own, nowhere."""

_ACTIVE = 1
_INVALID_CONTEXT, _UPDATE_FAILURE = 201, 910
_AUTO_FREE_ON_LAUNCH = 1
_KERNEL, _MEMORY_FREE = 0, 11  # types of nodes


class Captured(NamedTuple):
    """A capture as one of its streams sees it."""

    is_valid: bool
    graph: int
    """What was captured so far; the driver's until the capture ends."""
    frontier: frozenset[int]
    """The nodes that the stream's next work depends on."""


def captured(stream: int) -> Captured | None:
    """Return the capture in which a stream takes part, None if it does not capture."""
    status = _status(stream)
    if not status:
        return None
    if status != _ACTIVE:
        return Captured(is_valid=False, graph=0, frontier=frozenset())
    _, _, graph, nodes, *_ = ask("cuStreamGetCaptureInfo", stream)
    frontier = frozenset(int(node) for node in nodes or ())
    return Captured(is_valid=True, graph=int(graph), frontier=frontier)


def _status(stream: int) -> int:
    return int(ask("cuStreamIsCapturing", stream))


def begin(stream: int, mode: str) -> None:
    """Let a stream capture what it is given from now on, in one of ``MODES``."""
    ask("cuStreamBeginCapture", stream, loader.cu.CUstreamCaptureMode(MODES[mode]))


def discard(stream: int) -> None:
    """End the capture that began on this stream, valid or not, if there is one."""
    if _status(stream):
        code, graph = loader.cu.cuStreamEndCapture(stream)
        if not code:
            destroy(int(graph))
        elif _status(stream):
            raise driver.error("cuStreamEndCapture", code)


def count(graph: int) -> int:
    """Return how many nodes a graph has."""
    return int(ask("cuGraphGetNodes", graph)[1])


def add_empty_node(graph: int) -> None:
    """Add a node that does nothing."""
    ask("cuGraphAddEmptyNode", graph, None, 0)


def ends(graph: int) -> frozenset[int]:
    """Return the nodes that nothing follows, but for those that only free memory."""
    nodes, _ = ask("cuGraphGetNodes", graph, count(graph))
    followed = {int(node) for node in _edges(graph)[0]}
    return frozenset(
        int(node)
        for node in nodes
        if int(node) not in followed and int(ask("cuGraphNodeGetType", node)) != _MEMORY_FREE
    )


def _edges(graph: int) -> tuple[Any, Any]:
    """Return the node before each edge, and the node after it."""
    # the first does not know the edges' data of CUDA 12.3
    newest = hasattr(loader.cu, "cuGraphGetEdges_v2")
    edges = "cuGraphGetEdges_v2" if newest else "cuGraphGetEdges"
    before, after, *_ = ask(edges, graph, int(ask(edges, graph)[-1]))
    return before, after


def instantiate(graph: int) -> int:
    """Return an executable of the graph; memory that it leaves allocated is freed at a relaunch.

    Illegal beside a capture, as ``destroy_executable``.
    """
    return int(ask("cuGraphInstantiate", graph, _AUTO_FREE_ON_LAUNCH))


def update(executable: int, graph: int) -> bool:
    """Have the executable's next launches do a graph's work; False if CUDA cannot.

    After a failure the executable's work may be neither; an update to the graph that it was made of
    puts it back.
    """
    code, _ = loader.cu.cuGraphExecUpdate(executable, graph)
    if code and code != _UPDATE_FAILURE:
        raise driver.error("cuGraphExecUpdate", code)
    return not code


def launch(executable: int, stream: int) -> None:
    """Queue a run of the graph, after the one before."""
    ask("cuGraphLaunch", executable, stream)


def relauncher(executable: int, stream: int) -> Callable[[], bool]:
    """Return what queues runs on a stream that is no default one, at the least cost.

    It returns False, and has queued none, if the stream captures, or if the driver wants the
    stream's context to be current.
    """
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    run, target = loader.cu.CUgraphExec(executable), loader.cu.CUstream(stream)
    # the bindings take longer for this than for the launch: they make an enumeration's member
    ask_status, handle = loader.with_gil("cuStreamIsCapturing"), ctypes.c_void_p(stream)
    status = ctypes.c_int()
    answer = ctypes.byref(status)

    def relaunch() -> bool:
        launch = loader.cu.cuGraphLaunch  # first: a forked child may not even ask
        code = ask_status(handle, answer)
        if code:
            raise driver.error("cuStreamIsCapturing", code)
        if status.value:
            return False
        (code,) = launch(run, target)
        if code and code != _INVALID_CONTEXT:
            raise driver.error("cuGraphLaunch", code)
        return not code

    return relaunch


def upload(executable: int, stream: int) -> None:
    """Bring the graph to the device, so that its first launch need not."""
    ask("cuGraphUpload", executable, stream)


class Node(NamedTuple):
    """A node of a graph."""

    kind: str
    """As "kernel", "memcpy", "mem alloc"."""
    symbol: str
    """A kernel's symbol, where the driver tells it; else empty."""


def structure(graph: int) -> tuple[list[Node], list[tuple[int, int]]]:
    """Return the nodes, and the edges between them by their places."""
    handles, _ = ask("cuGraphGetNodes", graph, count(graph))
    place = {int(handle): number for number, handle in enumerate(handles)}
    before, after = _edges(graph)
    return [node(handle) for handle in handles], [
        (place[int(one)], place[int(other)]) for one, other in zip(before, after, strict=True)
    ]


def node(handle: Any) -> Node:
    """Return what a node is."""
    kind = ask("cuGraphNodeGetType", handle)
    name = loader.cu.CUgraphNodeType(int(kind)).name.removeprefix("CU_GRAPH_NODE_TYPE_")
    symbol = _symbol(handle) if int(kind) == _KERNEL else ""
    return Node(name.lower().replace("_", " "), symbol)


def _symbol(handle: Any) -> str:
    """Return the symbol of a node's kernel, "" below CUDA 12.3."""
    called = ask("cuGraphKernelNodeGetParams", handle)
    function, kernel = int(called.func), int(called.kern)
    call, what = ("cuFuncGetName", function) if function else ("cuKernelGetName", kernel)
    return bytes(ask(call, what)).decode() if hasattr(loader.cu, call) else ""


def dot(graph: int) -> str:
    """Return the graph in the language of Graphviz."""
    with tempfile.TemporaryDirectory(prefix="streamkit-") as folder:
        path = Path(folder, "graph.dot")
        ask("cuGraphDebugDotPrint", graph, str(path).encode(), 0)
        return path.read_text()


def destroy(graph: int) -> None:
    """Destroy a graph; what was instantiated from it stays."""
    ask("cuGraphDestroy", graph)


def destroy_executable(executable: int) -> None:
    """Destroy an executable; a launch of it that runs goes on."""
    ask("cuGraphExecDestroy", executable)


class DriverPart:
    """The driver's own part in a capture, where no library has to begin it.

    Its graph replaces ``old``, if there is one, and has the executable of that if CUDA can update
    it.
    """

    _is_refused = False
    _made: DriverGraph | None = None

    def __init__(self, stream: int, mode: str, old: DriverGraph | None) -> None:
        self._stream = stream
        self._mode = mode
        self._old = old

    def begin(self) -> None:
        """Begin it."""
        try:
            begin(self._stream, self._mode)
        except errors.DriverError:
            self._is_refused = True
            raise

    def end(self) -> DriverGraph:
        """End it and return its executable graph."""
        graph = self._made = DriverGraph()
        try:
            graph.graph = int(ask("cuStreamEndCapture", self._stream))
            with driver.beside_captures():
                if self._old is None or not graph.take_over(self._old):
                    graph.executable = instantiate(graph.graph)
        except BaseException:
            self.take_back()
            raise
        return graph

    def take_back(self) -> None:
        """Destroy the graph that ``end`` has made, if any; the old one is as it was before."""
        made, self._made = self._made, None
        if made is not None:
            with driver.beside_captures():
                try:
                    made.give_back()
                finally:
                    made.close()

    def abandon(self) -> None:
        """End it, in whatever state."""
        if not self._is_refused:  # else a capture on the stream is somebody else's
            discard(self._stream)


class DriverGraph:
    """A graph that the driver alone knows."""

    graph: int = 0
    executable: int = 0
    is_update = False
    """Whether its executable was another graph's before."""
    _old: DriverGraph | None = None

    def take_over(self, old: DriverGraph) -> bool:
        """Update the executable of another graph, and have it; False if CUDA cannot."""
        self._old = old
        if update(old.executable, self.graph):
            self.is_update = True
            self.executable, old.executable = old.executable, 0
        return self.is_update

    def give_back(self) -> None:
        """Undo ``take_over``, also one that has failed: the other graph launches its own work."""
        old, self._old = self._old, None
        if old is not None:
            if not old.executable:
                old.executable, self.executable = self.executable, 0
            update(old.executable, old.graph)

    def close(self) -> None:
        """Destroy it; after a failure, a second time does what is left."""
        # marked as gone before it is: an interrupt must not let it be destroyed twice
        executable, self.executable = self.executable, 0
        graph, self.graph = self.graph, 0
        try:
            if executable:
                destroy_executable(executable)
                executable = 0
            if graph:
                destroy(graph)
        except errors.DriverError:
            self.executable, self.graph = executable, graph
            raise
