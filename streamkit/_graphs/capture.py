"""``capture``: one CUDA graph from every loaded library, begun and ended by parts in order."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import driver, graphs
from streamkit._cuda.graphs import DriverPart
from streamkit._graphs import checks, disposal
from streamkit._graphs.disposal import OwnedGraph
from streamkit._graphs.graph import CudaGraph
from streamkit._queues import active_captures, loaded_libraries, registry
from streamkit._streams.current import use
from streamkit._streams.factories import new_stream
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import wrap
from streamkit._support import garbage
from streamkit._support.messages import describe
from streamkit._support.refusals import block
from streamkit.protocols import Capture
from streamkit.protocols.adapters import all_offered, offered
from streamkit.protocols.queues import LEGACY

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from contextlib import AbstractContextManager

    from streamkit._queues.loaded_libraries import LoadedLibrary
    from streamkit._streams.stream import CudaStream
    from streamkit.protocols import Adapter, CapturePart, JoinedPart, StreamLike

_OF_CAPTURES = re.compile(
    r"stream[ _]?capture|graph capture|cuda ?graph|capture sequence|uncaptured work|during captur"
    r"|(is|while|when) capturing|capturing (blocking )?stream|capture was not ended|captured_event",
    re.IGNORECASE,
)
"""The words of CUDA and the libraries in errors of captures; a program may say "captured" too."""


def capture(
    stream: StreamLike | None = None, *, mode: str = "thread_local"
) -> AbstractContextManager[CudaGraph]:
    """Capture what the block does into one graph, from every loaded library, without running it.

    The stream is current in the libraries inside the block. Allocations are the graph's: an array
    made inside holds the result of the last launch. Arrays from before are yours to keep, or
    ``g.keep(x)``; change them in place between launches. However the block ends, no stream captures
    and the libraries' current streams are as before. Its own errors pass.

    Run the block once before: what a library makes at its first use is illegal inside. With torch,
    the first capture of a process or thread waits until the GPU is idle, and Python with it: where
    that matters, capture once before there is long work. One thread at a time can capture with
    libraries that have one capture for the process.

    Args:
        stream: Any library's; errors as those of ``wrap``. None makes ``g.stream``, nonblocking and
            this graph's alone.
        mode: CUDA's, "global", "thread_local" or "relaxed": which threads' unsafe calls, such as
            allocations of CUDA's own, break the capture.

    Raises:
        CaptureError: The block did nothing, left a fork unjoined or a library on a stream outside
            the capture, or did what is illegal inside.
        UnsupportedStreamError: The stream is of the host.
        ValueError: ``mode`` is none of CUDA's.
    """
    if mode not in graphs.MODES:
        known = ", ".join(graphs.MODES)
        raise ValueError(f"{describe(mode)} is not a capture mode: use one of {known}.")
    target = new_stream(nonblocking=True) if stream is None else wrap(stream)
    if isinstance(target, HostStream):
        raise errors.UnsupportedStreamError(
            f"{describe(target)} is a host stream, which has no graphs. Without a GPU, run the "
            "block's code again instead of launching a graph."
        )
    if target._live().handle == LEGACY:
        raise errors.CaptureError(
            f"{describe(target)} is the legacy default stream, which CUDA cannot capture. Capture "
            "on a stream of its own: streamkit.capture() makes one."
        )
    return capture_on(target, mode, is_private=stream is None)


@contextlib.contextmanager
def around(adapters: Iterable[Adapter], held: list[Any] | None = None) -> Generator[None]:
    """Prepare the libraries in this thread for work that is captured, or will be in a later call.

    ``held`` takes the pools that they give for the graph; without it nothing captures yet.
    """
    with contextlib.ExitStack() as blocks:
        for enter in all_offered(adapters, Capture.around_capture):
            pool = blocks.enter_context(enter(captures=held is not None))
            if held is not None and pool is not None:
                held.append(pool)
        yield


@block("streamkit.capture() as graph")
def capture_on(
    stream: Any, mode: str = "thread_local", *, is_private: bool
) -> Generator[CudaGraph]:
    """Capture as ``capture`` does; ``is_private`` says that the stream was made for this graph."""
    kept: list[object] = []
    graph = CudaGraph(stream, kept)
    disposal.sweep()
    libraries = loaded_libraries.libraries()
    adapters = [registry.adapter(library.name) for library in libraries]
    parts_of: Any = Capture.begins_capture, Capture.joins_capture
    single = [one.name for one in adapters if any(offered(one, part) for part in parts_of)]
    queue = stream._live()  # now, because the block can close the stream
    held: list[Any] = []
    try:
        with active_captures.noted(single, kept):
            checks.refuse_inside_another(stream)
            with driver.in_context(stream.context):
                empties = disposal.caches_are_due()
                for prepare in all_offered(adapters, Capture.prepare):
                    prepare(empties_cache=empties)
            with use(stream), garbage.held_back(), around(adapters, held):
                parts = _Parts(stream, mode, adapters, is_private=is_private)
                try:
                    parts.begin()
                    yield graph
                    graph._complete(parts.end(held, libraries))  # noqa: SLF001 - no method for users
                except BaseException as error:
                    graph._complete(None)  # noqa: SLF001 - no method for users
                    if held:  # the block's work on other streams may still use the pools' memory
                        disposal.waiting.append(disposal.UsedPools(queue, tuple(held)))
                        held.clear()
                    try:
                        explained = parts.explain(error)
                    finally:
                        parts.abandon(error)
                    if explained is None:
                        raise
                    if error.__traceback__ is not None:
                        # this frame's caller has the error, and both would hold the block's frames
                        error.__traceback__ = error.__traceback__.tb_next
                    try:
                        raise explained from error
                    finally:
                        del explained  # as this frame is in its traceback
        disposal.free_deferred(parts.joined, queue.context)
        _warn_of_shared(graph)
    finally:
        disposal.sweep()


_newest: weakref.WeakValueDictionary[Any, CudaGraph] = weakref.WeakValueDictionary()
"""The newest graph of a stream that shares something with others of it, by the stream's id."""


