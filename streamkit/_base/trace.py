"""What StreamKit tells an audit itself: what host streams were given, and where the host waited."""

from __future__ import annotations

import itertools
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from streamkit._base.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    Kind = Literal["function", "scope", "record", "wait", "synchronisation"]

_order = itertools.count()
_lock = new_lock()
_listeners: tuple[Callable[[Step], object], ...] = ()
_UNWATCHED: AbstractContextManager[None] = nullcontext()


class Step:
    """One thing that a host stream was given, or for which the host waited: any stream's work."""

    def __init__(self, stream: Any, kind: Kind, what: Any, mark: Any | None) -> None:
        self.stream, self.mark = stream, mark
        self.kind: Kind = kind
        what = getattr(what, "func", what)  # of a functools.partial
        self.name: str = what if isinstance(what, str) else _name(what)
        self.module: str = getattr(what, "__module__", None) or type(what).__module__
        self.order = next(_order)
        self.given_ns = time.perf_counter_ns()
        self.start_ns = 0
        self.end_ns = 0

    def __enter__(self) -> None:
        self.start_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Note that it has ended; nothing the second time."""
        self.end_ns = self.end_ns or time.perf_counter_ns()


def _name(function: Any) -> str:
    named = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(named or type(function).__qualname__)


def note(
    stream: Any, kind: Kind, what: Any, mark: Any | None = None, *, unless: bool = False
) -> AbstractContextManager[None]:
    """Tell whoever listens what a stream is given, if it is; hold the result while that runs.

    ``stream`` can be the id of a CUDA queue, which nothing here keeps alive.
    """
    return (None if unless else _step(stream, kind, what, mark)) or _UNWATCHED


def begin(stream: Any, kind: Kind, what: Any) -> Step | None:
    """Tell whoever listens what begins now; None if nobody does, else end it."""
    step = _step(stream, kind, what, None)
    if step is not None:
        step.__enter__()
    return step


def _step(stream: Any, kind: Kind, what: Any, mark: Any | None) -> Step | None:
    listeners = _listeners
    if not listeners:
        return None
    step = Step(stream, kind, what, mark)
    for listener in listeners:
        listener(step)
    return step


def listen(listener: Callable[[Step], object]) -> None:
    """Have every step from now on told to ``listener``, in the thread that gives it."""
    global _listeners  # noqa: PLW0603 - one list for the process
    with _lock:
        _listeners = (*_listeners, listener)


def forget(listener: Callable[[Step], object]) -> None:
    """End that."""
    global _listeners  # noqa: PLW0603 - one list for the process
    with _lock:
        _listeners = tuple(one for one in _listeners if one is not listener)
