"""The future of a function given to ``then``; not imported where ``concurrent.futures`` is not."""

from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Outcome(Future[T], Awaitable[T]):
    """The future that ``then`` of a stream returns: of ``concurrent.futures``, and awaitable.

    An error of the future that no code asks for is reported through ``sys.unraisablehook``. As with
    asyncio's own futures, cancelling a task that awaits this one cancels it too: a function that
    has not begun is not called then. ``asyncio.shield`` prevents that.
    """
