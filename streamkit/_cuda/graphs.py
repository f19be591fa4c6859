"""The driver's calls for captures, and for the graphs they make."""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask
from streamkit.protocols import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Generator

MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
"""How strictly a capture forbids unsafe calls: in all threads, in its own, nowhere."""

_ACTIVE = 1
_AUTO_FREE_ON_LAUNCH = 1
_QUEUED_NOTHING = 1, 201, 400  # invalid value, context, handle
_HOST, _ARRAY = 1, 3  # types of memory
_NO_WORK = 6, 7, 11  # types of nodes: to wait for an event, to record one, to free memory


class Captured(NamedTuple):
    """A capture as one of its streams sees it."""

    is_valid: bool
    graph: int
    """The work captured so far; the driver's until the capture ends."""
    frontier: frozenset[int]
    """The handles of the nodes that the stream's next work depends on."""


def captured(stream: int) -> Captured | None:
    """Return the capture in which a stream takes part, None if it does not capture."""
    status = _status(stream)
    if not status:
        return None
    if status != _ACTIVE:
        return Captured(is_valid=False, graph=0, frontier=frozenset())
    _, _, graph, after, *_ = ask("cuStreamGetCaptureInfo", stream)
    return Captured(is_valid=True, graph=int(graph), frontier=frozenset(map(int, after or ())))


def _status(stream: int) -> int:
    return int(ask("cuStreamIsCapturing", stream))


def begin(stream: int, mode: str) -> None:
    """Let a stream capture the work that it is given from now on, in one of ``MODES``."""
    ask("cuStreamBeginCapture", stream, loader.cu.CUstreamCaptureMode(MODES[mode]))


def discard(stream: int) -> None:
    """End the capture that began on this stream, if there is one, and destroy its graph."""
    if _status(stream):
        code, graph = loader.cu.cuStreamEndCapture(stream)
        if not code:
            ask("cuGraphDestroy", graph)
        elif _status(stream):
            raise driver.error("cuStreamEndCapture", code)


def count(graph: int) -> int:
    """Return how many nodes a graph has."""
    return int(ask("cuGraphGetNodes", graph)[1])


def ends(graph: int) -> frozenset[int]:
    """Return the nodes that nothing follows, except nodes that free memory or handle an event.

    NCCL joins its streams by itself, and leaves records of events for its next launch behind. CUDA
    takes these records for joined.
    """
    followed = {int(node) for node in _edges(graph)[0]}
    return frozenset(
        int(node)
        for node in _handles(graph)
        if int(node) not in followed and int(ask("cuGraphNodeGetType", node)) not in _NO_WORK
    )


def _handles(graph: int) -> list[Any]:
    return list(ask("cuGraphGetNodes", graph, count(graph))[0])


def _edges(graph: int) -> tuple[Any, Any]:
    """Return the node before each edge, and the node after it."""
    # the call without _v2 refuses a graph whose edges have data, which came with CUDA 12.3
    newest = hasattr(loader.cu, "cuGraphGetEdges_v2")
    edges = "cuGraphGetEdges_v2" if newest else "cuGraphGetEdges"
    before, after, *_ = ask(edges, graph, int(ask(edges, graph)[-1]))
    return before, after


def instantiate(graph: int) -> int:
    """Return an executable of the graph; a relaunch frees memory that the last run has left.

    Illegal beside a capture, as the executable's end is.
    """
    return int(ask("cuGraphInstantiate", graph, _AUTO_FREE_ON_LAUNCH))


def launch(executable: int, stream: int) -> None:
    """Queue a run of the graph, after the one before."""
    ask("cuGraphLaunch", executable, stream)


def relaunches(executable: int, stream: int) -> Generator[None, bool | None]:
    """Queue a run on a created stream with each item, by two calls that cost the least.

    The items end where the stream captures, where the driver refuses the call, as it may without
    the stream's context, and in a forked child. They serve one thread at a time: others get a
    ValueError meanwhile, as from any generator.
    """
    items = _relaunches(executable, stream)
    next(items)
    return items


def _relaunches(executable: int, stream: int) -> Generator[None, bool | None]:
    handles = map(ctypes.c_void_p.from_param, (executable, stream))
    run = functools.partial(loader.without_gil("cuGraphLaunch"), *handles)
    ask, captures = driver.capture_question(stream, is_checked=False)  # errors fail the run too
    while not ((yield) or loader.is_forked):
        ask()
        if captures:
            return
        code = run()
        if code:
            if code in _QUEUED_NOTHING:
                return
            raise driver.error("cuGraphLaunch", code)


