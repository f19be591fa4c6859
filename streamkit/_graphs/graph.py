"""``CudaGraph``: what ``capture`` gives, filled in its block and launched after it."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from streamkit import errors
from streamkit._base import messages
from streamkit._base.messages import describe
from streamkit._base.static_protocol import Concrete
from streamkit._cuda import driver, graphs
from streamkit._graphs import checks, disposal, picture
from streamkit._host.stream import HostStream
from streamkit._queues import identity, ordering
from streamkit._scopes import loaded_libraries, open_scopes
from streamkit._streams.stream import CudaStream, wrap
from streamkit.protocols import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from streamkit._graphs.disposal import OwnedGraph
    from streamkit.protocols import StreamLike


class CudaGraph(Graph, metaclass=Concrete):
    """One CUDA graph from every library.

    What it promises is documented on ``Graph``. Safe to use from any thread. One that is dropped
    is closed.
    """

    _owned: OwnedGraph | None = None  # until the capture has ended, and once closed
    _is_capturing = True

    def __init__(self, stream: CudaStream[Any], kept: list[object]) -> None:
        self._stream = stream
        self._context = stream.context  # made current for calls: default streams depend on it
        self._kept = kept
        self._lock = threading.RLock()  # no forked child can use the graph

    # -- while it is captured ---------------------------------------------------------------------

    def _complete(self, owned: OwnedGraph) -> None:
        owned.held.append(self._kept)
        self._owned, self._is_capturing = owned, False

    def _fail(self) -> None:
        self._is_capturing = False
        self._kept = []

    @contextlib.contextmanager
    def section(self, name: str) -> Generator[None]:
        if not self._is_capturing:
            raise errors.CaptureError(
                f"{describe(self)} is not being captured: sections are for inside the capture's "
                "block."
            )
        before = self.nodes
        yield
        if self.nodes == before:
            what = f"the section {name!r} added no node to the graph of {describe(self._stream)}"
            raise checks.no_work(f"{what}: it", self._stream)

    def keep(self, *objects: object) -> None:
        if not self._is_capturing:
            self._ready()
        self._kept.extend(objects)

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
        with self._lock:  # or another thread's close would take it away
            return graphs.count(self._ready().executable.graph)

    def to_dot(self) -> str:
        with self._lock:  # or another thread's close would take it away
            return graphs.dot(self._ready().executable.graph)

    def to_svg(self) -> str:
        with self._lock:  # or another thread's close would take it away
            nodes, edges = graphs.structure(self._ready().executable.graph)
        return picture.svg(nodes, edges)

    def _repr_svg_(self) -> str | None:
        """Show the picture in a notebook, of a graph that can be launched."""
        return None if self._owned is None else self.to_svg()

    def _ready(self) -> OwnedGraph:
        owned = self._owned
        if self._is_capturing:
            raise self._still_capturing()
        if owned is None:
            raise messages.closed(self)
        return owned

    def _still_capturing(self) -> errors.CaptureError:
        return errors.CaptureError(
            f"{describe(self)} is still being captured: use it after the block."
        )

    def __repr__(self) -> str:
        state = "capturing" if self._is_capturing else "closed" if self.closed else "ready"
        return f"<streamkit.CudaGraph {state}, captured on {self._stream!r}>"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a graph is not copied and not sent to another process."""
        raise messages.not_copied(self)

    # -- what it does -----------------------------------------------------------------------------

    def launch(self, stream: StreamLike | None = None) -> None:
        self._ready()
        target = self._target(stream)
        if target is None:
            self._launch_as_a_call()
        else:
            self._launch(target)

    def _launch_as_a_call(self) -> None:
        """Launch after what the libraries were given before, and before what they get next."""
        queue = self._stream._live()
        with driver.ensure_context(self._context):
            others = loaded_libraries.other_queues(queue, loaded_libraries.libraries())
            for asked in (queue, *(other for other, _ in others)):
                if ordering.capture_of(asked) is not None:
                    raise self._launched_in_capture(CudaStream(asked, None))
            for other, _ in others:
                ordering.wait_queue(queue, other)
            try:
                self._launch(self._stream)
            finally:  # an interrupt can come when the run is queued already
                for other, _ in others:
                    ordering.wait_queue(other, queue)

    def _launch(self, target: CudaStream[Any]) -> None:
        with self._lock:
            owned, queue = self._check(target)
            library, before = owned.library, owned.last_launch
            number = identity.public_id(queue)  # one first seen in a capture has its own by now
            if library is not None and before is not None and owned.last_queue != number:
                # the driver orders the runs, but not what a library does before each
                target.wait(before)
            where = queue.handle if library is None else target.to(library)
            with driver.ensure_context(self._context):
                try:
                    owned.executable.launch(where)
                finally:  # an interrupt can come when the run is queued already
                    owned.last_launch, owned.last_queue = target.record(before), number
        if disposal.waiting:
            disposal.sweep()

    def upload(self, stream: StreamLike | None = None) -> None:
        self._ready()
        target = self._target(stream) or self._stream
        with self._lock:
            owned, queue = self._check(target)
            with driver.ensure_context(self._context):
                graphs.upload(owned.executable.executable, queue.handle)

    def _target(self, stream: StreamLike | None) -> CudaStream[Any] | None:
        if type(stream) is CudaStream:  # the hot path
            return stream
        found = open_scopes.innermost() if stream is None else wrap(stream)
        if isinstance(found, HostStream):
            raise messages.device_mismatch(self, found, "a CUDA graph runs on CUDA streams.")
        return found

    def _check(self, target: CudaStream[Any]) -> tuple[OwnedGraph, Any]:
        owned = self._ready()
        queue = target._live()
        if queue.context != self._context:
            raise messages.device_mismatch(
                self, target, "a graph runs on streams of its own context."
            )
        if ordering.capture_of(queue) is not None:
            raise self._launched_in_capture(target)
        return owned, queue

    def _launched_in_capture(self, stream: CudaStream[Any]) -> errors.CaptureError:
        return errors.CaptureError(
            f"{describe(self)} was not launched on {describe(stream)}, which captures: that would "
            "invalidate the capture. Launch it outside, or run its work again inside."
        )

    def close(self) -> None:
        if self._is_capturing:
            raise self._still_capturing()
        with self._lock:
            owned, self._owned = self._owned, None
            self._kept = []  # the other one holds them until the last run has ended
        if owned is not None:
            disposal.dispose(owned)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._owned is not None and not is_finalizing():  # else the modules may be gone
            disposal.dispose(self._owned)
