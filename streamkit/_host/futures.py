"""The functions given to ``then`` of a host stream: StreamKit's threads or an engine call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit._base import messages
from streamkit._host import work_queue
from streamkit._host.work_queue import Mark, Wait, WorkQueue
from streamkit._waiting import callbacks

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from streamkit._host.work_queue import Item


class After:
    """The functions to call after one stream's work, in their order."""

    def __init__(self, name: str) -> None:
        self._calls = callbacks.SerialCalls()
        self._queue = WorkQueue(f"{name}-then", f"{name}-then")  # an engine treats it as a stream

    def add(
        self,
        put: Callable[[Item], object],
        mark: Mark,
        function: Callable[[], Any],
        what: object,
        step: AbstractContextManager[None],
    ) -> Future[Any]:
        """Have ``put`` queue the mark, and the function called once the queue has reached it.

        Return the future of its outcome. ``step`` is entered while the function runs.
        """

        def run() -> Any:
            with step:
                return function()

        if work_queue.has_engine():
            end = Mark(self._queue)
            call = callbacks.Call(run, what, future=_EngineFuture(end))
            call.future.step = step
            put(mark)
            for item in (Wait(mark), lambda: call.run(mark.failure), end):
                self._queue.put(item)
            return call.future
        call = callbacks.Call(run, what)
        call.future.step = step
        try:
            callbacks.reserve(call)
            mark.tell(lambda: self._calls.tell([(call, mark.failure)]))
            put(mark)
        except BaseException:
            call.drop()
            raise
        return call.future


class _EngineFuture(callbacks.Outcome):
    """A future that waits for its end, because an engine runs nothing unless a caller waits."""

    def __init__(self, end: Mark) -> None:
        super().__init__()
        self._end = end

    def done(self) -> bool:
        return self._end.done or super().done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        timeout = messages.in_seconds(timeout, self)
        self._end.wait(timeout)
        return super().exception(timeout and 0)  # which ``result`` asks first

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        self._end.wait()
        super().add_done_callback(fn)
