"""``HostStream``: the same interface as a real queue on the CPU, for machines without a GPU.

A busy stream has one worker thread, which starts when work comes and ends soon after the last.
The body of ``with s:`` is an item of the queue too. The worker stops for as long as the thread
that entered runs the body, so work that this thread gives to the stream meanwhile runs inline.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from streamkit import errors
from streamkit._queues import keepalive, open_scopes, registry, trace
from streamkit._streams.host_event import HostEvent, no_cuda, no_view
from streamkit._streams.host_queue import Function, QueueEnd, Turn, Wait, WorkQueue, is_parents
from streamkit._support import classes, futures, messages, refusals, reports
from streamkit._support.locks import in_child, is_early_child, new_lock
from streamkit._support.reports import Failure, Submitted
from streamkit.backends import names
from streamkit.protocols import Event, Stream
from streamkit.protocols.queues import here

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from typing import ParamSpec, Self, TypeVar

    from streamkit._streams.host_queue import Item
    from streamkit._streams.then import HostThenCalls
    from streamkit.protocols import EventLike, StreamLike, WorkLike
    from streamkit.protocols.outcomes import Outcome

    P = ParamSpec("P")
    T = TypeVar("T")

_ids = itertools.count(1)
_lock = new_lock()


@registry.uncompiled
@classes.answer(names.answers("stream"))
class HostStream(Stream, metaclass=classes.Concrete):
    """A first-in, first-out queue on the CPU with the interface of a CUDA stream.

    What it promises is documented on ``Stream``. Safe to use from any thread. ``done``, ``sync``
    and ``await`` raise the first error of a submitted function. Every wait that began before one
    of them had raised it raises it too; later waits do not. A note says where the work was
    submitted.

    What is submitted after the failed function is dropped, because its data are not there, until
    ``done``, ``sync``, ``await`` or ``with`` of this stream has raised the error. A stream that
    waits for failed work, as of another stream, has that error too, and drops its functions so.
    """

    __slots__ = (
        "__weakref__", "_after", "_closed", "_id", "_kept", "_name", "_nonblocking", "_owned",
        "_thread", "_work",
    )  # fmt: skip

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
        self._thread = thread  # the thread whose per-thread default queue this is
        self._closed = False
        self._work = WorkQueue(
            f"streamkit-{self._id}", f"host stream {self._id}" + (f" {name!r}" if name else "")
        )
        self._kept = keepalive.KeepAliveList()
        self._after: HostThenCalls | None = None  # the functions given to ``then``, made when used

    @property
    def handle(self) -> NoReturn:
        raise no_cuda(self, "handle")

    def __int__(self) -> NoReturn:
        """Raise UnsupportedStreamError: a host stream has no CUDA handle."""
        raise no_cuda(self, "handle")

    def to(self, library: str) -> NoReturn:
        registry.check_name(library)
        raise no_view(self, "stream", "inside 'with s:' the library's CPU work is this stream's")

    @property
    def context(self) -> NoReturn:
        """Raise UnsupportedStreamError: there is no CUDA context."""
        raise no_cuda(self, "context")

    def _refuse_external(self, *, external: bool) -> None:
        if external:
            raise errors.UnsupportedStreamError(
                f"{self!r} is a host stream, which has no graphs: leave out external=True, "
                "which is for a CUDA stream that captures."
            )

    @property
    def native(self) -> None:
        """None: a host stream wraps no object."""

    @property
    def dlpack_stream(self) -> None:
        """None: DLPack has no stream for memory of the host."""

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def device_id(self) -> None:
        """None: the host is not a CUDA device."""

    @property
    def id(self) -> int:
        return self._id

    @property
    def name(self) -> str | None:
        """The name given to ``new_stream``."""
        return self._name

    @property
    def owned(self) -> bool:
        """True, except for the default queues."""
        return self._owned

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_default(self) -> bool:
        """Whether this is one of the default queues."""
        return not self._owned

    @property
    def is_nonblocking(self) -> bool:
        """Whether the stream was made nonblocking; no host stream has an implicit order."""
        return self._nonblocking

    @property
    def priority(self) -> int:
        """0: host streams have one priority."""
        return 0

    @property
    def is_capturing(self) -> bool:
        """False: host work is not captured."""
        return False

    def _check_open(self) -> None:
        if self._closed:
            raise messages.closed(self)
        if is_parents(self._work):
            raise messages.of_parent(self)
        if (
            self._thread is not None
            and per_thread.stream is not self
            and not self._is_inline()  # as in a function that the stream's worker runs
        ):
            raise messages.wrong_thread(self, self._thread, threading.get_ident())

    def _is_inline(self) -> bool:
        """Whether work that this thread gives to the stream runs at once.

        So it does inside a scope, and in a destructor that the stream's worker happens to run.
        """
        return open_scopes.holds(self) or self._work.is_here

    def _put(self, item: Item) -> None:
        """Queue an item, or run it at once if this thread's body is the running item."""
        if self._is_inline():
            item()
        else:
            self._work.put(item)

    def submit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue the call of a function, whose error every wait for the call raises.

        The next ``sync`` raises it, and so does the next ``sync`` of each stream that waits for the
        call. What either is given after the call is dropped until then. An error that no wait can
        raise any more is reported through ``sys.unraisablehook``, at the latest when the program
        ends.
        The program waits at its end until all submitted work has run, unless a Ctrl-C stops that.
        The arguments are those of ``CudaStream.submit``; no value is returned either.
        """
        self._check_open()
        refusals.check(fn, self, "submit")
        what = Submitted(fn, sys._getframe().f_back)  # noqa: SLF001 - a traceback keeps more
        call = functools.partial(fn, *args, **kwargs)
        is_inline = self._is_inline()
        step = trace.note(self, "function", fn, call=call, is_inline=is_inline)
        self._put(_Call(what, self, step, call))

    def keep(self, *objects: object) -> None:
        """Keep objects alive until all work submitted so far has run; never blocks.

        The arguments are those of ``CudaStream.keep``.
        """
        self._check_open()
        mark = QueueEnd(self._work)
        self._put(mark)
        self._kept.add(_KeptOnHost(objects, mark))
        keepalive.let_go((self._kept,))

    def __enter__(self, key: object = None, libraries: Any = None, ordered: bool = False) -> Self:  # noqa: FBT001, FBT002 - as of a CUDA stream
        """Wait for the queue's turn; the body runs inline as its next item.

        If a function before it, or work that the stream has waited for, has failed, the error is
        raised instead. ``use`` passes its own options, and itself as the key under which
        ``open_scopes.leave`` ends the scope.
        """
        self._check_open()
        scope = _HostScope(self, key or self, libraries)
        try:
            if not self._is_inline():
                scope.begin(self._work, is_ordered=ordered)
            here.scopes.innermost = scope
        except BaseException:  # after an interrupt, the queue has to go on
            scope.leave()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the item; the work that other threads submitted meanwhile follows."""
        open_scopes.leave(self, kind, error, trace)

    def record(
        self, event: EventLike | None = None, *, timing: bool = False, external: bool = False
    ) -> HostEvent:
        self._check_open()
        self._refuse_external(external=external)
        if event is None:
            target = HostEvent(timing=timing)
        elif timing:
            raise ValueError(
                f"timing cannot be changed for {messages.describe(event)}: leave out timing, "
                "or the event."
            )
        elif isinstance(event, HostEvent):
            target = event
        elif isinstance(event, Stream):
            raise messages.records_no_stream(self, event)
        else:
            raise _not_on_host(self, event)
        target._live()
        mark = QueueEnd(self._work)
        self._put(mark)
        target._source, target._mark = weakref.ref(self), mark  # noqa: SLF001 - the class is public
        trace.note(self, "record", "record", mark, is_inline=self._is_inline())
        return target

    def wait(
        self,
        other: StreamLike | EventLike | WorkLike | Future[Any] | asyncio.Future[Any],
        *,
        external: bool = False,
    ) -> None:
        """Let later work run after another host stream or event, after work, or after a future.

        This is ``Stream.wait``, except that ``other`` can also be a future of
        ``concurrent.futures`` or asyncio. If the work or future has failed, this queue has that
        error from then on, and its functions do not run until ``sync``, ``await``, ``done`` or
        ``with`` of this stream has raised it. Inside ``with s:`` this method raises it.

        Raises:
            ScopeError: Inside ``with s:``, for a future that needs the event loop of this thread.
        """
        self._check_open()
        self._refuse_external(external=external)
        if other is self:
            return
        if futures.is_future(other):
            self._wait_for_future(other)
            return
        event = other.record() if isinstance(other, HostStream) else other
        if not isinstance(event, HostEvent):
            library = registry.work_library(event)
            if library is None:
                raise _not_on_host(self, event)
            self._put_wait(_WaitForWork, event, library.work_of(event).finish)
            return
        mark = event._live()
        if mark is not None:
            is_inline = self._is_inline()
            trace.note(self, "wait", "wait", mark, is_inline=is_inline)
            is_own = event._source() is self  # noqa: SLF001 - the class is public
            self._put(Wait(mark, None if is_own or is_inline else self._work))
            if is_inline and not is_own:
                mark.raise_error()

    def _wait_for_future(self, future: object) -> None:
        if self._is_inline() and futures.blocks_its_loop(future):
            raise errors.ScopeError(
                f"{self!r} would wait for {messages.describe(future)} in the thread whose event "
                "loop has to finish it, and so would never end. Await it before the scope."
            )
        self._put_wait(_WaitForFuture, future, futures.AwaitedFuture(future), 3)

    def _put_wait(
        self, kind: type[_WaitForWork], other: object, call: Callable[[], object], depth: int = 2
    ) -> None:
        """Queue a call that blocks until ``other`` is done; the user's frame is ``depth`` up."""
        frame = sys._getframe(depth)  # noqa: SLF001 - a traceback keeps more
        what = Submitted(other, frame, "the wait for ")
        of_then = getattr(other, "step", None)  # of a future of ``then``
        is_inline = self._is_inline()
        step = trace.note(self, "future", other, of_then, is_inline=is_inline)
        if not is_inline:
            self._work.put(kind(what, self, step, call))
            return
        with step:
            call()

    @property
    def done(self) -> bool:
        self._check_open()
        is_inline = self._is_inline()
        done = is_inline or self._work.polled()
        if done:
            trace.note(self, "query", "done", is_inline=is_inline)
            keepalive.drain()
            self._work.raise_error()
        return done

    def sync(self, timeout: float | None = None, *, spin: bool = False) -> None:
        self._check_open()
        if timeout is not None:
            timeout = messages.in_seconds(timeout, self)
        with trace.note(self, "synchronisation", "sync", is_inline=self._is_inline()):
            mark = self._mark()
            if mark is not None and not mark.wait(timeout, spin=spin) and timeout is not None:
                messages.raise_timeout(self, timeout)
        keepalive.drain()
        self._work.raise_error(mark)

    def __await__(self) -> Generator[Any, Any, None]:
        self._check_open()
        is_inline = self._is_inline()
        mark = self._mark()
        if mark is not None:
            trace.note(self, "point", "await", mark, is_inline=is_inline)
            yield from mark.__await__()
        trace.note(self, "query", "await", mark, is_inline=is_inline)
        keepalive.drain()
        self._work.raise_error(mark)

    def _mark(self) -> QueueEnd | None:
        """Mark the present end of the queue; None if all has run already."""
        if self._work.idle or self._is_inline():
            return None
        mark = QueueEnd(self._work)
        self._work.put(mark)
        return mark

    def then(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Have a function called when all work submitted so far has run; return its future.

        The arguments are those of ``CudaStream.then``. If a function that was submitted before has
        raised an error, the future has it too, and ``sync`` still raises it.
        """
        self._check_open()
        refusals.check(fn, self, "then")
        from streamkit._streams.then import HostThenCalls  # noqa: PLC0415 - slow to import, seldom needed

        with _lock:
            after = self._after = self._after or HostThenCalls(self._work)
        what = Submitted(fn, sys._getframe().f_back)  # noqa: SLF001 - a traceback keeps more
        call = functools.partial(fn, *args, **kwargs)
        step = trace.note(self, "then", fn, call=call, is_inline=self._is_inline())
        future: Outcome[T] = after.add(self._put, QueueEnd(self._work), call, what, step)
        return future

    def close(self) -> None:
        if self._owned and not self._closed:
            self._closed = True
            self._work.give_up()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a queue is not copied and not sent to another process."""
        raise messages.not_copied(self)

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        state = " closed" if self._closed else " default" if not self._owned else ""
        return f"<streamkit.HostStream{name} cpu id={self._id}{state}>"


class _Call(Function):
    """A function to call, which drops its references at the call: an error's frames hold it."""

    __slots__ = ("_call", "_first", "_step", "_stream")
    waits = False

    def __init__(
        self,
        what: Submitted,
        stream: HostStream,
        step: AbstractContextManager[None],
        call: Callable[[], object],
    ) -> None:
        super().__init__(what)
        self._stream: Any = stream
        self._first: Any = stream._work.first  # noqa: SLF001 - of this module
        self._step = step
        self._call: Any = call

    def __call__(self) -> None:
        """Call the function inside a scope of its stream; an error becomes the queue's.

        After an error that no wait had raised when this was submitted, it is dropped, unless it is
        a wait.
        """
        stream, first, call = self._stream, self._first, self._call
        self._stream = self._first = None
        self._call = call if self.waits else None  # a wait can be asked whether it is ready
        queue = stream._work  # noqa: SLF001 - of this module
        if first.failure is not None and not self.waits:
            return
        key = object()
        scope = _HostScope(stream, key)
        here.scopes.innermost = scope
        try:
            try:
                with self._step:
                    refusals.check_result(call(), call)
                # the arguments end inside of the scope, as their destructors may submit
                call = None
            except BaseException as error:
                open_scopes.leave(key, None, error)
                raise
            open_scopes.leave(key)
        except BaseException as error:  # raised again by whoever waits
            thread = threading.current_thread()
            if isinstance(error, KeyboardInterrupt) and thread is threading.main_thread():
                raise  # a Ctrl-C, which only the main thread gets
            reports.note_source(error, self.what.source(queue.title))
            queue.fail(Failure(error, self.what))
        finally:
            del stream, first, call, queue, scope


class _WaitForWork(_Call):
    """A wait for work of a library."""

    __slots__ = ()
    waits = True


class _WaitForFuture(_WaitForWork):
    """A wait for a future, which may never be done."""

    __slots__ = ()

    @property
    def is_ready(self) -> bool:
        """Whether the future is done."""
        return bool(self._call.is_known)


class _HostScope:
    """One open scope on a thread's stack, without a turn until ``begin``."""

    plan = None
    open = 0
    _turn: Turn | None = None  # on the class, because an interrupt can stop ``begin`` early
    _step: AbstractContextManager[None] = trace.NOTHING

    def __init__(self, stream: HostStream, key: object, libraries: Any = None) -> None:
        self.stream = stream
        self.key, self.outer = key, here.scopes.innermost
        self.libraries = libraries  # whose work in the body counts as the stream's; None: all

    def begin(self, queue: WorkQueue, *, is_ordered: bool) -> None:
        """Wait for the queue's turn, in order after the stream that was current."""
        self._turn = turn = Turn(queue)
        # the body of a scope around this one has come so far already, and goes on after this one
        if is_ordered and open_scopes.innermost_on(host=True) is None:
            self.stream.wait(default_stream)
        # reported before the turn gets its place in the queue
        self._step = trace.note(self.stream, "scope", "with", is_ordered=is_ordered)
        with trace.NOTHING if queue.idle else trace.note(self.stream, "synchronisation", "with"):
            turn.begin()
        if queue.first.failure is not None:
            queue.raise_error()
        self._step.__enter__()

    def leave(self) -> list[str]:
        """Let the queue go on, if held; after an interrupt, a second call does the rest."""
        if self._turn is not None:
            self._step.__exit__(None, None, None)
            self._turn.end()
            self._turn = None
        return []

    def __del__(self) -> None:
        if self._turn is not None and not is_early_child():
            self.leave()  # the thread has ended inside the scope


class _KeptOnHost(keepalive.KeepAlive):
    """Objects that are kept until a mark is reached."""

    __slots__ = ("_mark",)

    def __init__(self, objects: tuple[object, ...], mark: QueueEnd) -> None:
        super().__init__(objects)
        self._mark = mark

    def has_passed(self) -> bool:
        """Whether the mark is reached."""
        return self._mark.reached.is_set()


def _not_on_host(stream: HostStream, other: object) -> Exception:
    is_cuda = isinstance(other, (Stream, Event)) and other.device != "cpu"
    if is_cuda or registry.is_foreign(other):
        return messages.device_mismatch(
            stream, other, "a host stream has no order with CUDA. Sync the CUDA stream first."
        )
    return errors.UnsupportedStreamError(
        f"{messages.describe(other)} is neither a host stream nor an event of one. Give a stream "
        "of streamkit.new_stream('cpu'), or what its record() has returned; wait takes futures too."
    )


default_stream = HostStream(owned=False, name="default")


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.stream = HostStream(owned=False, name="per-thread", thread=threading.get_ident())


per_thread = _PerThread()
"""Its ``stream`` is the default queue of the thread that asks."""


def _begin_anew() -> None:
    """Give a forked child default queues of its own."""
    global default_stream  # noqa: PLW0603 - the process has one
    default_stream = HostStream(owned=False, name="default")
    per_thread.begin()


in_child(_begin_anew)
