"""The functions given to ``then`` of a host stream: StreamKit's threads or an engine call them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._queues import then
from streamkit._streams import host_queue
from streamkit._streams.host_queue import QueueEnd, Wait, WorkQueue
from streamkit._support import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from streamkit._streams.host_queue import Item


T = TypeVar("T")


class ThenCalls:
    """The functions to call after one stream's work, in their order."""

    def __init__(self, work: WorkQueue) -> None:
        self._calls = then.SerialCalls()
        # an engine treats it as a stream; without one it says which thread calls a function
        self._queue = WorkQueue(f"{work.name}-then", f"'then' of {work.title}")

    def add(
        self,
        put: Callable[[Item], object],
        mark: QueueEnd,
        function: Callable[[], Any],
        what: object,
        step: AbstractContextManager[None],
    ) -> then.Outcome[Any]:
        """Have ``put`` queue the mark, and the function called once the queue has reached it.

        Return the future of its outcome. ``step`` is entered while the function runs.
        """
        queue = self._queue

        def run() -> Any:
            queue.thread, queue.function = threading.get_ident(), what
            try:
                with step:
                    return function()
            finally:
                queue.thread, queue.function = 0, None

        end = QueueEnd(queue)
        call = then.Call(run, what, future=HostOutcome(mark, end))
        call.future.step = step
        if host_queue.has_engine():
            put(mark)
            for item in (Wait(mark), lambda: call.run(mark.failure), end):
                queue.put(item)
            return call.future
        try:
            then.reserve(call)
            mark.tell(lambda: self._calls.tell([(call, mark.failure)]))
            put(mark)
        except BaseException:
            call.drop()
            raise
        return call.future


class HostOutcome(then.Outcome[T]):
    """A future whose waits are those of host streams: in a circle of them a queue goes on.

    ``mark`` is reached when the work before the function has run, and ``end`` when it is done.
    """

    def __init__(self, mark: QueueEnd, end: QueueEnd) -> None:
        super().__init__()
        self._mark, self._end = mark, end
        super().add_done_callback(lambda _: end())  # before all others, and if it is cancelled

    def done(self) -> bool:
        return super().done() or (host_queue.has_engine() and self._end.done)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        timeout = messages.in_seconds(timeout, self)
        if not super().done():
            began = time.monotonic()
            self._mark.wait(timeout, unless=self._end)
            if timeout is not None:
                timeout = max(0.0, timeout - (time.monotonic() - began))
            if self._end.wait(timeout):
                timeout = None
            elif timeout is not None:
                timeout = 0.0
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        if host_queue.has_engine() and not super().done():
            try:
                yield from self._end.__await__()
            except BaseException:  # as if the task was cancelled meanwhile
                self.cancel()
                raise
        return (yield from super().__await__())

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        if host_queue.has_engine():  # which runs nothing unless a caller waits
            self._end.wait()
        super().add_done_callback(fn)
