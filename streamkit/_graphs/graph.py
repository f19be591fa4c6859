"""``CudaGraph``: the object that ``capture`` gives, filled in the block and launched after it."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from streamkit import errors
from streamkit._cuda import driver, graphs, loader
from streamkit._graphs import checks, disposal
from streamkit._queues import identity, loaded_libraries, open_scopes, ordering
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support import messages
from streamkit._support.classes import Concrete
from streamkit._support.messages import describe
from streamkit.protocols import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from streamkit._graphs.disposal import OwnedGraph
    from streamkit.diagnostics.races.report import RaceReport
    from streamkit.protocols import StreamLike
    from streamkit.protocols.queues import QueueRecord

T = TypeVar("T")

_has_gil = getattr(sys, "_is_gil_enabled", lambda: True)  # always before 3.13


class CudaGraph(Graph, metaclass=Concrete):
    """One CUDA graph from every library.

    What it promises is documented on ``Graph``. Safe to use from any thread. A dropped graph is
    closed.
    """

    _owned: OwnedGraph | None = None  # until the capture has ended, and once closed
    _is_capturing = True
    _readers: list[Callable[[], QueueRecord | None]] | None = None
    """What tells the queues where the last results are read; None: launches wait for no reader."""

    def __init__(self, stream: CudaStream[Any], kept: list[object]) -> None:
        self._stream = stream
        self._context = stream.context  # made current for calls, as default streams depend on it
        self._kept = kept  # during the capture
        self._sections: list[graphs.Section] = []  # during the capture
        self._lock = threading.RLock()  # no forked child can use the graph
        self._again: tuple[QueueRecord | None, Any] = None, None
        """The queue where a launch now needs no more than the next item, and the items."""

    # -- while it is captured ---------------------------------------------------------------------

    def _complete(self, owned: OwnedGraph | None) -> None:
        """End the capture, with None after an error."""
        with self._lock:
            if owned is not None:
                owned.kept, owned.sections = self._kept, self._sections
            self._owned, self._is_capturing, self._kept = owned, False, []

    @contextlib.contextmanager
    def section(self, name: str) -> Generator[None]:
        if not self._is_capturing:
            raise errors.CaptureError(
                f"{describe(self)} is not being captured: sections are for inside the capture's "
                "block."
            )
        before = self.nodes
        yield
        self._sections.append(graphs.Section(name, before, self.nodes))
        if self.nodes == before:
            what = f"the section {name!r} added no node to the graph of {describe(self._stream)}"
            raise checks.no_work(f"{what}: it", self._stream)

    def keep(self, *objects: object) -> None:
        with self._lock:
            kept = self._kept if self._is_capturing else self._ready().kept
            kept.extend(objects)

    # -- what it is -------------------------------------------------------------------------------

    @property
    def stream(self) -> CudaStream[Any]:
        return self._stream

    @property
    def closed(self) -> bool:
        return self._owned is None and not self._is_capturing

    @property
    def nodes(self) -> int:
        if self._is_capturing:
            return graphs.count(checks.whole(self._stream).graph)
        return self._read(graphs.count)

    def to_dot(self) -> str:
        return self._read(graphs.dot)

    def _read(self, read: Callable[[int], T]) -> T:
        with self._lock:  # or another thread's close would take it away
            return read(self._ready().executable.graph)

    def races(self, arrays: Mapping[str, object] | None = None) -> RaceReport:
        """Find work of the graph on the same memory that none of its edges orders.

        It looks at the parameters of kernels, copies and fills, also of a graph inside; nothing
        runs. Reads and writes of a kernel count as possible where its name does not tell.

        Args:
            arrays: Arrays by the names that the report is to use, instead of the caller's.

        Raises:
            TypeError: ``arrays`` is no dictionary whose keys are str.
            StreamClosedError: The graph was closed.
            CaptureError: It is still being captured.
        """
        # few programs ask for the races of a graph
        from streamkit.diagnostics.races import graph_nodes  # noqa: PLC0415
        from streamkit.diagnostics.races.report import RaceReport  # noqa: PLC0415

        names = graph_nodes.names_for(arrays)
        with self._lock:  # or another thread's close would take it away
            owned = self._ready()
            work, order = graphs.work(owned.executable.graph)
            nodes, edges = graphs.structure(owned.executable.graph)
        races, coverage = graph_nodes.races_of(work, order, owned.sections, names)
        report = RaceReport()
        report.complete(races, coverage, functools.partial(graph_nodes.page, nodes, edges, races))
        return report

    def to_svg(self) -> str:
        from streamkit.diagnostics.pictures import graph_picture  # noqa: PLC0415 - a door up

        return graph_picture.svg(*self._read(graphs.structure))

    def _repr_svg_(self) -> str | None:
        """Show the picture in a notebook, of a graph that can be launched."""
        return None if self._owned is None else self.to_svg()

    def _ready(self) -> OwnedGraph:
        owned = self._owned
        if self._is_capturing:
            raise errors.CaptureError(
                f"{describe(self)} is still being captured: use it after the block."
            )
        if owned is None:
            raise messages.closed(self)
        return owned

    def __repr__(self) -> str:
        state = "capturing" if self._is_capturing else "closed" if self.closed else "ready"
        return f"<streamkit.CudaGraph {state}, captured on {self._stream!r}>"

    def __reduce__(self) -> NoReturn:
        raise messages.not_copied(self)

    # -- what it does -----------------------------------------------------------------------------

    def launch(self, stream: StreamLike | None = None) -> None:
        target: Any = stream if type(stream) is CudaStream else self._target(stream)
        steady, again = self._again
        try:
            if target is not None and (target._queue or target._live()) is steady:  # noqa: SLF001 - no call where that is quick
                for _ in again:
                    return
        except errors.StreamClosedError:  # which is told below
            pass
        except ValueError as error:
            if not graphs.is_of_generator(error):  # which says that another thread launches
                raise
        finally:
            if disposal.waiting:
                disposal.sweep()
        if target is not None:
            self._alone(self._launch, target)
        else:  # after the libraries' work so far, and before their next work
            self._ready()
            with in_order_with_libraries(self._stream) as others:
                self._alone(self._launch, self._stream, others)

    def _launch(
        self, target: CudaStream[Any], others: list[tuple[QueueRecord, Any]] | None = None
    ) -> None:
        owned, queue = self._check(target)
        if self._readers is not None:
            readers = others or [(queue, None)]
            for living in self._readers:
                reader = living()
                if reader is None or any(identity.same(reader, other) for other, _ in readers):
                    continue
                if ordering.capture_of(reader) is None:  # else only CUDA orders the runs
                    ordering.wait_queue(queue, reader)
            self._readers = [_while_it_lives(*reader) for reader in readers]
        owned.launch(target, queue)
        steady = owned.runs.steady
        if steady is not None and _has_gil():  # else two threads could be in one generator
            self._again = steady, graphs.relaunches(owned.executable.executable, steady.handle)

    def _alone(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call with the lock, which each launch takes meanwhile, and return its result."""
        while not loader.is_forked:  # else a thread of the parent may have the lock for ever
            with self._lock:
                again = self._again[1]
                self._again = None, again  # a launch that begins now takes the lock
                if again is None or graphs.end(again):
                    return call(*arguments)
            time.sleep(1e-5)  # without the lock, which a signal's handler in the launch may take
        raise messages.forked()

    def upload(self, stream: StreamLike | None = None) -> None:
        self._alone(self._upload, self._target(stream) or self._stream)

    def _upload(self, target: CudaStream[Any]) -> None:
        owned, queue = self._check(target)
        executable = owned.executable.executable
        driver.ensure_in(self._context, driver.ask, "cuGraphUpload", executable, queue.handle)

    def _target(self, stream: StreamLike | None) -> CudaStream[Any] | None:
        found = open_scopes.innermost() if stream is None else wrap(stream)
        if isinstance(found, HostStream):
            raise messages.device_mismatch(self, found, "a CUDA graph runs on CUDA streams.")
        return found

    def _check(self, target: CudaStream[Any]) -> tuple[OwnedGraph, QueueRecord]:
        """Return the graph and the queue of a stream on which it can run now."""
        owned = self._owned or self._ready()
        queue = target._queue or target._live()  # noqa: SLF001 - as in ``launch``
        if queue.context != self._context:
            raise messages.device_mismatch(
                self, target, "a graph runs on streams of its own context."
            )
        if ordering.capture_of(queue) is not None:
            raise _refused_inside(target)
        return owned, queue

    def close(self) -> None:
        owned = self._alone(self._take)
        if owned is not None:
            disposal.dispose(owned)

    def _take(self) -> OwnedGraph | None:
        """Return the executable, and have the graph closed; None if it is closed."""
        owned = None if self.closed else self._ready()
        self._owned = None
        return owned

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._owned is not None and not is_finalizing():  # else the modules may be gone
            disposal.dispose(self._owned)


