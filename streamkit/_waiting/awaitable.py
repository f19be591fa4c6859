"""Waiting in a coroutine, on whatever asyncio loop runs it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from streamkit._base import messages

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    Tell = Callable[[Exception | None], object]
    Drop = Callable[[], object]


def told(watch: Callable[[Tell], Drop | None]) -> Generator[Any, Any, None]:
    """Suspend the task until what ``watch`` was given is called, from any thread.

    Raises the error it is called with. ``watch`` returns what makes it forget, as the task may be
    cancelled, or None if it cannot watch: RuntimeError.
    """
    import asyncio  # noqa: PLC0415 - slow to import, and there already if a loop runs

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Exception | None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: its tasks have ended
            loop.call_soon_threadsafe(_settle, future, error)

    drop = watch(tell)
    if drop is None:
        raise messages.cannot_watch()
    try:
        error = yield from future.__await__()
    finally:
        drop()
    if error is not None:
        raise error


def _settle(future: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not future.done():  # it is, if its task was cancelled meanwhile
        future.set_result(error)  # not set_exception, which complains if nobody comes to ask


def pass_turn() -> Generator[Any, Any, None]:
    """Let every other task that is ready run once."""
    import asyncio  # noqa: PLC0415 - as above

    yield from asyncio.sleep(0).__await__()
