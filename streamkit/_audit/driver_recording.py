"""The driver calls of all threads in a block, and the names of their queues."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from streamkit._audit import driver_steps
from streamkit._audit.cuda_recording import name_of, used_contexts
from streamkit._audit.driver_steps import CudaQueue, CudaStep
from streamkit._audit.operations import AuditedQueue
from streamkit._base.queue import LEGACY, PER_THREAD, Queue
from streamkit._cuda import driver
from streamkit._cuda.driver_callbacks import Fact, subscription
from streamkit._queues import identity
from streamkit.errors import StreamKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamkit._base.queue import QueueRecord

    Met = tuple[int, AuditedQueue, bool | None]
    """How many facts there were when a queue was met, what it is, and whether it is nonblocking."""


class DriverRecording:
    """Notes the calls of the driver and the queues that StreamKit meets, until ``stop``."""

    def __init__(self, place: Callable[[], Any] | None = None) -> None:
        """Take what says where a call comes from."""
        self.lost = 0
        """Calls that could not be read."""
        self._place = place
        self._all: list[Any] = []
        self._begin = self._end = 0
        self._capturing: list[int] = []
        self._met: dict[int, list[Met]] = {}  # by handle

    def start(self) -> None:
        """Begin. NoCallbacksError where CUPTI is missing, or serves another tool."""
        self._all = subscription.open(self._place)
        self._begin = len(self._all)
        identity.watch(self._meet)
        for queue in filter(identity.is_alive, identity.living()):
            with contextlib.suppress(StreamKitError):
                if driver.capture_id(queue.handle) is not None:
                    self._capturing.append(queue.handle)
            self._meet(queue)

    def stop(self) -> None:
        """End. Nothing is left behind."""
        self._end, self.lost = len(self._all), subscription.lost
        identity.unwatch(self._meet)
        subscription.close(self._place)

    def count(self) -> int:
        """Return how many calls there were so far."""
        return len(self._all) - self._begin

    def _meet(self, queue: QueueRecord) -> None:
        if not queue.is_default and queue.id is not None:  # the others are looked up at the end
            name = AuditedQueue(f"cuda:{queue.device}", name_of(queue), queue.id)
            self._met.setdefault(queue.handle, []).append((len(self._all), name, queue.nonblocking))

    def steps(self) -> list[CudaStep]:
        """Return what the calls did that were noted."""
        facts = [Fact(*noted) for noted in self._all[self._begin : self._end]]
        return driver_steps.steps(facts, self._capturing)

    def queues(self, program: Iterable[CudaStep]) -> DriverQueues:
        """Return what is known of queues of the steps; asks the driver for those that live now."""
        with contextlib.suppress(StreamKitError):
            used_contexts()  # from now on the driver knows the device of each
        return DriverQueues(self._met, program, self._begin)


class DriverQueues:
    """What is known of queues: as they were met, and at the end."""

    def __init__(
        self, met: Mapping[int, list[Met]], program: Iterable[CudaStep], begin: int
    ) -> None:
        self._known: dict[CudaQueue, tuple[AuditedQueue, bool | None]] = {}
        self._ends: dict[int, list[int]] = {}
        for step in program:
            if step.kind == "stream destroyed":
                self._ends.setdefault(step.fields[0], []).append(int(step.number) + begin)
        for handle, each in met.items():
            for since, name, nonblocking in each:
                ended = sum(end < since for end in self._ends.get(handle, ()))
                blocking = None if nonblocking is None else not nonblocking
                self._known[CudaQueue(handle, ended)] = name, blocking

    def named(self, queue: CudaQueue) -> AuditedQueue:
        """Return what a report calls a queue."""
        return self._of(queue)[0]

    def is_blocking(self, queue: CudaQueue) -> bool | None:
        """Whether it waits for the legacy stream; None if that is not known."""
        return self._of(queue)[1]

    def of_record(self, queue: QueueRecord) -> AuditedQueue:
        """Return what a report calls a queue that lives; a per-thread one is this thread's."""
        ended, thread = len(self._ends.get(queue.handle, ())), threading.get_ident()
        found = driver_steps.queue_with(queue.handle, queue.context, thread, ended)
        return self.named(found)

    def with_id(self, number: int) -> AuditedQueue | None:
        """Return the one that has this public id, if it was met."""
        return next((queue for queue, _ in self._known.values() if queue.id == number), None)

    def _of(self, queue: CudaQueue) -> tuple[AuditedQueue, bool | None]:
        found = self._known.get(queue)
        if found is None:
            found = self._known[queue] = self._ask(queue)
        return found

    def _ask(self, queue: CudaQueue) -> tuple[AuditedQueue, bool | None]:
        handle = queue.handle
        if handle <= PER_THREAD:
            return _default(queue), True
        if queue.number == len(self._ends.get(handle, ())):  # it lives
            with contextlib.suppress(StreamKitError):
                record = identity.identify(Queue(handle))
                name = AuditedQueue(f"cuda:{record.device}", name_of(record), record.id)
                return name, None if record.nonblocking is None else not record.nonblocking
        ended = f"stream {handle:#x}, which has ended"
        return AuditedQueue("cuda:?", ended, None, key=(handle, queue.number)), None


def _default(queue: CudaQueue) -> AuditedQueue:
    """Return what a report calls a default stream, a per-thread one of another thread included."""
    is_legacy = queue.handle == LEGACY
    number = None
    if is_legacy or queue.thread == threading.get_ident():
        with contextlib.suppress(StreamKitError), driver.in_context(queue.number):
            number = driver.legacy_id() if is_legacy else driver.stream_id(PER_THREAD)
    name = "legacy default stream" if is_legacy else "per-thread default stream"
    device = driver.device_of.get(queue.number, "?")
    return AuditedQueue(f"cuda:{device}", name, number, is_legacy, (queue.number, queue.thread))
