"""StreamKit's reports to recorders: the work of host streams, and the waits of the host."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols.watching import Kind

_order, _threads = itertools.count(), itertools.count(1)
listeners: list[Callable[[Step], object]] = []
"""Recorders: each is called with every step, in the thread that gives it."""
NOTHING: AbstractContextManager[None] = nullcontext()


class _Thread(threading.local):
    step: Step | None = None  # the function of a queue that the thread runs

    def __init__(self) -> None:
        self.number = next(_threads)  # Python's ident is given again when a thread has ended


_thread = _Thread()


def running() -> Step | None:
    """Return the function of a queue that this thread runs, if it was reported."""
    return _thread.step


class Step:
    """An item that a host stream is given, or one wait of the host; a context while it runs."""

    __slots__ = (
        "_entered", "around", "call", "end_ns", "end_order", "given_ns", "giver",
        "has_failed", "is_inline", "is_ordered", "kind", "mark", "module", "name", "order",
        "start_ns", "stream", "thread",
    )  # fmt: skip

    def __init__(self, stream: Any, kind: Kind, what: Any, mark: Any | None) -> None:
        self.stream, self.mark = stream, mark
        self.kind: Kind = kind
        self.name, self.module = (what, "") if isinstance(what, str) else _names_of(what)
        self.call: Any | None = None
        self.is_inline = self.is_ordered = False
        self.thread = _thread.number
        self.giver = _thread.step
        self.around: tuple[Callable[[Step], AbstractContextManager[object]], ...] = ()
        """Contexts that listeners want open while the step runs, in the thread that runs it."""
        self._entered: ExitStack | None = None
        self.has_failed = False
        self.order = next(_order)
        self.end_order = 0
        """Of a scope: its end, among the orders of all steps; 0 if it has none yet."""
        self.given_ns = time.perf_counter_ns()
        self.start_ns = 0
        self.end_ns = 0

    def __enter__(self) -> None:
        self.start_ns = time.perf_counter_ns()
        with ExitStack() as entering:  # if one context fails, the others are left
            if self.kind in ("function", "then") and not self.is_inline:
                outer, _thread.step = _thread.step, self
                entering.callback(setattr, _thread, "step", outer)
            for one in self.around:
                entering.enter_context(one(self))
            self._entered = entering.pop_all()

    def __exit__(self, kind: object, *_: object) -> None:
        self.has_failed = kind is not None
        if not self.end_ns:  # the first time counts
            self.end_ns, self.end_order = time.perf_counter_ns(), next(_order)
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()


def _names_of(what: Any) -> tuple[str, str]:
    """Return the names of a function and of its module."""
    what = getattr(what, "func", what)  # of a functools.partial
    name = getattr(what, "__qualname__", None) or getattr(what, "__name__", None)
    owner = getattr(what, "__self__", what)  # a built-in method has no module of its own
    module = getattr(what, "__module__", None) or type(owner).__module__
    return str(name or type(what).__qualname__), module


def note(  # noqa: PLR0913 - each caller gives what it has
    stream: Any,
    kind: Kind,
    what: Any,
    mark: Any | None = None,
    *,
    call: Any | None = None,
    is_inline: bool = False,
    is_ordered: bool = False,
) -> AbstractContextManager[None]:
    """Return a context to hold while the step runs, which is reported to all listeners.

    ``stream`` can be the id of a CUDA queue, which keeps no stream alive. ``what`` is a function
    or a name. ``mark`` is the point of a host stream that the step sets or waits for, or the step
    of a function given to ``then``. ``call``, with the function's arguments, is for the listeners
    alone. ``is_inline`` says that the thread holds the stream, so that the step runs at once.
    ``is_ordered`` says it of a scope, as of ``use``.
    """
    if not listeners:
        return NOTHING
    step = Step(stream, kind, what, mark)
    step.call, step.is_inline, step.is_ordered = call, is_inline, is_ordered
    for listener in listeners.copy():
        listener(step)
    step.call = None  # a call keeps arrays alive
    return step
