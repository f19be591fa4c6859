"""The functions given to ``then``, which a few threads call, those of each stream in their order.

CUDA and host streams share this module: they say when the work before a function has run.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from streamkit._queues import trace
from streamkit._support import locks, messages, reports, workers
from streamkit._support.locks import new_lock
from streamkit._support.reports import Failure
from streamkit.errors import ForkedProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

T = TypeVar("T")

_MOST = 4  # threads, apart from those that wait for what another function may hold up
_PAUSE = 0.1  # seconds after which it looks again

_log = logging.getLogger("concurrent.futures")
_lock = new_lock()
_pending: set[Call] = set()
_threads: list[threading.Thread] = []
_waiting = 0  # how many of them wait
_to_run: queue.SimpleQueue[SerialCalls | None] = queue.SimpleQueue()  # those that have calls
_all: WeakSet[SerialCalls] = WeakSet()
_is_over = False


class Outcome(Future[T]):
    """What ``then`` of a stream returns: a future of ``concurrent.futures`` that asyncio can await.

    An error that it has and that no code asks for is reported through ``sys.unraisablehook``.
    """

    _failure: Failure | None = None
    step: object = None  # what recorders know of the function

    def _fail(self, failure: Failure) -> None:
        """Have the future raise the error."""
        self._failure = failure
        self.set_exception(failure.error)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        timeout = messages.in_seconds(timeout, self)
        if self.done():
            error = super().exception()
        else:
            if workers.is_dispatcher():
                raise messages.waits_in_dispatcher(self)
            with workers.making_way():
                error = super().exception(timeout)
        trace.note(None, "query", "result", self.step)
        return error if self._failure is None else self._failure.tell()

    def result(self, timeout: float | None = None) -> T:
        self.exception(timeout)
        return super().result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        """Suspend an asyncio task until the function has been called; its result, or its error.

        As with asyncio's own futures, cancelling the task cancels this future too: a function that
        has not begun is not called then. ``asyncio.shield`` prevents that.
        """
        import asyncio  # noqa: PLC0415 - slow to import; where a loop runs it is imported already

        if not self.done():
            loop = asyncio.get_running_loop()
            reached = asyncio.Event()

            def tell(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
                    loop.call_soon_threadsafe(reached.set)

            self.add_done_callback(tell)
            try:
                yield from reached.wait().__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.cancelled():
            raise asyncio.CancelledError
        return self.result()

    def _refuse(self) -> None:
        """Raise in a forked child, where no thread calls the function.

        Its callbacks and waiters belong to the parent, so they are dropped here.
        """
        self._condition._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as threading does
        self._done_callbacks.clear()  # type: ignore[attr-defined]
        self._waiters.clear()
        with contextlib.suppress(InvalidStateError):  # cancelled
            error = ForkedProcessError(
                "this future was pending when the process was forked: its function is called in "
                "the parent, and its outcome is known there only. Ask for it before the fork, or "
                "start workers with multiprocessing's 'spawn' or 'forkserver' method."
            )
            self._fail(Failure(error, self, is_told=True))


class Call:
    """One function to call, and the future of its outcome; ``what`` names it in a report."""

    __slots__ = "_call", "_keeps", "_thread", "future", "is_ready", "what"

    def __init__(
        self,
        call: Callable[[], Any],
        what: object,
        keeps: object = None,
        future: Outcome[Any] | None = None,
    ) -> None:
        self.what = what
        self.is_ready = False  # whether the work before it has run
        self.future: Outcome[Any] = future or Outcome()
        self._call = call
        self._keeps = keeps
        self._thread = 0  # the one that runs it

    def drop(self) -> None:
        """Forget the call, so that it is never made."""
        _pending.discard(self)

    def refuse(self) -> None:
        """Let the future raise in a forked child, unless the call itself has forked and goes on."""
        if self._thread != threading.get_ident():
            self.future._refuse()  # noqa: SLF001 - the class is public

    def run(
        self,
        failed: Failure | BaseException | None = None,
        prepare: Callable[[], object] = bool,
    ) -> None:
        """Call the function, unless its future was cancelled, or the work before it failed."""
        future = self.future
        self._thread = threading.get_ident()
        try:
            if not future.set_running_or_notify_cancel():
                return
            result = None
            if failed is None:
                try:
                    prepare()
                    result = self._call()
                except BaseException as error:  # noqa: BLE001 - the future raises it
                    failed = error
                    reports.note_source(error, f"raised by {self.what}")
            if isinstance(failed, BaseException):
                failed = Failure(failed, self.what)
            if failed is None:
                future.set_result(result)
            else:
                future._fail(failed)  # noqa: SLF001 - the class is public
        except BaseException:  # noqa: BLE001 - a callback of the future raised it
            _log.exception("exception calling callback for %r", future)  # as futures do
        finally:
            _pending.discard(self)  # not before: until then it counts as needing a thread
            del self, future, failed  # because an error's frames hold this one


class SerialCalls:
    """The calls of one stream that are ready, as the work before them has run; one runs at a time.

    The hooks do nothing here; CUDA's ``QueueCalls`` needs them.
    """

    def __init__(self) -> None:
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """Begin with no calls, at first or in a forked child."""
        self._ready: deque[tuple[Call, Failure | BaseException | None]] = deque()
        self._is_busy = False

    def tell(self, reached: Sequence[tuple[Call, Failure | BaseException | None]]) -> None:
        """Let a worker run these calls, after those of earlier ``tell``."""
        for call, _ in reached:
            call.is_ready = True
        with _lock:
            self._ready.extend(reached)
            if self._is_busy:
                return
            self._is_busy = True
            _to_run.put(self)

    def stir(self) -> None:
        """Do nothing, because the workers wake soon enough."""

    def prepare(self) -> None:
        """Make the worker's thread ready for the next function."""

    def leave(self) -> None:
        """Take from the worker's thread what may end while it has nothing to do."""

    def run(self) -> None:
        """Run calls until there are none, or other streams wait for a thread."""
        while True:
            call, failed = self._ready.popleft()
            call.run(failed, self.prepare)
            del call, failed  # because an error's frames hold this one
            if not self._ready or not _to_run.empty():  # a child that it forked has none
                break
        self.leave()
        with _lock:
            self._is_busy = bool(self._ready)
            if self._is_busy:
                _to_run.put(self)


