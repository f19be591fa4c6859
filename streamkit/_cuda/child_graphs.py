"""A graph as a node of another one that is being captured, and how long that one lasts."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask

if TYPE_CHECKING:
    from collections.abc import Iterable

_MEMORY = 10, 11  # types of nodes: to allocate memory, to free it
_NO_DESTRUCTOR_SYNC, _MOVE, _SET = 1, 1, 1
_NO_WAIT = 0


def allocates(graph: int) -> bool:
    """Whether nodes of the graph allocate or free memory, which CUDA allows in no child graph."""
    nodes, _ = ask("cuGraphGetNodes", graph, int(ask("cuGraphGetNodes", graph)[1]))
    return any(int(ask("cuGraphNodeGetType", node)) in _MEMORY for node in nodes)


class Place(NamedTuple):
    """Where work that a stream is given now comes in the capture on it."""

    capture: int
    """The id of the capture."""
    graph: int
    """What was captured so far."""
    after: tuple[Any, ...]
    """The nodes that the work depends on."""


def place(stream: int) -> Place:
    """Return it; the stream takes part in a capture that is not broken."""
    _, number, graph, after, *_ = ask("cuStreamGetCaptureInfo", stream)
    return Place(int(number), int(graph), tuple(after or ()))


def add(stream: int, where: Place, child: int, also_after: Iterable[Any]) -> Any:
    """Add a copy of a graph there, before the stream's later work; return its node."""
    after = list({int(node): node for node in (*where.after, *also_after)}.values())
    node = ask("cuGraphAddChildGraphNode", where.graph, after, len(after), child)
    # with the edges' data of CUDA 12.3; bindings of 13 have no older one
    newest = "cuStreamUpdateCaptureDependencies_v2"
    if not hasattr(loader.cu, newest):
        newest = "cuStreamUpdateCaptureDependencies"
    ask(newest, stream, [node], None, 1, _SET)
    return node


class GraphEnd:
    """Tells when a graph has gone, with its executables and their last runs.

    CUDA tells it in any thread, where no call of its own is legal, and even after Python has ended.
    So what it calls needs no interpreter: it releases a lock.
    """

    def __init__(self, graph: int) -> None:
        self._lock: int | None = _new_lock()  # None once it was released
        _acquire(self._lock, _NO_WAIT)
        function = loader.cu.CUhostFn(ctypes.cast(_release, ctypes.c_void_p).value)
        told = ask("cuUserObjectCreate", self._lock, function, 1, _NO_DESTRUCTOR_SYNC)
        (code,) = loader.cu.cuGraphRetainUserObject(graph, told, 1, _MOVE)
        if code:
            ask("cuUserObjectRelease", told, 1)
            raise driver.error("cuGraphRetainUserObject", code)

    def has_come(self) -> bool:
        """Whether the graph has gone; one thread at a time asks."""
        if self._lock is not None and _acquire(self._lock, _NO_WAIT):
            lock, self._lock = self._lock, None
            _release(lock)  # as it must be where it is freed
            _free_lock(lock)
        return self._lock is None


def _python(name: str, returned: Any, *taken: Any) -> Any:
    return ctypes.PYFUNCTYPE(returned, *taken)((name, ctypes.pythonapi))


_new_lock = _python("PyThread_allocate_lock", ctypes.c_void_p)
_acquire = _python("PyThread_acquire_lock", ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_release = _python("PyThread_release_lock", None, ctypes.c_void_p)
_free_lock = _python("PyThread_free_lock", None, ctypes.c_void_p)
