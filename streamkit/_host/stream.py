"""``HostStream``: the same interface as a real queue on the CPU, for machines without a GPU.

A busy stream has one worker thread, started when work comes and gone when the queue is empty. The
body of ``with s:`` is an item of the queue too: the worker hands its turn to the thread that
entered and goes on when the body is left, so what that thread does meanwhile runs inline.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, NoReturn

from streamkit import errors
from streamkit._base import messages, trace
from streamkit._base.static_protocol import Concrete
from streamkit._host.event import HostEvent, foreign, no_cuda
from streamkit._host.waits import HostWaits
from streamkit._host.work_queue import Mark, Turn, Wait, WorkQueue
from streamkit._queues import keepalive
from streamkit._scopes import open_scopes
from streamkit.protocols import Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, Self

    from streamkit._base.trace import Step

    P = ParamSpec("P")


class HostScope:
    """One open scope, as a thread's stack holds it; without a turn until ``begin``."""

    plan = None
    again = 0
    _turn: Turn | None = None  # here, because an interrupt can leave it half made
    _step: Step | None = None  # what an audit is told of it

    def __init__(self, stream: HostStream, key: object) -> None:
        self.stream = stream
        self.key = key

    def begin(self) -> None:
        """Wait for the queue's turn."""
        queue = self.stream._queue  # noqa: SLF001 - of host streams, as this is
        self._turn = Turn(queue)
        with trace.note(self.stream, "synchronisation", "with", unless=queue.idle):
            self._turn.begin()
        self._step = trace.begin(self.stream, "scope", "with")

    def leave(self) -> list[str]:
        """Let the queue go on, if it is held; a second time does what is left."""
        if self._turn is not None:
            if self._step is not None:
                self._step.end()
            self._turn.end()
        return []

    def __del__(self) -> None:
        self.leave()  # the thread ended inside it


def enter(stream: HostStream, key: object) -> None:
    """Open a scope of this thread under ``key``, which must leave it."""
    stream._check_open()  # noqa: SLF001 - of host streams, as this is
    scope = HostScope(stream, key)
    try:
        if not open_scopes.holds(stream):
            scope.begin()
        open_scopes.push(scope)
    except BaseException:  # an interrupt must not leave the queue held for ever
        scope.leave()
        raise


class KeptOnHost(keepalive.Kept):
    """Objects kept until a mark is reached."""

    __slots__ = ("_mark",)

    def __init__(self, objects: tuple[object, ...], mark: Mark) -> None:
        super().__init__(objects)
        self._mark = mark

    def has_passed(self) -> bool:
        """Whether the mark is reached, without letting an engine run anything."""
        return self._mark.reached.is_set()


class HostKeeper:
    """A host stream as something that keeps objects alive."""

    _ledger: keepalive.Ledger
    _queue: WorkQueue
    _check_open: Callable[[], None]
    _put: Callable[[Callable[[], None]], None]

    @property
    def dlpack_stream(self) -> None:
        """None, as DLPack has it for memory of the host."""
        return

    def keep(self, *objects: object) -> None:
        """Keep the objects alive until all work submitted so far has run; never blocks.

        A later call of StreamKit, or a garbage collection, lets them go.
        """
        self._check_open()
        mark = Mark(self._queue)
        self._put(mark)
        self._ledger.add(KeptOnHost(objects, mark))
        keepalive.let_go((self._ledger,))


_ids = itertools.count(1)


