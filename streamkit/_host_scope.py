"""The scope of a host stream: the body of ``with s:`` as an item of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit import _host_watch, _open_scopes
from streamkit._host_queue import Turn

if TYPE_CHECKING:
    from streamkit._host import HostStream
    from streamkit._host_watch import Step


class HostScope:
    """One open scope, as a thread's stack holds it; without a turn until ``begin``."""

    plan = None
    again = 0
    _turn: Turn | None = None  # here, because an interrupt can leave it half made
    _step: Step | None = None  # what an audit is told of it

    def __init__(self, stream: HostStream, key: object) -> None:
        self.stream = stream
        self.key = key

    def begin(self) -> None:
        """Wait for the queue's turn."""
        queue = self.stream._queue  # noqa: SLF001 - of host streams, as this is
        self._turn = Turn(queue)
        with _host_watch.note(self.stream, "synchronisation", "with", unless=queue.idle):
            self._turn.begin()
        self._step = _host_watch.begin(self.stream, "scope", "with")

    def leave(self) -> list[str]:
        """Let the queue go on, if it is held; a second time does what is left."""
        if self._turn is not None:
            if self._step is not None:
                self._step.end()
            self._turn.end()
        return []

    def __del__(self) -> None:
        self.leave()  # the thread ended inside it


def enter(stream: HostStream, key: object) -> None:
    """Open a scope of this thread under ``key``, which must leave it."""
    stream._check_open()  # noqa: SLF001 - of host streams, as this is
    scope = HostScope(stream, key)
    try:
        if not _open_scopes.holds(stream):
            scope.begin()
        _open_scopes.push(scope)
    except BaseException:  # an interrupt must not leave the queue held for ever
        scope.leave()
        raise
