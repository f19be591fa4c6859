"""What StreamKit reports to an audit: what host streams are given, and where the host waits."""

from __future__ import annotations

import itertools
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    Kind = Literal["function", "scope", "record", "wait", "synchronisation"]

_order = itertools.count()
listeners: list[Callable[[Step], object]] = []
"""Each is told of every step, in the thread that gives it."""
NOTHING: AbstractContextManager[None] = nullcontext()


class Step:
    """One thing that a host stream is given, or one wait of the host; a context while it runs."""

    def __init__(self, stream: Any, kind: Kind, what: Any, mark: Any | None) -> None:
        self.stream, self.mark = stream, mark
        self.kind: Kind = kind
        what = getattr(what, "func", what)  # of a functools.partial
        name = getattr(what, "__qualname__", None) or getattr(what, "__name__", None)
        self.name = what if isinstance(what, str) else str(name or type(what).__qualname__)
        self.module: str = getattr(what, "__module__", None) or type(what).__module__
        self.order = next(_order)
        self.given_ns = time.perf_counter_ns()
        self.start_ns = 0
        self.end_ns = 0

    def __enter__(self) -> None:
        self.start_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.end_ns = self.end_ns or time.perf_counter_ns()  # the first time counts


def note(
    stream: Any, kind: Kind, what: Any, mark: Any | None = None
) -> AbstractContextManager[None]:
    """Return a context to hold while the step runs, which is reported to all listeners.

    ``stream`` can be the id of a CUDA queue, which keeps no stream alive. ``what`` is a function
    or a name. ``mark`` is the point of a host queue that the step sets or waits for.
    """
    if not listeners:
        return NOTHING
    step = Step(stream, kind, what, mark)
    for listener in listeners.copy():
        listener(step)
    return step
