"""``HostStream``: the same interface as a real queue on the CPU, for machines without a GPU.

A busy stream has one worker thread, started when work comes and gone when the queue is empty. The
body of ``with s:`` is an item of the queue too: the worker hands its turn to the thread that
entered and goes on when the body is left, so what that thread does meanwhile runs inline.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, NoReturn

from streamkit import _scope, errors
from streamkit._host_event import HostEvent, Mark, no_cuda
from streamkit.protocols import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import ParamSpec, Self

    P = ParamSpec("P")

_ids = itertools.count(1)


class HostStream(Stream):
    """A first-in, first-out queue on the CPU with the interface of a CUDA stream.

    What it promises is documented on ``Stream``. Safe to use from any thread.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        nonblocking: bool = False,
        owned: bool = True,
    ) -> None:
        self._name = name
        self._id = next(_ids)
        self._nonblocking = nonblocking
        self._owned = owned
        self._closed = False
        self._items: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._working = False
        self._error: BaseException | None = None
        self._holder: int | None = None  # the thread whose ``with s:`` body is running
        self._depth = 0
        self._release: threading.Event | None = None

    # -- what it is ---------------------------------------------------------------------------

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
        return

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

    # -- the queue ----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise errors.closed(self)

    def _put(self, item: Callable[[], None]) -> None:
        """Queue an item, or run it at once if this thread's body is the running item."""
        if self._holder == threading.get_ident():
            item()
            return
        with self._lock:
            self._items.append(item)
            if self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name=f"streamkit-{self._id}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._items:
                    self._working = False
                    return
                item = self._items.popleft()
            item()

    def submit(self, fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue ``fn(*args, **kwargs)``; its first error is raised by the next ``sync``.

        It returns no value: results travel in arrays.
        """
        self._check_open()

        def call() -> None:
            try:
                fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised where the user waits
                if self._error is None:
                    self._error = error

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
            raise ValueError(f"{errors.describe(event)} is given, and timing is fixed when made")
        elif isinstance(event, HostEvent):
            target = event
            target.live()
        else:
            raise self._foreign(event)
        target.mark = mark = Mark()
        self._put(mark.reach)
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
            mark = other.record().mark
        elif isinstance(other, HostEvent):
            mark = other.live()
        else:
            raise self._foreign(other)
        if mark is not None:
            self._put(mark.wait)

    def _foreign(self, other: object) -> Exception:
        if isinstance(other, (Stream, Event)) or hasattr(type(other), "__cuda_stream__"):
            return errors.device_mismatch(
                self, other, "a host queue cannot wait for CUDA. Sync the CUDA stream first."
            )
        return errors.UnsupportedStreamError(
            f"{errors.describe(other)} is no host stream or host event."
        )

    def _refuse_external(self, *, external: bool) -> None:
        if external:
            raise errors.UnsupportedStreamError(
                f"{self!r} has no graphs: external=True is for a CUDA stream that captures."
            )

    @property
    def done(self) -> bool:
        """Whether all work submitted so far has run. Raises the first error of a function."""
        self._check_open()
        if self._holder == threading.get_ident():
            idle = True
        else:
            with self._lock:
                idle = not self._working
        if idle:
            self._raise_error()
        return idle

    def sync(self, timeout: float | None = None) -> None:
        """Block until all work submitted so far has run, at most ``timeout`` seconds.

        Raises the first error of a submitted function, once. TimeoutError names the stream.
        """
        self._check_open()
        mark = self.record().mark
        if mark is not None and not mark.reached.wait(timeout) and timeout is not None:
            errors.raise_timeout(self, timeout)
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # -- the scope ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Wait for the queue's turn; the body runs inline as its next item."""
        enter(self, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the item; what other threads submitted meanwhile follows."""
        _scope.leave(self)

    def _take_turn(self) -> None:
        self._check_open()
        if self._holder == threading.get_ident():
            self._depth += 1
            return
        turn, release = threading.Event(), threading.Event()

        def hand_over() -> None:
            turn.set()
            release.wait()

        self._put(hand_over)
        try:
            turn.wait()
        except BaseException:  # an interrupted wait must not leave the queue held for ever
            release.set()
            raise
        self._holder, self._depth, self._release = threading.get_ident(), 1, release

    def _end_turn(self) -> None:
        self._depth -= 1
        release = self._release
        if self._depth == 0 and release is not None:
            self._holder = self._release = None
            release.set()

    # -- its end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up the stream; returns at once, and what was submitted still runs."""
        if self._owned:
            self._closed = True

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        state = " closed" if self._closed else " default" if not self._owned else ""
        return f"<streamkit.HostStream{name} cpu id={self._id}{state}>"


class _HostScope:
    __slots__ = ("key", "stream")

    def __init__(self, stream: HostStream, key: object) -> None:
        self.stream, self.key = stream, key

    def leave(self) -> list[str]:
        self.stream._end_turn()  # noqa: SLF001 - one module's business
        return []


def enter(stream: HostStream, key: object) -> None:
    """Open a scope of this thread under ``key``, which must leave it."""
    stream._take_turn()  # noqa: SLF001 - one module's business
    _scope.push(_HostScope(stream, key))


# -- the default queues -----------------------------------------------------------------------

_default = HostStream(owned=False, name="default")


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.stream = HostStream(owned=False, name="per-thread")


_per_thread = _PerThread()


def default() -> HostStream:
    """Return the host's default queue, one for the process."""
    return _default


def per_thread() -> HostStream:
    """Return this thread's own default queue."""
    return _per_thread.stream