def _warn_of_shared(graph: CudaGraph) -> None:
    """Warn if another graph that was captured on the same stream can still be launched."""
    owned = graph._owned  # noqa: SLF001 - no attribute for users
    if owned is None or owned.executable.shared is None:  # another thread can have closed it
        return
    older = _newest.get(owned.stream_id)
    _newest[owned.stream_id] = graph
    if older is not None and not older.closed:
        warnings.warn(
            f"two graphs were captured on {describe(graph.stream)}, so they share "
            f"{owned.executable.shared}: if they run at once, their results are wrong. Capture "
            "each on a stream of its own: 'with streamkit.capture() as graph:'.",
            RuntimeWarning,
            stacklevel=4,
        )


class _Parts:
    """The parts of a running capture: of the library or driver that began it, and of who joined."""

    _is_finalizing = staticmethod(sys.is_finalizing)  # at the end the modules may be gone

    def __init__(
        self, stream: CudaStream[Any], mode: str, adapters: list[Adapter], *, is_private: bool
    ) -> None:
        self._stream = stream
        self._queue = stream._live()  # kept here, because the block can close the stream
        self._adapters = adapters
        self._library: str | None = None
        self._origin: Any = stream
        self._first: CapturePart = DriverPart(self._queue.handle, mode)
        self._joined: list[JoinedPart] = []
        for adapter in adapters:
            begins = offered(adapter, Capture.begins_capture)
            joins = offered(adapter, Capture.joins_capture)
            if begins is not None and self._library is None:
                if not is_private:
                    self._origin = new_stream(stream.device_id, nonblocking=True)
                origin = self._origin.to(adapter.name)
                self._first = begins(stream.to(adapter.name), mode, origin)
                self._library = adapter.name
            elif joins is not None:
                self._joined.append(joins(stream.to(adapter.name), mode))
        self.joined = tuple(self._joined)

    def begin(self) -> None:
        self._first.begin()
        for part in self._joined:
            part.begin()

    def end(self, held: list[Any], libraries: Iterable[LoadedLibrary]) -> OwnedGraph:
        """End the capture; return its graph, which holds the pools in ``held`` and more.

        CaptureError unless the capture is whole and has each library's current stream.
        """
        self._return()
        checks.check_complete(self._stream)
        checks.check_nobody_left(self._stream, libraries)
        pools = len(held)
        while self._joined:
            held.append(self._joined[-1].end())
            del self._joined[-1]
        executable = self._first.end()
        graph = OwnedGraph(executable, self._library, self._queue, tuple(held[:pools]))
        # no other graph gets the origin meanwhile: libraries keep memory for it, which runs use
        graph.held.extend((*held[pools:], self._origin))
        return graph

    def explain(self, error: BaseException) -> Exception | None:
        """Return the CaptureError for an error of the capture; None for the block's own error."""
        if isinstance(error, errors.DriverError) and _OF_CAPTURES.search(error.name):
            return errors.CaptureError(
                f"the capture on {describe(self._stream)} was dropped: {error}"
            )
        if isinstance(error, errors.StreamKitError) or not isinstance(error, Exception):
            return None
        try:
            self._return()
            found = graphs.captured(self._queue.handle)
        except errors.StreamKitError:  # a broken context, or a forked child
            return None
        advice = None
        for explain in all_offered(self._adapters, Capture.explain_capture):
            if not advice:
                with contextlib.suppress(Exception):  # an error in it must not hide the block's
                    advice = explain(error)
        is_whole = found is not None and found.is_valid
        if is_whole and advice is None and not names_capture(error, self._adapters):
            return None
        said = str(error).partition("\n")[0]
        return errors.CaptureError(
            f"{type(error).__name__} inside the capture on {describe(self._stream)}, which was "
            f"dropped: {said}.{checks.of_blocking(self._queue)} {advice or checks.FIRST_USE}"
        )

    def abandon(self, error: BaseException) -> None:
        """End every part, in any state, and drop the captured work.

        A part that cannot be ended becomes a note on ``error``, which led here and is raised. At
        the end of the interpreter all stays, because torch ends the process if a capture ends then.
        """
        if self._is_finalizing():
            return
        try:
            self._abandon()
        except BaseException as first:  # after an interrupt or a failed call, a second try
            try:
                self._abandon()
            except Exception as second:  # noqa: BLE001 - a library's own
                error.add_note(
                    f"and after that the capture on {describe(self._stream)} could not be ended: "
                    f"{type(second).__name__}: {second}"
                )
            if not isinstance(first, Exception):
                raise

    def _return(self) -> None:
        """Make the stream's context current again, which the block may have left."""
        if driver.current_context() != self._queue.context:
            driver.set_context(self._queue.context)

    def _abandon(self) -> None:
        self._return()
        with contextlib.ExitStack() as parts:
            parts.callback(self._first.abandon)
            for part in self._joined:
                parts.callback(part.abandon)


def names_capture(error: Exception, adapters: Iterable[Adapter]) -> bool:
    """Whether an error of these libraries, or a built-in one, is about captures.

    An error class of the program's own never is. Nor is an OutOfMemoryError, in which libraries
    name graphs too.
    """
    kind = type(error)
    roots = {"builtins", *(adapter.name.partition(".")[0] for adapter in adapters)}
    is_theirs = str(kind.__module__).partition(".")[0] in roots
    if not is_theirs or kind.__name__ == "OutOfMemoryError" or not isinstance(error, RuntimeError):
        return False
    return _OF_CAPTURES.search(str(error)) is not None
