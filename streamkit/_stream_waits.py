"""A CUDA stream as something to wait for: blocking, in a coroutine, or by a function to call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from streamkit import _driver, _host_watch, _keep, _order, _waiting
from streamkit._stream_facts import NativeT, StreamFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


class StreamWaits(StreamFacts[NativeT]):
    """A CUDA stream's ways of waiting, none of which holds up its work."""

    @property
    def done(self) -> bool:
        """Whether all work submitted so far has run.

        DriverError if any of it failed; CaptureError while a capture makes the question illegal.
        """
        return self._is_done("asking whether work is done")

    def _is_done(self, operation: str) -> bool:
        queue = self._live()
        with _order.on(queue):
            _order.check_capture(queue, self, operation)
            done = _driver.stream_done(queue.handle)
        if done:
            _keep.drain()
        return done

    def sync(self, timeout: float | None = None) -> None:
        """Block until all work submitted so far has run, at most ``timeout`` seconds.

        The GIL is released, Ctrl-C ends the wait, and a long one uses no processor. TimeoutError
        names the stream, whose work goes on; DriverError if any of it failed; CaptureError while a
        capture makes waiting illegal.
        """
        queue = self._live()
        done = functools.partial(self._is_done, "a sync")
        check = functools.partial(_order.check_capture, queue, self, "a sync")
        watch = functools.partial(_waiting.watch_queue, queue, check)
        with _host_watch.note(self, "synchronisation", "sync"):
            _waiting.block(done, watch, self, timeout)
        _keep.drain()

    def __await__(self) -> Generator[Any, Any, None]:
        """Suspend the task until all work submitted so far has run; errors as ``sync``'s.

        It takes a running asyncio loop, in any thread. Cancelling the task leaves the work alone.
        """
        queue = self._live()
        done = functools.partial(self._is_done, "an await")
        check = functools.partial(_order.check_capture, queue, self, "an await")
        return _waiting.awaited(done, functools.partial(_waiting.watch_queue, queue, check))

    def then(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` called when all work submitted so far has run; return its future.

        The functions of one stream are called in their order, in one of a few threads of
        StreamKit's with the stream's device current; they may call CUDA and hold up no GPU work.
        The future has what ``fn`` returns or raises, or the DriverError of work that failed, and
        ``fn`` is not called then, nor once the future is cancelled, as at the end of the
        interpreter. CaptureError in a capture.
        """
        queue = self._live()
        check = functools.partial(_order.check_capture, queue, self, "then")
        with _order.on(queue):
            check()
        return _waiting.then(queue, check, fn, args, kwargs)
