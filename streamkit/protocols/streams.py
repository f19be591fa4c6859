"""The contract of streams, events and graphs, and of the objects that can stand for one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from streamkit._support.classes import StaticProtocol, made_by

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from typing import ParamSpec, Self, TypeVar

    from streamkit.protocols.outcomes import Outcome

    P = ParamSpec("P")
    T = TypeVar("T")


@made_by("streamkit.new_stream() makes a stream, and streamkit.wrap(obj) takes another library's")
@runtime_checkable
class Stream(Protocol, metaclass=StaticProtocol):
    """An ordered queue of GPU (or host) work: work submitted to it runs in order.

    Methods may be called from any thread, except on a per-thread default stream, which raises
    ScopeError outside its own thread. A closed stream raises StreamClosedError. Errors of the
    CUDA driver are DriverError. ``isinstance(x, Stream)`` evaluates nothing of ``x``.
    StreamKit's own streams take no attributes of yours.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # the function is streamkit.from_handle, set where that is defined

        @staticmethod
        def from_handle(handle: int, *, device: object = None, owner: object = None) -> Stream:
            """See ``streamkit.from_handle``."""
            raise AssertionError(handle, device, owner)

    @property
    @abstractmethod
    def handle(self) -> int:
        """The ``cudaStream_t`` as a plain int, unchanged: 0 and 1 both name the legacy stream.

        Raises:
            UnsupportedStreamError: It is a host stream, with no CUDA stream behind it.
        """

    @property
    @abstractmethod
    def device(self) -> str:
        """``"cuda:N"`` or ``"cpu"``, as torch and Warp accept it."""

    @property
    @abstractmethod
    def device_id(self) -> int | None:
        """The CUDA ordinal; None on the host."""

    @property
    @abstractmethod
    def id(self) -> int | tuple[int, int, int]:
        """The driver's id of the queue, or a host stream's number; no later queue has it.

        The queue of a closed stream can serve a new stream. A stream first seen while it captured
        has (device, handle, capture id) until that ends.
        """

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether its ``close``, or that of the object it wraps, has made this object unusable."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all work submitted so far has run.

        Raises:
            DriverError: Some of the work failed.
            CaptureError: A capture forbids the question.
        """

    @abstractmethod
    def record(
        self, event: EventLike | None = None, *, timing: bool = False, external: bool = False
    ) -> Event:
        """Mark this point of the queue and return the event; never blocks.

        Args:
            event: Any library's event to record again; None makes a new one.
            timing: Let the new event measure time.
            external: Make the record a node of the graph being captured, instead of an edge in it.

        Raises:
            UnsupportedStreamError: ``event`` is not an event; or ``external`` on a host stream.
            DeviceMismatchError: ``event`` is of another device.
            ValueError: ``timing`` with an event that is there already.
        """

    @abstractmethod
    def wait(self, other: StreamLike | EventLike | WorkLike, *, external: bool = False) -> None:
        """Let work submitted from now on run after any library's stream, event or work.

        Never blocks the host, except inside ``with s:`` of a host stream, whose body is the queue's
        running item. Each has a call of its own: ``t.wait(a)``, ``t.wait(b)``.

        Args:
            other: A stream, for all that was submitted to it so far; an event, for its last
                recorded point, where one that was never recorded orders nothing, as in CUDA; or
                work, a ``torch.distributed.Work`` or the future of one, for that collective
                operation. Work is kept alive until this stream has passed it.
            external: Make the wait a node of the graph being captured, instead of an edge in it.

        Raises:
            UnsupportedStreamError: ``other`` is none of these; its library cannot let a stream wait
                for it, as for a future that is not done; or ``external`` on a host stream.
            DeviceMismatchError: One of the two is of the host.
            ValueError: ``external`` with work, which is done once.
        """

    @abstractmethod
    def sync(self, timeout: float | None = None, *, spin: bool = False) -> None:
        """Block until all work submitted so far has run.

        The GIL is released, and Ctrl-C ends the wait. A wait longer than a millisecond leaves the
        processor to others, and on a GPU it ends some 0.1 to 0.3 ms late.

        Args:
            timeout: At most so many seconds; None for as long as it takes.
            spin: End as soon as possible, and take a whole core until then, as torch's
                ``synchronize``.

        Raises:
            TimeoutError: The time is over. The message names the stream, whose work goes on.
            DriverError: Some of the work failed.
            CaptureError: A capture forbids the wait.
        """

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, None]:
        """Suspend an asyncio task until all work submitted so far has run; errors as ``sync``'s.

        The thread, any one, needs a running loop. Cancelling the task leaves the work alone.
        """

    @abstractmethod
    def to(self, library: str) -> Any:
        """Return a library's own stream object on this queue, which that object keeps alive.

        A ``CUstream`` of cuda.bindings keeps nothing alive. The object is the same each time, and
        the wrapped one for its own library.

        Args:
            library: The library's name, such as "torch", "cupy", "warp", "numba" or "cuda.core".

        Raises:
            BackendNotInstalledError: The library cannot be imported.
            UnsupportedStreamError: The library cannot take the stream; it is a host stream; or no
                adapter has this name.
        """

    @abstractmethod
    def submit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``fn`` as this stream's work. The arguments are those of ``CudaStream.submit``."""

    @abstractmethod
    def then(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Call ``fn`` after all work so far. The arguments are those of ``CudaStream.then``."""

    @abstractmethod
    def keep(self, *objects: object) -> None:
        """Hold objects for all work so far. The arguments are those of ``CudaStream.keep``."""

    @abstractmethod
    def close(self) -> None:
        """Give up an owned stream; returns at once, also while it is busy: its work still runs.

        Nothing happens on a borrowed or default stream, nor the second time.
        """

    @abstractmethod
    def __enter__(self) -> Self:
        """Make this the current stream of every loaded library, as ``streamkit.use``."""

    @abstractmethod
    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Restore what ``__enter__`` changed."""


@made_by("streamkit.new_event() makes an event, and streamkit.wrap_event(obj) takes any library's")
@runtime_checkable
class Event(Protocol, metaclass=StaticProtocol):
    """A point of a queue: done when everything submitted before it has run.

    Methods may be called from any thread; errors of the CUDA driver are DriverError.
    StreamKit's own events take no attributes of yours.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def handle(self) -> int:
        """The ``cudaEvent_t`` as a plain int; 0 for a torch event that was never recorded.

        Raises:
            UnsupportedStreamError: It is a host event, with no CUDA event behind it.
        """

    @property
    @abstractmethod
    def device(self) -> str:
        """``"cuda:N"`` or ``"cpu"``."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the last recorded point was reached; True if it was never recorded.

        Raises what ``sync`` raises, but for TimeoutError.
        """

    @abstractmethod
    def sync(self, timeout: float | None = None, *, spin: bool = False) -> None:
        """Block until the last recorded point was reached.

        If it is recorded again meanwhile, the wait may be for that. Errors as ``Stream.sync``'s.

        Args:
            timeout: At most so many seconds; None for as long as it takes.
            spin: As in ``Stream.sync``.
        """

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, None]:
        """Suspend an asyncio task until the last recorded point was reached; errors as ``sync``.

        The thread, any one, needs a running loop. Cancelling the task leaves the work alone.
        """

    @abstractmethod
    def __sub__(self, start: Self) -> float:
        """Milliseconds of queue time from ``start`` to this event.

        Raises:
            ValueError: One of the two was made without timing, or was not reached yet.
        """

    @abstractmethod
    def to(self, library: str) -> Any:
        """Return a library's event object on this event, which that object keeps alive.

        Args:
            library: As in ``Stream.to``. A ``CUevent`` of cuda.bindings keeps nothing alive.

        Raises:
            UnsupportedStreamError: The library wraps none (torch, cuda.core), or it is the host's.
            BackendNotInstalledError: The library cannot be imported.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up an owned event; queues still wait for it. Nothing happens to a borrowed one."""


@made_by("'with streamkit.capture() as graph:' makes a graph")
@runtime_checkable
class Graph(Protocol, metaclass=StaticProtocol):
    """The work of a block of ``streamkit.capture``, to be launched again and again.

    Methods may be called from any thread, but ``section``, which is for inside the block.
    """

    @property
    @abstractmethod
    def stream(self) -> Stream:
        """The stream that is captured, current in every library inside the block."""

    @property
    @abstractmethod
    def nodes(self) -> int:
        """The number of nodes; inside the block, of those captured so far."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the graph was closed, or its capture failed."""

    @abstractmethod
    def launch(self, stream: StreamLike | None = None) -> None:
        """Queue a run of all the work; never blocks.

        Runs of one graph follow each other, whatever their streams. A graph is no part of another
        one: inside a capture, call the function itself.

        Args:
            stream: Any library's, of the same device. None: the stream of this thread's innermost
                scope; outside of any, the graph's own, ordered after what each library's current
                stream was given before and before what follows there.

        Raises:
            DeviceMismatchError: The stream is of another device or context, or of the host.
            UnsupportedStreamError: The library that began the capture cannot take the stream: torch
                refuses the per-thread default stream.
            CaptureError: The stream captures, whoever began that, or this graph is still being
                captured. A capture that goes on stays valid.
        """

    @abstractmethod
    def upload(self, stream: StreamLike | None = None) -> None:
        """Bring the graph to the device before its first launch; errors as ``launch``'s.

        Args:
            stream: As in ``launch``; outside of any scope, None is the graph's own.
        """

    @abstractmethod
    def section(self, name: str) -> AbstractContextManager[None]:
        """Hold a part of the block that must not be empty.

        Args:
            name: The part's name in the error.

        Raises:
            CaptureError: The part has added no node to the graph; or nothing is being captured.
        """

    @abstractmethod
    def keep(self, *objects: object) -> None:
        """Keep objects alive as long as the graph.

        Args:
            *objects: Arrays from before the capture that its work uses, or anything else.
        """

    @abstractmethod
    def to_dot(self) -> str:
        """Return the graph in the language of Graphviz."""

    @abstractmethod
    def to_svg(self) -> str:
        """Return a picture of the graph, each library's kernels in its colour; needs no Graphviz.

        A notebook shows it too.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up the graph and all that it holds, once its last run has ended; returns at once.

        Raises:
            CaptureError: The call is inside the graph's own block.
        """


class SupportsCudaStream(Protocol):
    """Any object of the CUDA stream protocol, version 0."""

    @abstractmethod
    def __cuda_stream__(self) -> tuple[int, int]:
        """Return ``(0, handle)``."""


class _HasCudaStream(Protocol):
    @property
    def cuda_stream(self) -> Any: ...


class _HasStreamId(Protocol):
    @property
    def stream_id(self) -> int: ...
    @property
    def device_index(self) -> int: ...


class _HasPointer(Protocol):
    @property
    def ptr(self) -> Any: ...
    def wait_event(self, *arguments: Any, **options: Any) -> Any: ...


class _HasAutoSynchronize(Protocol):
    def auto_synchronize(self, *arguments: Any, **options: Any) -> Any: ...


class _HasGetPtr(Protocol):
    def getPtr(self, *arguments: Any, **options: Any) -> Any: ...  # noqa: N802 - its own name


class _HasCudaEvent(Protocol):
    @property
    def cuda_event(self) -> Any: ...


class _HasElapsedTime(Protocol):
    def elapsed_time(self, *arguments: Any, **options: Any) -> Any: ...


class _IsRecorded(Protocol):
    @property
    def ptr(self) -> Any: ...
    def record(self, *arguments: Any, **options: Any) -> Any: ...


class _IsDone(Protocol):
    @property
    def handle(self) -> Any: ...
    @property
    def is_done(self) -> Any: ...


class _HasFuture(Protocol):
    def get_future(self, *arguments: Any, **options: Any) -> Any: ...
    def is_completed(self, *arguments: Any, **options: Any) -> Any: ...


class _HasValue(Protocol):
    def value(self, *arguments: Any, **options: Any) -> Any: ...
    def add_done_callback(self, *arguments: Any, **options: Any) -> Any: ...


class _SupportsDlpack(Protocol):
    def __dlpack_device__(self, *arguments: Any, **options: Any) -> Any: ...


class _SupportsCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


ForeignStream = (
    SupportsCudaStream
    | _HasCudaStream  # of torch's class for CUDA, or of Warp's
    | _HasStreamId  # of torch's class for any device
    | _HasPointer  # of CuPy, whose memory has a ``ptr`` too
    | _HasAutoSynchronize  # of numba-cuda
    | _HasGetPtr  # of cuda.bindings
)
"""Another library's stream, recognised by its members, so a type checker needs no library."""

StreamLike = Stream | ForeignStream
"""Any object that ``streamkit.wrap`` takes: the annotation for a ``stream`` parameter.

A type checker refuses an object that has no member of a stream. For a library that has an adapter,
and whose streams look like none of these, pass ``typing.cast(Any, stream)``.
"""

EventLike = (
    Event
    | _HasCudaEvent  # of torch's class for CUDA, or of Warp's
    | _HasElapsedTime  # of torch's class for any device, or of numba-cuda
    | _IsRecorded  # of CuPy
    | _IsDone  # of cuda.core
    | _HasGetPtr  # of cuda.bindings
)
"""Any object that ``streamkit.wrap_event`` takes: any library's event."""

WorkLike = _HasFuture | _HasValue  # a future of Python has no ``value``
"""Work that ``Stream.wait`` takes: of torch.distributed, or a future of torch's."""

ArrayLike = _SupportsDlpack | _SupportsCudaArrayInterface
"""Any object that ``streamkit.handoff`` takes: any library's array."""
