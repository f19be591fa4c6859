"""Waiting for CUDA queues and events: blocking, in a coroutine, or by a function to call then.

A blocking wait begins with a short look, for most waits are short. A longer one leaves the
processor to others: the driver wakes the dispatcher's thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, Any

from streamkit._base import messages
from streamkit._cuda import driver
from streamkit._queues import identity, keepalive, ordering
from streamkit._queues.lifetime import PointEvent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from streamkit._base.queue import QueueRecord

    Tell = Callable[[Exception | None], object]
    Drop = Callable[[], object]

LOOK = 500e-6  # seconds of asking before the processor is left to others: about what that costs
_NAP = 1e-3


# -- what is waited for -----------------------------------------------------------------------


def watch_queue(queue: QueueRecord, check: Callable[[], object], tell: Tell) -> Drop | None:
    """Mark the queue's present end and have ``tell`` called there, by the dispatcher.

    Returns what cancels that; None if there can be no dispatcher, so ``tell`` is never called.
    ``check`` raises while the queue captures.
    """
    event = PointEvent(queue.context)
    with ordering.on(queue):
        ordering.record(event.handle, queue)
        check()  # a capture may have begun since the last time, and has the event then
    return watch_event(event.handle, event, queue.first_record(), queue.device, tell)


def watch_event(
    event: int, keeps: object, queue: QueueRecord | None, device: int, tell: Tell
) -> Drop | None:
    """Have ``tell`` called when the event's last record is reached; return as ``watch_queue``."""
    from streamkit._waiting import dispatcher  # noqa: PLC0415 - few programs wait for long

    point = dispatcher.Point(event, keeps, queue, device, tell)
    return point.drop if dispatcher.watch(point) else None


# -- a thread that waits ----------------------------------------------------------------------


def block(
    done: Callable[[], bool],
    watch: Callable[[Tell], Drop | None],
    what: object,
    timeout: float | None,
) -> None:
    """Block, without the GIL, until ``done()`` or until ``watch`` tells; else TimeoutError."""
    now = time.monotonic()
    end = None if timeout is None else now + min(timeout, threading.TIMEOUT_MAX)
    limit = now + LOOK
    if _ask(done, limit if end is None else min(limit, end)):
        return
    told = _Told()
    drop = watch(told)
    if drop is None:
        reached = _ask(done, end, _NAP)
    else:
        try:
            reached = told.wait(end)
        finally:
            drop()
    if not reached and timeout is not None:
        messages.raise_timeout(what, timeout)


def _ask(done: Callable[[], bool], end: float | None, pause: float = 0) -> bool:
    """Ask ``done()`` until it is true; False at the end."""
    while not done():
        if end is not None and time.monotonic() >= end:
            return False
        if pause:
            time.sleep(pause)
    return True


class _Told:
    """What the dispatcher calls, and a thread waits for."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._lock = threading.Lock()  # a wait for it lets signals through, and Ctrl-C with them
        self._lock.acquire()

    def __call__(self, error: Exception | None) -> None:
        self._error = error
        self._lock.release()

    def wait(self, end: float | None) -> bool:
        """Return whether it was called in time; raise the error it was called with."""
        left = -1 if end is None else min(max(0, end - time.monotonic()), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=left):
            return False
        if self._error is not None:
            raise self._error
        return True


# -- a coroutine, and a function to call ------------------------------------------------------


def awaited(
    done: Callable[[], bool], watch: Callable[[Tell], Drop | None]
) -> Generator[Any, Any, None]:
    """Suspend the task until ``watch`` tells; not at all if ``done()``."""
    if not done():
        yield from told(watch)
    keepalive.drain()


def told(watch: Callable[[Tell], Drop | None]) -> Generator[Any, Any, None]:
    """Suspend the task until what ``watch`` was given is called, from any thread.

    Raises the error it is called with. ``watch`` returns what cancels it. If it returns None, it
    cannot watch: RuntimeError.
    """
    import asyncio  # noqa: PLC0415 - slow to import; where a loop runs it is imported already

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Exception | None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: its tasks have ended
            loop.call_soon_threadsafe(_set, future, error)

    drop = watch(tell)
    if drop is None:
        raise messages.cannot_watch()
    try:
        error = yield from future.__await__()
    finally:
        drop()
    if error is not None:
        raise error


def _set(future: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not future.done():  # it is, if its task was cancelled meanwhile
        future.set_result(error)  # not set_exception, which logs an error that is never asked for


def then(
    queue: QueueRecord,
    check: Callable[[], object],
    function: Callable[[], Any],
    what: object,
) -> Future[Any]:
    """Have it called, after the queue's work so far, with the queue's context current."""
    from streamkit._waiting import callbacks  # noqa: PLC0415 - few programs use ``then``

    first = queue.first_record()
    with identity.lock:
        calls = first.calls = first.calls or callbacks.SerialCalls()
    # the call keeps the queue: another stream on it must find the same calls
    call = callbacks.Call(function, what, functools.partial(_on_queue, queue))
    try:
        callbacks.reserve(call)
        drop = watch_queue(queue, check, functools.partial(calls.add, call))
    except BaseException:
        call.drop()
        raise
    if drop is None:
        call.drop()
        raise messages.cannot_watch()
    return call.future


@contextlib.contextmanager
def _on_queue(queue: QueueRecord) -> Generator[None]:
    with driver.in_context(queue.context), driver.beside_captures():
        yield
