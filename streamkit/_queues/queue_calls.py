"""``then`` of a CUDA queue: a function is called when the queue has passed its present end."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import driver
from streamkit._queues import dispatcher, identity, points, then
from streamkit._support import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols.queues import QueueRecord


class QueueCalls(then.SerialCalls):
    """The functions of one CUDA queue, called with its context current."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self._context = context  # not the queue, which holds this

    def add(
        self, queue: QueueRecord, function: Callable[[], Any], what: object, stream: object
    ) -> then.Outcome[Any]:
        """Have the function called after the queue's work so far; return its future."""
        # the call keeps the queue, so that another stream on it finds the same calls
        call = then.Call(function, what, queue)
        try:
            then.reserve(call)
            is_watched = dispatcher.watch(points.mark(queue, stream, "then"), self, call)
        except BaseException:
            call.drop()
            raise
        if not is_watched:
            call.drop()
            raise messages.cannot_watch()
        return call.future

    def prepare(self) -> None:
        if not _here.is_relaxed:
            driver.relax()
            _here.is_relaxed = True
        if not driver.has_context(self._context):  # the last function may have left another
            driver.set_context(self._context)

    def leave(self) -> None:
        if self._context not in driver.device_of:  # it is no primary context, and may be destroyed
            # every other call reports a broken context too; and the function may have forked
            with contextlib.suppress(errors.DriverError, errors.ForkedProcessError):
                driver.set_context(0)


class _Here(threading.local):
    is_relaxed = False


_here = _Here()
"""Whether this thread, a worker, may call the driver whatever other threads capture."""


def of(queue: QueueRecord) -> QueueCalls:
    """Return the calls of a queue, which all its records share."""
    first = queue.first_record()
    with identity.lock:
        if first.calls is None:
            first.calls = QueueCalls(queue.context)
        queue.calls = first.calls
    return queue.calls  # type: ignore[no-any-return]
