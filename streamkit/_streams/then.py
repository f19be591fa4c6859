"""The functions given to ``then``: a second work queue of each stream calls them in their order.

The thread of that queue starts with a function, and ends soon after the last one. A host stream's
function follows the wait for a mark of the stream, so that an engine can run it too. For a CUDA
stream's the thread itself waits until the work before has run; no engine runs it.
"""

from __future__ import annotations

import atexit
import bisect
import functools
import logging
import threading
from queue import SimpleQueue
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from streamkit._cuda import driver, events
from streamkit._queues import dispatcher, identity, points, trace
from streamkit._queues.lifetime import give_back
from streamkit._streams import host_queue
from streamkit._streams.host_queue import Function, QueueEnd, Wait, WorkQueue
from streamkit._support import locks, messages, reports, workers
from streamkit._support.reports import Failure
from streamkit.errors import DriverError, ForkedProcessError
from streamkit.protocols.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from streamkit._queues.points import Point, Reached
    from streamkit._streams.host_queue import Item
    from streamkit._support.reports import Submitted
    from streamkit.protocols.queues import QueueRecord

T = TypeVar("T")

_REST, _LULL = 10e-6, 1e-3  # seconds of a nap for each function that was called, and at most

_log = logging.getLogger("concurrent.futures")


# -- the future -------------------------------------------------------------------------------


class ThenOutcome(Outcome[T]):
    """The future of a function given to ``then``.

    A wait for the future is a wait for a mark, which is reached when the future is done. So a
    circle of threads that wait is seen, and an engine runs the work for which they wait.
    """

    _failure: Failure | None = None
    _thread = 0  # the thread that calls the function
    _mark: QueueEnd | None = None  # made by the first wait
    step: object = None  # the step of the function, for recorders

    def __init__(self, queue: _ThenCalls) -> None:
        super().__init__()
        self._queue = queue

    @property
    def _end(self) -> QueueEnd:
        """The mark that is reached when the future is done, also by a cancellation."""
        with self._condition:
            mark = self._mark
            if mark is None:
                mark = self._mark = QueueEnd(self._queue)
                if super().done():
                    mark()
                else:  # first, as a callback of the user's may wait for whoever waits here
                    self._done_callbacks.insert(0, lambda _: mark())  # type: ignore[attr-defined]
        return mark

    def _fail(self, failure: Failure) -> None:
        """Have the future raise the error."""
        self._failure = failure
        self.set_exception(failure.error)

    def done(self) -> bool:
        return super().done() or (self._queue.engine is not None and self._end.done)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        timeout = messages.in_seconds(timeout, self)
        if not super().done():
            if workers.is_dispatcher():
                raise messages.waits_in_dispatcher(self)
            if not self._end.wait(timeout):
                timeout = 0.0
        error = super().exception(timeout)
        trace.note(None, "query", "result", self.step)
        return error if self._failure is None else self._failure.tell()

    def result(self, timeout: float | None = None) -> T:
        self.exception(timeout)
        return super().result(timeout)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        if self._queue.engine is not None:  # an engine runs nothing unless a caller waits
            self._end.wait()
        super().add_done_callback(fn)

    def __await__(self) -> Generator[Any, Any, T]:
        import asyncio  # noqa: PLC0415 - slow to import; where a loop runs it is imported already

        if not super().done():
            try:
                yield from self._end.__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.cancelled():
            raise asyncio.CancelledError
        return self.result()

    def _refuse(self) -> None:
        """Raise in a forked child, where no thread calls the function.

        Its callbacks and waiters belong to the parent, so they are dropped here. A function that
        has forked itself goes on in the child.
        """
        self._condition._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as threading does
        if super().done() or self._thread == threading.get_ident():
            return
        self._done_callbacks.clear()  # type: ignore[attr-defined]
        self._waiters.clear()
        error = ForkedProcessError(
            "this future was pending when the process was forked: its function is called in "
            "the parent, and its outcome is known there only. Ask for it before the fork, or "
            "start workers with multiprocessing's 'spawn' or 'forkserver' method."
        )
        self._fail(Failure(error, self, is_told=True))


# -- the functions ----------------------------------------------------------------------------


class _ThenCall(Function):
    """A function to call when the work before it has run, and the future of its outcome."""

    __slots__ = "_call", "future", "is_ready", "mark"
    is_ready: bool  # not while its thread waits for the GPU

    def __init__(self, what: Submitted, call: Callable[[], Any], queue: _ThenCalls) -> None:
        self.what, self._call = what, call
        self.mark: Any = None  # at the end of the work before
        self.is_ready = True  # pyright: ignore[reportIncompatibleMethodOverride]  # settable
        self.future: ThenOutcome[Any] = ThenOutcome(queue)

    def __call__(self) -> None:
        """Call the function, unless its future was cancelled or the work before failed."""
        future: ThenOutcome[Any] = self.future
        failed: Failure | BaseException | None = None
        try:
            failed = future._queue.reach(self.mark)  # noqa: SLF001 - users hold it
            future._thread = threading.get_ident()  # noqa: SLF001 - as above
            if not future.set_running_or_notify_cancel():
                return
            result = None
            if failed is None:
                try:
                    result = self._call()
                except BaseException as error:  # noqa: BLE001 - the future raises it
                    failed = error
                    reports.note_source(error, f"raised by {self.what}")
            if isinstance(failed, BaseException):
                failed = Failure(failed, self.what)
            if failed is None:
                future.set_result(result)
            else:
                future._fail(failed)  # noqa: SLF001 - as above
        except BaseException:  # noqa: BLE001 - a callback of the future raised it
            _log.exception("exception calling callback for %r", future)  # as futures do
        finally:
            del self, future, failed  # because an error's frames hold this frame

    def drop(self) -> bool:
        """Cancel the future, or others would wait for ever; return whether it was pending."""
        return not self.future.cancelled() and self.future.cancel()


