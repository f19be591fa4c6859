"""``CudaStream``: a CUDA stream of any library, or our own, behind the ``Stream`` interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit import _edges, _event, _identity, _keep, _library, _order, _refusals, _registry
from streamkit._event import CudaEvent
from streamkit._lifetime import OwnedEvent
from streamkit._static_protocol import Concrete
from streamkit._stream_facts import NativeT
from streamkit._stream_waits import StreamWaits
from streamkit.protocols import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    P = ParamSpec("P")


class CudaStream(StreamWaits[NativeT], Stream, metaclass=Concrete):
    """A CUDA stream: owned (``new_stream``) or borrowed (``wrap``, ``from_handle``).

    What it promises is documented on ``Stream``. Safe to use from any thread, except that a
    per-thread default stream belongs to its own thread.
    """

    def record(
        self, event: object = None, *, timing: bool = False, external: bool = False
    ) -> Event:
        """Mark this point of the queue and return the event; never blocks. See ``Stream``."""
        queue = self._queue
        if type(event) is CudaEvent and queue is not None and not timing and not external:
            # the steady state: an event of ours again, on the stream that recorded it last
            core, mark, _ = event._last  # noqa: SLF001 - next door
            if core is not queue.core:
                core, mark, _ = event._prepare(queue)  # noqa: SLF001 - next door
            if mark is not None:
                if _library.is_forked:
                    raise _refusals.forked()
                try:
                    core.record(mark)
                except Exception as error:
                    raise _edges.failed("cuEventRecord", error) from error
                return event
        queue = self._live()
        if event is None:
            target = CudaEvent(
                self.device_id, OwnedEvent(queue.context, timing=timing), timing=timing
            )
        elif timing:
            raise ValueError(f"{_refusals.describe(event)} is given, and timing is fixed when made")
        else:
            target = _event.any_event(event, self)
        target._record_on(self, queue, external=external)  # noqa: SLF001 - next door
        return target

    def wait(self, other: object, *, external: bool = False) -> None:
        """Let later work run after anybody's stream or event; never blocks. See ``Stream``."""
        queue = self._queue
        if queue is None or queue.thread is not None:
            queue = self._live()
        if isinstance(other, CudaStream):
            source = other._queue  # noqa: SLF001 - another of this class
            if source is None or source.thread is not None:
                source = other._live()  # noqa: SLF001 - another of this class
            _order.wait_queue(queue, source, external)
        elif type(other) not in _registry.stream_types and _event.is_event(other):
            event = _event.any_event(other, self)
            held = event._held() if external else None  # noqa: SLF001 - next door
            _order.wait_event(queue, event.handle, external=external, held=held)
        else:
            _event.refuse_host(other, self)
            found, adapter = _registry.extract(other)
            source = _identity.identify(found, adapter, other)
            _order.check_thread(source, other)
            _order.wait_queue(queue, source, external)

    def to(self, library: str) -> Any:
        """Return that library's own stream object on this queue. See ``Stream``."""
        try:
            return self._views[library]
        except KeyError:
            queue = self._live()
            view, may_keep = _registry.view(queue, self._native, library)
            if may_keep and queue.thread is None:  # else every use is checked for its thread
                with _identity.lock:  # another thread may have been first
                    view = self._views.get(library, view)
                    self._views = {**self._views, library: view}
            return view

    def submit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``fn`` now, with this stream current: what it launches is queued here.

        It returns no value: results travel in arrays. On a host stream the call itself is queued.
        """
        with self:
            fn(*args, **kwargs)

    def keep(self, *objects: object) -> None:
        """Keep the objects alive until all work submitted so far has run; never blocks.

        A later call of StreamKit, or a garbage collection, lets them go. CaptureError in a capture,
        whose graph needs them as long as it lives.
        """
        _keep.keep(self._live(), self, objects)

    def close(self) -> None:
        """Give up an owned stream; returns at once, also while it is busy. See ``Stream``.

        The CUDA stream goes when its last view in another library has gone; one that such a
        library's allocator may remember is kept for the next ``new_stream`` of the same kind.
        """
        queue = self._queue
        if not self._owned or queue is None:
            return
        self._last_id = _identity.public_id(queue)
        self._last_device = self.device_id
        self._hash = hash(self)
        self._views, self._plans = {}, {}
        self._queue = None
        _keep.drain()