def end(relaunches: Generator[None, bool | None]) -> bool:
    """End the items of ``relaunches``; False while another thread makes one."""
    try:
        relaunches.send(True)  # noqa: FBT003 - ``close`` may crash meanwhile, in CPython up to 3.12
    except StopIteration:
        return True
    except ValueError as error:
        if not is_of_generator(error):
            raise
    return False


def is_of_generator(error: ValueError) -> bool:
    """Whether a generator has refused an item itself, as another thread is in it."""
    return getattr(error.__traceback__, "tb_next", None) is None


class Node(NamedTuple):
    """A node of a graph."""

    kind: str
    """The driver's word, such as "kernel", "memcpy", "mem alloc"."""
    symbol: str
    """A kernel's symbol, and empty for other nodes."""


def structure(graph: int) -> tuple[list[Node], list[tuple[int, int]]]:
    """Return the nodes, and the edges between them by their places."""
    handles, edges = _nodes(graph)
    return [node(handle) for handle in handles], edges


def _nodes(graph: int) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return the nodes' handles, and the edges between them by their places."""
    handles = _handles(graph)
    place = {int(handle): number for number, handle in enumerate(handles)}
    before, after = _edges(graph)
    return handles, [
        (place[int(one)], place[int(other)]) for one, other in zip(before, after, strict=True)
    ]


def node(handle: Any) -> Node:
    """Return the kind and the symbol of the node with this handle."""
    kind = _kind(handle)
    is_kernel = kind == "kernel"
    return Node(kind, _symbol(ask("cuGraphKernelNodeGetParams", handle)) if is_kernel else "")


def _kind(handle: Any) -> str:
    kind = int(ask("cuGraphNodeGetType", handle))
    name: str = loader.cu.CUgraphNodeType(kind).name.removeprefix("CU_GRAPH_NODE_TYPE_")
    return name.lower().replace("_", " ")


def _called(parameters: Any) -> tuple[str, int]:
    """Return the driver's word for the kind of function that a node calls, and its handle."""
    function = int(parameters.func)
    return ("Func", function) if function else ("Kernel", int(parameters.kern))


def _symbol(parameters: Any) -> str:
    sort, called = _called(parameters)
    return bytes(ask(f"cu{sort}GetName", called)).decode()


# -- the memory that nodes use --------------------------------------------------------------------


class Section(NamedTuple):
    """A part of the block in which a graph was captured."""

    name: str
    start: int
    stop: int
    """One past the number of the section's last node."""


class NodeWork(NamedTuple):
    """A node of a graph, or of a graph inside that graph, and the memory that the node is given."""

    kind: str
    """As in ``Node``."""
    place: int
    """The place in ``structure`` of the node, or of the node whose graph it is in."""
    symbol: str = ""
    """The kernel's symbol, if the driver tells it."""
    parameters: tuple[bytes, ...] | None = None
    """The kernel's parameters; None if they cannot be read, or the node is no kernel."""
    uses: tuple[MemoryUse, ...] | None = None
    """The memory that a node other than a kernel uses; None if its parameters do not say."""


def work(graph: int) -> tuple[list[NodeWork], list[tuple[int, int]]]:
    """Return the nodes and edges, where a node that is a graph is replaced by that graph's nodes.

    These lie between two empty nodes, one before all of them and one after.
    """
    found: list[NodeWork] = []
    edges: list[tuple[int, int]] = []

    def add(graph: int, inside: int | None) -> None:
        handles, own = _nodes(graph)
        first: list[int] = []
        last: list[int] = []
        sizes: dict[int, int] = {}  # of memory that nodes allocate
        for number, handle in enumerate(handles):
            place = number if inside is None else inside
            first.append(len(found))
            kind = _kind(handle)
            if kind == "kernel":
                called = ask("cuGraphKernelNodeGetParams", handle)
                found.append(NodeWork(kind, place, _symbol(called), _parameters(called)))
            elif kind == "graph":
                found.append(NodeWork("empty", place, uses=()))
                begin = len(found)
                add(int(ask("cuGraphChildGraphNodeGetGraph", handle)), place)
                end = len(found)
                found.append(NodeWork("empty", place, uses=()))
                edges.extend((begin - 1, node) for node in range(begin, end + 1))
                edges.extend((node, end) for node in range(begin, end))
            else:
                found.append(NodeWork(kind, place, uses=_uses(kind, handle, sizes)))
            last.append(len(found) - 1)
        edges.extend((last[one], first[other]) for one, other in own)

    add(graph, None)
    return found, edges