class HostStream(HostKeeper, HostWaits, Stream, metaclass=Concrete):
    """A first-in, first-out queue on the CPU with the interface of a CUDA stream.

    What it promises is documented on ``Stream``. Safe to use from any thread.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        nonblocking: bool = False,
        owned: bool = True,
        thread: int | None = None,
    ) -> None:
        self._name = name
        self._id = next(_ids)
        self._nonblocking = nonblocking
        self._owned = owned
        self._thread = thread  # whose per-thread default queue it is
        self._closed = False
        self._queue = WorkQueue(f"streamkit-{self._id}")
        self._ledger = keepalive.Ledger()

    @property
    def handle(self) -> NoReturn:
        """Raise UnsupportedStreamError: there is no CUDA stream behind it."""
        raise no_cuda(self, "a handle")

    def __int__(self) -> NoReturn:
        """Raise UnsupportedStreamError: there is no CUDA stream behind it."""
        raise no_cuda(self, "a handle")

    def to(self, library: str) -> NoReturn:  # noqa: ARG002 - the interface
        """Raise UnsupportedStreamError: there is no CUDA stream behind it."""
        raise no_cuda(self, "a stream of another library")

    @property
    def native(self) -> None:
        """None: it wraps nothing."""

    @property
    def device(self) -> str:
        """``"cpu"``."""
        return "cpu"

    @property
    def device_id(self) -> None:
        """None: it is no CUDA device."""
        return

    @property
    def id(self) -> int:
        """A number that no other host stream of this process has."""
        return self._id

    @property
    def name(self) -> str | None:
        """The name given to ``new_stream``."""
        return self._name

    @property
    def owned(self) -> bool:
        """True, but for the default queues."""
        return self._owned

    @property
    def closed(self) -> bool:
        """Whether ``close`` has made this object unusable."""
        return self._closed

    @property
    def is_default(self) -> bool:
        """Whether this is one of the default queues."""
        return not self._owned

    @property
    def is_nonblocking(self) -> bool:
        """As asked for; host queues have no implicit order in either case."""
        return self._nonblocking

    @property
    def priority(self) -> int:
        """0: host queues have one priority."""
        return 0

    @property
    def is_capturing(self) -> bool:
        """False: host work is not captured."""
        return False

    @property
    def context(self) -> NoReturn:
        """Raise UnsupportedStreamError: there is no CUDA context."""
        raise no_cuda(self, "a context")

    def _check_open(self) -> None:
        if self._closed:
            raise messages.closed(self)
        if (
            self._thread is not None
            and _per_thread.stream is not self
            and not open_scopes.holds(self)  # the worker runs this thread's functions
        ):
            raise messages.wrong_thread(self, self._thread, threading.get_ident())

    def _put(self, item: Callable[[], None]) -> None:
        """Queue an item, or run it at once if this thread's body is the running item."""
        if open_scopes.holds(self):
            item()
        else:
            self._queue.put(item)

    def submit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue ``fn(*args, **kwargs)``; its error is raised by all that waits for it.

        If nothing does, by the next ``sync``. It returns no value: results travel in arrays.
        """
        self._check_open()
        step = trace.note(self, "function", fn)

        def call() -> None:
            key = object()
            open_scopes.push(HostScope(self, key))
            try:
                try:
                    with step:
                        fn(*args, **kwargs)
                finally:
                    open_scopes.leave(key)
            except BaseException as error:  # raised where the user waits
                here = threading.current_thread()
                if isinstance(error, KeyboardInterrupt) and here is threading.main_thread():
                    raise  # a Ctrl-C, which comes there only
                self._queue.first.set(error)

        self._put(call)

    def record(
        self, event: object = None, *, timing: bool = False, external: bool = False
    ) -> HostEvent:
        """Mark this point of the queue and return the event; never blocks. See ``Stream``."""
        self._check_open()
        self._refuse_external(external=external)
        if event is None:
            target = HostEvent(timing=timing)
        elif timing:
            raise ValueError(f"{messages.describe(event)} is given, and timing is fixed when made")
        elif isinstance(event, HostEvent):
            target = event
            target._live()  # noqa: SLF001 - next door
        else:
            raise foreign(self, event)
        target._mark = mark = Mark(self._queue)  # noqa: SLF001 - next door
        target._source = weakref.ref(self)  # noqa: SLF001 - next door
        self._put(mark)
        trace.note(self, "record", "record", mark)
        return target

    def wait(self, other: object, *, external: bool = False) -> None:
        """Let later work run after another host stream or event. See ``Stream``.

        Inside ``with s:`` it blocks: the body is the queue's running item.
        """
        self._check_open()
        self._refuse_external(external=external)
        if isinstance(other, HostStream):
            if other is self:
                return
            mark = other.record()._mark  # noqa: SLF001 - next door
        elif isinstance(other, HostEvent):
            mark = other._live()  # noqa: SLF001 - next door
        else:
            raise foreign(self, other)
        if mark is not None:
            trace.note(self, "wait", "wait", mark)
            self._put(Wait(mark))

    def _refuse_external(self, *, external: bool) -> None:
        if external:
            raise errors.UnsupportedStreamError(
                f"{self!r} has no graphs: external=True is for a CUDA stream that captures."
            )

    def __enter__(self) -> Self:
        """Wait for the queue's turn; the body runs inline as its next item."""
        enter(self, self)
        return self

    def __exit__(self, *_: object) -> None:
        """End the item; what other threads submitted meanwhile follows."""
        open_scopes.leave(self)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a queue is not copied and not sent to another process."""
        raise messages.not_copied(self)

    def close(self) -> None:
        """Give up the stream; returns at once, and what was submitted still runs."""
        if self._owned:
            self._closed = True

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        state = " closed" if self._closed else " default" if not self._owned else ""
        return f"<streamkit.HostStream{name} cpu id={self._id}{state}>"


# -- the default queues -----------------------------------------------------------------------

_default = HostStream(owned=False, name="default")


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.stream = HostStream(owned=False, name="per-thread", thread=threading.get_ident())


_per_thread = _PerThread()


def default() -> HostStream:
    """Return the host's default queue, one for the process."""
    return _default


def per_thread() -> HostStream:
    """Return this thread's own default queue."""
    return _per_thread.stream
