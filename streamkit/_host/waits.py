"""A host stream as something to wait for: blocking, in a coroutine, or by a function to call."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from streamkit._base import messages, trace
from streamkit._base.locks import new_lock
from streamkit._host import work_queue
from streamkit._host.work_queue import Mark
from streamkit._queues import keepalive
from streamkit._scopes import open_scopes
from streamkit._waiting import awaitable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future
    from typing import ParamSpec, TypeVar

    from streamkit._host.work_queue import Item, WorkQueue
    from streamkit._waiting.awaitable import Drop, Tell

    P = ParamSpec("P")
    T = TypeVar("T")

_lock = new_lock()


def awaited(mark: Mark) -> Generator[Any, Any, None]:
    """Suspend the task until the mark is reached."""

    def watch(tell: Tell) -> Drop:
        return mark.tell(functools.partial(tell, None))

    if work_queue.has_engine():
        yield from awaitable.pass_turn()  # what they submit now takes part
        mark.wait()
    elif not mark.done:
        yield from awaitable.told(watch)


class HostWaits:
    """A host stream's ways of waiting, none of which holds up its work."""

    _queue: WorkQueue
    _after: Any = None  # what ``then`` was given, made at its first use

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if the stream is closed, or another thread's."""

    @abstractmethod
    def _put(self, item: Item) -> None:
        """Queue an item."""

    @property
    def done(self) -> bool:
        """Whether all work submitted so far has run. Raises the first error of a function."""
        self._check_open()
        done = open_scopes.holds(self) or self._queue.polled()
        if done:
            keepalive.drain()
            self._queue.raise_error()
        return done

    def sync(self, timeout: float | None = None) -> None:
        """Block until all work submitted so far has run, at most ``timeout`` seconds.

        Raises the first error of a submitted function, as does all that waits for that function
        meanwhile; a wait that begins after it does not. TimeoutError names the stream.
        """
        self._check_open()
        with trace.note(self, "synchronisation", "sync"):
            mark = self._mark()
            if mark is not None and not mark.wait(timeout) and timeout is not None:
                messages.raise_timeout(self, timeout)
        keepalive.drain()
        self._queue.raise_error(mark)

    def __await__(self) -> Generator[Any, Any, None]:
        """Suspend the task until all work submitted so far has run; errors as ``sync``'s.

        It takes a running asyncio loop, in any thread. Cancelling the task leaves the work alone.
        """
        self._check_open()
        mark = self._mark()
        if mark is not None:
            yield from awaited(mark)
        keepalive.drain()
        self._queue.raise_error(mark)

    def _mark(self) -> Mark | None:
        """Mark the present end of the queue; None if it is reached."""
        if self._queue.idle or open_scopes.holds(self):
            return None
        mark = Mark(self._queue)
        self._queue.put(mark)
        return mark

    def then(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` called when all work submitted so far has run; return its future.

        The functions of one stream are called in their order, in one of a few threads of
        StreamKit's; they hold up no queue. The future has what ``fn`` returns or raises, or the
        error of a function that was submitted before, which ``sync`` has not told and still will;
        ``fn`` is not called then, nor once the future is cancelled, as at the end of the
        interpreter.
        """
        self._check_open()
        from streamkit._host import futures  # noqa: PLC0415 - few programs come here

        with _lock:
            after = self._after = self._after or futures.After(self._queue.name)
        future: Future[T] = after.add(self._put, Mark(self._queue), fn, args, kwargs)
        return future