def _uses(kind: str, handle: Any, sizes: dict[int, int]) -> tuple[MemoryUse, ...] | None:
    if kind in ("empty", "wait event", "event record"):
        return ()
    if kind == "memcpy":
        return _memcpy(ask("cuGraphMemcpyNodeGetParams", handle))
    if kind == "memset":
        fill = ask("cuGraphMemsetNodeGetParams", handle)
        shape = int(fill.height), int(fill.width) * int(fill.elementSize)
        return (MemoryUse(int(fill.dst), "write", shape, (int(fill.pitch), 1), is_sure=True),)
    if kind == "mem alloc":
        allocated = ask("cuGraphMemAllocNodeGetParams", handle)
        sizes[int(allocated.dptr)] = int(allocated.bytesize)
        return ()
    if kind == "mem free":
        address = int(ask("cuGraphMemFreeNodeGetParams", handle))
        return (MemoryUse(address, "write", (sizes.get(address, 1),), (1,)),)
    return None


def _parameters(called: Any) -> tuple[bytes, ...]:
    """Return the bytes of a kernel's parameters."""
    sort, function = _called(called)
    layout = getattr(loader.cu, f"cu{sort}GetParamInfo")
    found: list[bytes] = []
    while True:
        code, _, size = layout(function, len(found))
        if code:
            return tuple(found)
        place = int(called.kernelParams) + len(found) * ctypes.sizeof(ctypes.c_void_p)
        pointer = ctypes.c_void_p.from_address(place)
        found.append(ctypes.string_at(pointer.value or 0, int(size)))


def _memcpy(copy: Any) -> tuple[MemoryUse, ...] | None:
    ends: list[MemoryUse] = []
    for side in ("src", "dst"):
        sort = int(getattr(copy, f"{side}MemoryType"))
        if sort == _ARRAY:
            return None  # an array of texels, which have no addresses
        start = int(getattr(copy, f"{side}Host" if sort == _HOST else f"{side}Device"))
        pitch = int(getattr(copy, f"{side}Pitch"))
        layer = pitch * int(getattr(copy, f"{side}Height"))
        x, y, z = (int(getattr(copy, side + end)) for end in ("XInBytes", "Y", "Z"))
        shape = int(copy.Depth), int(copy.Height), int(copy.WidthInBytes)
        address = start + z * layer + y * pitch + x
        mode: Literal["read", "write"] = "read" if side == "src" else "write"
        ends.append(MemoryUse(address, mode, shape, (layer, pitch, 1), is_sure=True))
    return tuple(ends)


def dot(graph: int) -> str:
    """Return the graph in the language of Graphviz."""
    with tempfile.TemporaryDirectory(prefix="streamkit-") as folder:
        path = Path(folder, "graph.dot")
        ask("cuGraphDebugDotPrint", graph, os.fsencode(path), 0)
        return path.read_text()


class DriverPart:
    """The driver's own part in a capture, where no library has to begin it."""

    _is_refused = False

    def __init__(self, stream: int, mode: str) -> None:
        self._stream = stream
        self._mode = mode

    def begin(self) -> None:
        try:
            begin(self._stream, self._mode)
        except errors.DriverError:
            self._is_refused = True
            raise

    def end(self) -> DriverGraph:
        graph = DriverGraph()
        try:
            graph.graph = int(ask("cuStreamEndCapture", self._stream))
            with driver.beside_captures():
                graph.executable = instantiate(graph.graph)
        except BaseException:
            with driver.beside_captures():
                graph.close()
            raise
        return graph

    def abandon(self) -> None:
        """End the capture, in whatever state."""
        if not self._is_refused:  # else a capture on the stream belongs to other code
            discard(self._stream)


class DriverGraph:
    """A graph that the driver alone knows."""

    graph: int = 0
    executable: int = 0
    shared = None

    def close(self) -> None:
        """Destroy graph and executable; after a failure, a second call destroys the rest."""
        # noted as gone first: an interrupt must not let one be destroyed twice
        executable, self.executable = self.executable, 0
        graph, self.graph = self.graph, 0
        try:
            if executable:
                ask("cuGraphExecDestroy", executable)  # a run of it goes on
                executable = 0
            if graph:
                ask("cuGraphDestroy", graph)
        except errors.DriverError:
            self.executable, self.graph = executable, graph
            raise