def _while_it_lives(queue: QueueRecord, native: object) -> Callable[[], QueueRecord | None]:
    """Return what tells the queue while its handle is valid, and keeps no library's stream."""
    if disposal.lives_with_its_record(queue) or queue.is_default:
        return lambda: queue if identity.is_alive(queue) else None
    try:
        owner = weakref.ref(queue.owner if native is None else native)
    except TypeError:  # no owner is known, or it takes no weak references
        return lambda: None

    def living() -> QueueRecord | None:
        with contextlib.suppress(errors.StreamKitError):  # it has gone, or is closed
            return identity.queue_of(owner())
        return None

    return living


@contextlib.contextmanager
def in_order_with_libraries(
    stream: CudaStream[Any],
) -> Generator[list[tuple[QueueRecord, Any]]]:
    """Let a stream's work of the block come after the libraries' so far, and before their next.

    The block gets their queues, each with the stream that keeps it alive.
    """
    queue = stream._live()
    with driver.in_context(queue.context):
        libraries = loaded_libraries.libraries()
        others = loaded_libraries.other_queues(queue, libraries)
        if not libraries:  # ``current_stream`` then names the legacy stream
            others = [(identity.legacy(queue.device), None)]
        for asked in (queue, *(other for other, _ in others)):
            if ordering.capture_of(asked) is not None:  # maybe by another thread
                raise _refused_inside(CudaStream(asked, None))
        for other, _ in others:
            ordering.wait_queue(queue, other)
        try:
            yield others
        finally:  # an interrupt can come when the work is queued already
            for other, _ in others:
                ordering.wait_queue(other, queue)


def _refused_inside(stream: CudaStream[Any]) -> errors.CaptureError:
    return errors.CaptureError(
        f"a graph was not launched on {describe(stream)}, which captures, because it cannot be a "
        "part of another one. Call the function itself inside the capture, or launch the graph "
        "outside of it."
    )