class _ThenCalls(WorkQueue):
    """The functions given to ``then`` of a stream."""

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name, title)
        # of the places in the stream and here; at the queue's own its thread would hold up callers
        self._order = locks.new_lock()
        _all.add(self)

    def reach(self, mark: Any) -> Failure | Exception | None:
        """Wait in the queue's thread for the mark before a function; return the error before it."""
        return mark.failure  # type: ignore[no-any-return]  # the item before has waited


_all: WeakSet[_ThenCalls] = WeakSet()


def _refuse_all() -> None:
    for calls in list(_all):
        for item in list(calls._pending):  # noqa: SLF001 - of the functions' own class
            if isinstance(item, _ThenCall):
                item.future._refuse()  # noqa: SLF001 - users hold it


locks.in_child(_refuse_all)


class HostThenCalls(_ThenCalls):
    """The functions given to ``then`` of a host stream."""

    def __init__(self, work: WorkQueue) -> None:
        super().__init__(f"{work.name}-then", f"'then' of {work.title}")

    def add(
        self,
        put: Callable[[Item], object],
        mark: QueueEnd,
        function: Callable[[], Any],
        what: Submitted,
        step: AbstractContextManager[None],
    ) -> Outcome[Any]:
        """Have ``put`` queue the mark, and the function called in ``step`` behind it."""
        call = _ThenCall(what, functools.partial(_call_in_step, step, function), self)
        call.mark, call.future.step = mark, step
        try:
            with self._order:
                put(mark)
                self.put(Wait(mark), call)
        except RuntimeError as error:  # no thread can be started
            raise messages.cannot_watch() from error
        return call.future


def _call_in_step(step: AbstractContextManager[None], function: Callable[[], Any]) -> Any:
    with step:
        return function()


class CudaThenCalls(_ThenCalls):
    """The functions given to ``then`` of a CUDA queue, in the order in which it reaches them."""

    is_cuda = True
    _reached = -1  # the number of the last point that is known to be reached
    _called = 0  # functions since the last look at the GPU

    def add(
        self, queue: QueueRecord, function: Callable[[], Any], what: Submitted, stream: object
    ) -> Outcome[Any]:
        """Have a function called after the queue's work so far; return its future."""
        if dispatcher.is_over:
            raise messages.cannot_watch()
        call = _ThenCall(what, functools.partial(_call_in_context, queue, function), self)
        with self._order:
            call.mark = points.mark(queue, stream, "then")
            try:
                self.put(call)
            except RuntimeError as error:  # no thread can be started
                raise messages.cannot_watch() from error
        return call.future

    def reach(self, mark: Point) -> Exception | None:
        try:
            error = self._look(mark) if mark.number > self._reached else None
        except DriverError as failed:
            error = failed.with_traceback(None)  # a traceback would hold this frame
        self._called += 1
        spare, mark.keeps.spare = mark.keeps.spare, None  # its end would cost more
        give_back(mark.keeps, spare)
        return error

    def _look(self, point: Point) -> Exception | None:
        """Learn how many points are reached, by few questions; if none is, wait for the first."""
        if not hasattr(_here, "has_context"):
            driver.relax()
            _here.has_context = driver.context_question()
        sleep(min(self._called * _REST, _LULL))  # and the thread that gives many goes on meanwhile
        self._called = 0
        with self._lock:
            calls: list[Any] = [self.function, *self._items]
        marks = [call.mark for call in calls if isinstance(call, _ThenCall)]
        count = bisect.bisect_left(marks, 1, key=lambda mark: not events.query(mark.event))
        if count:
            self._reached = marks[count - 1].number
            return None
        answer: SimpleQueue[Exception | None] = SimpleQueue()
        calls[0].is_ready = not dispatcher.watch(point, self, answer)
        error = messages.cannot_watch() if calls[0].is_ready else answer.get()
        calls[0].is_ready = True
        return error

    def tell(self, reached: Reached) -> None:
        """Let the worker go on; the dispatcher's thread calls this."""
        for answer, error in reached:
            answer.put(error)

    def stir(self) -> None:
        """Do nothing, because the worker wakes soon enough."""


def _call_in_context(queue: QueueRecord, function: Callable[[], Any]) -> Any:
    """Call the function with the queue's context current, whatever other threads capture.

    The queue's record lives until then, so that another stream on it finds these functions.
    """
    if not _here.has_context(queue.context):  # the last function may have left another
        driver.set_context(queue.context)
    return function()


_here = threading.local()  # set where the thread may call the driver whatever others capture


# the dispatcher ends then too, so no function learns any more that its work has run
atexit.register(host_queue.drop_all, CudaThenCalls)


def of(queue: QueueRecord, stream: object) -> CudaThenCalls:
    """Return the functions of a stream's queue, which all records of the queue share."""
    first = queue.first_record()
    with identity.lock:
        calls = first.calls or CudaThenCalls("streamkit-then", f"'then' of {stream!r}")
        queue.calls = first.calls = calls
    return calls
