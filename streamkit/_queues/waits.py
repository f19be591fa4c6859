"""Waiting for CUDA queues and events: blocking, or in a coroutine.

Most waits are short, so a wait begins with a moment of asking all the time. After that it leaves
the processor to others and asks again after naps, which grow with the wait. On an H200 this was
less late than what the driver offers: events with CU_EVENT_BLOCKING_SYNC, and host functions.
"""

from __future__ import annotations

import contextlib
import functools
import math
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from streamkit._cuda import driver, events
from streamkit._queues import keepalive
from streamkit._support import messages, workers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from streamkit._queues.points import Point, Reached

    Drop = Callable[[], object]

LOOK = 1.2e-3  # seconds of asking all the time: a wait of a millisecond is as prompt as a spin
_AGES = 192  # a nap is this part of the wait
_SHORTEST, _LONGEST = 150e-6, 10e-3  # seconds of a nap: each costs a look, some 10 us of a core


# -- a thread that waits ----------------------------------------------------------------------


def block(
    done: Callable[[], bool],
    mark: Callable[[], Point],
    what: object,
    timeout: float | None,
    *,
    spin: bool,
) -> None:
    """Block until ``done()``, or until the point that ``mark`` makes is reached.

    Work that is given later, which may have no end, is not waited for. TimeoutError after
    ``timeout`` seconds.
    """
    if done():
        return
    point, look = mark(), math.inf if spin else LOOK
    is_reached = functools.partial(events.query, point.event)
    # around all queries, so that the query after a nap is short
    reached = driver.call_beside_captures(ask, is_reached, timeout, look)
    if not reached and timeout is not None:
        messages.raise_timeout(what, timeout)


def ask(done: Callable[[], bool], timeout: float | None, look: float = math.inf) -> bool:
    """Ask ``done()`` until it is true; False after ``timeout`` seconds.

    After ``look`` seconds a nap follows each question. Handlers of signals run meanwhile.
    ``done`` has to free the GIL, as each call of the driver does.
    """
    began = monotonic()
    end = math.inf if timeout is None else began + timeout
    while not done():
        now = monotonic()
        if now >= end:
            return False
        age = now - began
        if age >= look:
            sleep(min(max(age / _AGES, _SHORTEST), _LONGEST, end - now))
    return True


# -- a coroutine ------------------------------------------------------------------------------


def awaited(done: Callable[[], bool], mark: Callable[[], Point]) -> Generator[Any, Any, None]:
    """Suspend the task until the point that ``mark`` makes is reached; not at all if ``done()``."""
    if not done():
        import asyncio  # noqa: PLC0415 - slow to import; where a loop runs it is imported already

        asyncio.get_running_loop()  # RuntimeError if there is none
        point, end = mark(), monotonic() + LOOK
        while not events.is_done(point.event):
            if monotonic() >= end:
                yield from told(functools.partial(_watch, point))
                break
            yield  # the loop runs whatever is ready, and comes back
    keepalive.drain()


class Loop:
    """The event loop of a task that waits, as a listener; two listeners of one loop are equal."""

    __slots__ = "_is_stirred", "loop"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._is_stirred = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loop) and self.loop is other.loop

    def __hash__(self) -> int:
        return id(self.loop)

    def tell(self, reached: Reached) -> None:
        """Let the tasks go on, whose waiters are futures of the loop. Any thread may call this."""
        self._call(_set, reached)

    def stir(self) -> None:
        """Wake the loop's thread for a moment, because from a long sleep it would wake late."""
        if not self._is_stirred:  # else the loop has not run the last call, and so is busy
            self._is_stirred = True
            self._call(self._stirred)

    def _stirred(self) -> None:
        self._is_stirred = False

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so its tasks have ended
            self.loop.call_soon_threadsafe(function, *arguments)


def told(watch: Callable[[Loop, Any], Drop | None]) -> Generator[Any, Any, None]:
    """Suspend the task until its ``Loop`` gets the waiter in ``tell``; raise the error, if any.

    ``watch`` takes the loop and the waiter, and has to arrange that call. It returns a function
    that cancels the call, or None if no thread can make it, which is a RuntimeError here.
    """
    import asyncio  # noqa: PLC0415 - slow to import; where a loop runs it is imported already

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Exception | None] = loop.create_future()
    drop = watch(Loop(loop), future)
    if drop is None:
        raise messages.cannot_watch()
    try:
        error = yield from future.__await__()
    finally:
        drop()
    if error is not None:
        raise error


def _set(reached: Reached) -> None:
    for future, error in reached:
        if not future.done():  # its task may have been cancelled meanwhile
            future.set_result(error)  # set_exception would log an error that is never asked for


def _watch(point: Point, loop: Loop, waiter: object) -> Drop | None:
    """Let the dispatcher tell the loop when the point is reached; return a function to cancel that.

    None if the dispatcher cannot tell the loop.
    """
    from streamkit._queues import dispatcher  # noqa: PLC0415 - few programs wait for long

    can_watch = not workers.is_dispatcher() and dispatcher.watch(point, loop, waiter)
    return point.drop if can_watch else None
