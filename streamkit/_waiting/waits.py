"""Waiting for CUDA queues and events: blocking, in a coroutine, or by a function to call then.

A wait begins with a short look, for most waits are short. A longer one leaves the processor to
others and asks again after naps, which grow with the wait. On an H200 that was less late than what
the driver offers for it: events with CU_EVENT_BLOCKING_SYNC and host functions.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from typing import TYPE_CHECKING, Any

from streamkit._base import messages
from streamkit._cuda import driver
from streamkit._queues import identity, keepalive
from streamkit._waiting import points

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from streamkit._base.queue import QueueRecord
    from streamkit._waiting.points import Point, Tell

    Drop = Callable[[], object]

LOOK = 1.2e-3  # seconds of asking all the time: a wait of a millisecond is as prompt as a spin
_AGES = 128  # a nap is this part of the wait, which so ends late by less than a hundredth
_SHORTEST, _LONGEST = 50e-6, 10e-3  # seconds of a nap


# -- a thread that waits ----------------------------------------------------------------------


def block(
    done: Callable[[], bool],
    mark: Callable[[], Point],
    what: object,
    timeout: float | None,
    *,
    spin: bool,
) -> None:
    """Block until ``done()``, or until what ``mark`` gives is reached; else TimeoutError.

    Work that is given later, maybe without end, is not waited for.
    """
    look = math.inf if spin else LOOK
    if not done() and not ask(mark().is_reached, timeout, look) and timeout is not None:
        messages.raise_timeout(what, timeout)


def ask(done: Callable[[], bool], timeout: float | None, look: float = math.inf) -> bool:
    """Ask ``done()`` until it is true, False after ``timeout`` seconds; with naps after the look.

    A signal's handler is called meanwhile. ``done`` frees the GIL, as each call of the driver.
    """
    began = time.monotonic()
    end = math.inf if timeout is None else began + timeout
    while not done():
        now = time.monotonic()
        if now >= end:
            return False
        age = now - began
        if age >= look:
            time.sleep(min(max(age / _AGES, _SHORTEST), _LONGEST, end - now))
    return True


# -- a coroutine, and a function to call ------------------------------------------------------


def awaited(done: Callable[[], bool], mark: Callable[[], Point]) -> Generator[Any, Any, None]:
    """Suspend the task until what ``mark`` gives is reached; not at all if ``done()``."""
    if not done():
        import asyncio  # noqa: PLC0415 - slow to import; where a loop runs it is imported already

        asyncio.get_running_loop()  # RuntimeError if there is none
        point, end = mark(), time.monotonic() + LOOK
        while not point.is_reached():
            if time.monotonic() >= end:
                yield from told(functools.partial(_watch, point))
                break
            yield  # the loop calls and reads whatever is ready, and comes back
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


def _watch(point: Point, tell: Tell) -> Drop | None:
    """Have ``tell`` called when the point is reached; return what cancels that, None if nobody can.

    The dispatcher calls it.
    """
    from streamkit._waiting import dispatcher  # noqa: PLC0415 - few programs wait for long

    return point.drop if dispatcher.watch(point, tell) else None


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
        drop = _watch(points.mark(queue, check), functools.partial(calls.add, call))
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