def reserve(call: Call) -> None:
    """Make sure that a thread can run the call; RuntimeError if none can be started."""
    with _lock:
        _pending.add(call)
        if _is_over:
            raise messages.cannot_watch()
        _have_threads()


def _have_threads() -> None:
    """Start a thread if there are fewer than the calls need; RuntimeError if none is left."""
    if len(_threads) - _waiting >= min(_MOST, len(_pending) - _waiting):
        return
    name = f"streamkit-then-{len(_threads)}"
    thread = workers.Thread(target=_work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if len(_threads) == _waiting:
            raise messages.cannot_watch() from error
    else:
        _threads.append(thread)


@contextlib.contextmanager
def _make_way() -> Generator[None]:
    """Let another thread call functions while this one waits, perhaps for one of them."""
    global _waiting  # noqa: PLW0603 - one count for the process
    with _lock:
        _waiting += 1
    try:
        with _lock:
            _have_threads()
        yield
    finally:
        with _lock:
            _waiting -= 1


def _work() -> None:
    thread = threading.current_thread()
    workers.make_way_of[threading.get_ident()] = _make_way
    while (calls := _to_run.get()) is not None:
        calls.run()
        del calls  # or the thread would hold a stream's calls while it has nothing to do
        with _lock:
            if thread in _threads and len(_threads) - _waiting > _MOST:  # it was a further one
                _threads.remove(thread)
                break
    workers.make_way_of.pop(threading.get_ident(), None)


def _finish() -> bool:
    """Wait for the functions that are ready, and a moment for others; return if any was ready."""
    waited = False
    end = time.monotonic() + reports.PATIENCE
    while True:
        calls = [call for call in _pending.copy() if not call.future.done()]
        ready = [call.future for call in calls if call.is_ready]
        if not ready and (not calls or time.monotonic() >= end):
            return waited
        waited = waited or bool(ready)
        wait(ready or [call.future for call in calls], _PAUSE, FIRST_COMPLETED)


@atexit.register
def _end() -> None:
    global _is_over  # noqa: PLW0603 - one interpreter
    with _lock:
        _is_over = True
    left = [call for call in list(_pending) if not call.future.done()]
    # cancelled, or whoever asks for one would wait for ever
    reports.report_dropped([call.what for call in left if call.future.cancel()])
    for _ in _threads:
        _to_run.put(None)
    end = time.monotonic() + reports.PATIENCE  # for functions that still run
    for thread in _threads:
        thread.join(max(0, end - time.monotonic()))


reports.finishes.append(_finish)


def _forget() -> None:
    """Begin anew in a forked child, which has none of the threads."""
    global _to_run, _waiting  # noqa: PLW0603 - one for the process
    _threads.clear()
    workers.make_way_of.clear()
    _waiting = 0
    for call in list(_pending):
        call.refuse()
    _pending.clear()
    _to_run = queue.SimpleQueue()
    for calls in list(_all):
        calls.begin()


locks.in_child(_forget)
