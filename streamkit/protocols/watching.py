"""The steps and the queues that the acting part reports, with all that a watcher may rely on.

``diagnostics`` is written against these protocols. A step is reported to
``_queues.trace.listeners``, and a queue to ``_queues.identity.watch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

Kind = Literal[
    "function", "then", "scope", "operator", "record", "point", "wait", "future", "query",
    "synchronisation",
]  # fmt: skip


class WatchedStep(Protocol):
    """One piece of work that a host stream is given, or one wait of the host."""

    kind: Kind
    stream: Any
    """The host stream; the id of a CUDA queue for which the host waits; None for no stream."""
    name: str
    module: str
    call: Any
    """The function with its arguments, for as long as the step is reported."""
    mark: Any
    """The point that the step sets or waits for; or the step of the function given to ``then``."""
    is_inline: bool
    """Whether the thread holds the stream, so that the step runs at once."""
    is_ordered: bool
    thread: int
    around: tuple[Callable[[Any], AbstractContextManager[object]], ...]
    """A watcher adds the contexts that are to be open while the step runs."""
    has_failed: bool
    order: int
    end_order: int
    given_ns: int
    start_ns: int
    end_ns: int

    @property
    def giver(self) -> WatchedStep | None: ...  # None for a thread of the program


class WatchedQueue(Protocol):
    """A CUDA queue that StreamKit has met."""

    handle: int
    device: int
    context: int
    id: int | None
    name: str | None
    nonblocking: bool | None
    views: Mapping[str, Callable[[], Any]]

    @property
    def is_default(self) -> bool: ...
    @property
    def is_owned(self) -> bool: ...
