"""Futures of ``concurrent.futures`` and of asyncio, waited for in any thread.

Neither module is imported here: unless a program has loaded it, there can be no future of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

_LOOK = 1.0  # seconds between two looks at whether the future's loop still runs


def is_future(obj: object) -> bool:
    """Whether an object is a future of one of the two modules."""
    concurrent: Any = sys.modules.get("concurrent.futures._base")
    return isinstance(obj, getattr(concurrent, "Future", ())) or _is_of_a_loop(obj)


def _is_of_a_loop(obj: object) -> bool:
    return getattr(type(obj), "_asyncio_future_blocking", None) is not None  # as asyncio.isfuture


def blocks_its_loop(future: Any) -> bool:
    """Whether a wait for the future in this thread would stop the loop that has to finish it."""
    return _is_of_a_loop(future) and not future.done() and future.get_loop() is loop_here()


def loop_here() -> Any:
    """Return the event loop that this thread runs; None if it runs none."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - documented


class AwaitedFuture:
    """The outcome of a future, for which any thread can wait."""

    def __init__(self, future: Any) -> None:
        """RuntimeError if the future is pending and its loop is closed."""
        self._loop: Any = None
        self._future: Future[Any] = future
        if _is_of_a_loop(future):
            from concurrent.futures import Future  # noqa: PLC0415 - slow to import

            self._future = Future()
            if future.done():
                self._take_over(future)
            else:
                self._loop = future.get_loop()
                self._loop.call_soon_threadsafe(future.add_done_callback, self._take_over)

    def _take_over(self, future: Any) -> None:
        """Copy the outcome of a loop's future, in the loop's thread."""
        if future.cancelled():
            self._future.cancel()
        elif (error := future.exception()) is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(None)

    @property
    def is_known(self) -> bool:
        """Whether a call would not block."""
        base: Any = sys.modules["concurrent.futures"].Future  # a future of ``then`` may run work
        return base.done(self._future) or (self._loop is not None and self._loop.is_closed())

    def __call__(self) -> None:
        """Block until the future is done, and raise its error.

        The error is ``concurrent.futures.CancelledError`` if the future was cancelled, and
        RuntimeError if its loop is closed before the future is done.
        """
        from concurrent.futures import TimeoutError as NotYet  # noqa: PLC0415 - slow to import

        while True:
            try:
                error = self._future.exception(_LOOK if self._loop else None)
                break
            except NotYet:
                if self._loop is not None and self._loop.is_closed():
                    raise RuntimeError(
                        f"{self._loop!r} was closed before a future of it was done, and a host "
                        "stream waits for that future."
                    ) from None
        if error is not None:
            raise error
