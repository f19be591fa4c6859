"""The driver calls of all threads in a block, as steps, and the names of their queues."""

from __future__ import annotations

import _thread
import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from streamkit._cuda import driver
from streamkit._queues import identity, registry
from streamkit.diagnostics.recording.copies import PAGEABLE, holds_host
from streamkit.diagnostics.recording.kernel_names import library_of_kernel, readable
from streamkit.diagnostics.recording.memory import Lives
from streamkit.diagnostics.recording.operations import LAST, AuditedQueue, Given, Operation
from streamkit.diagnostics.recording.recorder import Listener, subscription
from streamkit.diagnostics.recording.steps import (
    ELEMENTS,
    LAUNCHES,
    WORK,
    CudaQueue,
    queue_with,
    steps,
)
from streamkit.errors import StreamKitError
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamkit.diagnostics.recording.calls import Fact
    from streamkit.diagnostics.recording.operations import Kind
    from streamkit.diagnostics.recording.steps import CudaStep, StepKind
    from streamkit.protocols.watching import WatchedQueue

_NONBLOCKING = 1  # the flag of a stream


class KnownQueue(NamedTuple):
    """A queue of the driver, as far as the recording knows it."""

    name: AuditedQueue
    """The queue, as a report names it."""
    is_blocking: bool | None
    """Whether the queue waits for the legacy stream; None if that is not known."""
    context: int | None
    """The queue's own context, which need not be current where it is used; None if unknown."""


class DriverRecording:
    """Notes the calls of the driver and the queues that StreamKit meets, until ``stop``."""

    def __init__(self, notice: Callable[[], object] | None = None) -> None:
        """Take a function for ``Subscription.open``."""
        self.lost: int = 0
        """Calls that could not be noted."""
        self._notice = notice
        self._listener: Listener | None = None
        self._facts: list[Fact] = []
        self._met: dict[int | None, KnownQueue] = {}  # by ids, which no other queue gets again

    def start(self) -> None:
        """Begin the recording. NoCallbacksError if CUPTI is missing, or serves another tool."""
        self._listener = subscription.open(self._notice)
        identity.watch(self._meet)
        for queue in identity.living():
            self._meet(queue)

    def stop(self) -> None:
        """End the recording, and leave nothing behind."""
        listener, self._listener = self._listener, None
        if listener is not None:
            identity.unwatch(self._meet)
            self._facts, self.lost = subscription.close(listener)

    def count(self) -> int:
        """Return how many facts were noted so far."""
        return 0 if self._listener is None else subscription.count - self._listener.begin

    def _meet(self, queue: WatchedQueue) -> None:
        if not queue.is_default and queue.id is not None:  # the recorder meets the others
            self._met[queue.id] = _known(queue)

    def steps(self) -> list[CudaStep]:
        """Return the calls as steps. This works once, because the calls are given up."""
        facts, self._facts = self._facts, []
        return steps(facts)

    def queues(self, program: Sequence[CudaStep]) -> DriverQueues:
        """Return the queues of the steps; the driver is asked nothing about them."""
        with contextlib.suppress(StreamKitError):
            for device in filter(driver.primary_is_active, range(driver.device_count())):
                driver.primary_context(device)  # from now on ``driver.device_of`` has it
        for queue in identity.living():
            if queue.id not in self._met:  # it captured when it was met
                self._meet(queue)
        return DriverQueues(self._met, program)


class DriverQueues:
    """The queues of a recording, as they were when StreamKit or the recorder met them.

    The driver is not asked afterwards: the collector or another thread can have ended a stream.
    """

    def __init__(self, met: dict[int | None, KnownQueue], program: Sequence[CudaStep]) -> None:
        self._met = met
        self._found: dict[CudaQueue, KnownQueue] = {}
        self._ends = Counter(one.fields[0] for one in program if one.kind == "stream destroyed")
        self._said = {one.queue: one.fields for one in program if one.kind == "stream met"}
        """The driver's latest answers: handle, id, context, device, flags."""

    def named(self, queue: CudaQueue) -> AuditedQueue:
        """Return a queue as a report names it."""
        return self.of(queue).name

    def of_record(self, queue: WatchedQueue) -> AuditedQueue:
        """Return a living queue as a report names it; a per-thread queue is this thread's."""
        if not queue.is_default and queue.id in self._met:
            return self._met[queue.id].name
        ended, thread = self._ends[queue.handle], _thread.get_native_id()
        return self.named(queue_with(queue.handle, queue.context, thread, ended))

    def with_id(self, number: int) -> AuditedQueue | None:
        """Return the queue with this public id, if it is known."""
        known = (*self._met.values(), *self._found.values())
        return next((one.name for one in known if one.name.id == number), None)

    def of(self, queue: CudaQueue) -> KnownQueue:
        """Return a queue with all that is known of it."""
        found = self._found.get(queue)
        if found is None:
            found = self._found[queue] = self._find(queue)
        return found

    def _find(self, queue: CudaQueue) -> KnownQueue:
        handle = queue.handle
        number, context, index, flags = self._said.get(queue, (handle, 0, 0, -1, -1))[1:5]
        context = queue.number if handle <= PER_THREAD else context
        index = driver.device_of.get(context, index)
        device = "cuda:?" if index < 0 else f"cuda:{index}"
        if handle <= PER_THREAD:
            is_legacy, key = handle == LEGACY, (queue.number, queue.thread)
            text = "legacy default stream" if is_legacy else "per-thread default stream"
            name = AuditedQueue(device, text, number or None, is_legacy, key)
            return KnownQueue(name, is_blocking=True, context=context)
        if number in self._met:
            return self._met[number]
        is_blocking = None if flags < 0 else not flags & _NONBLOCKING
        text = f"stream id={number}" if number else f"stream {handle:#x}"
        if queue.number < self._ends[handle]:
            text += ", which has ended"
        key = (0, 0) if number else (handle, queue.number)
        name = AuditedQueue(device, text, number or None, key=key)
        return KnownQueue(name, is_blocking, context or None)


# -- the operations of a block ---------------------------------------------------------------------

_OTHER_RECORDS = ("event made", "event destroyed", "foreign event", "event in a graph")
"""After these a wait for an event is not for what this block recorded before."""
_COPIES = {"HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device",
           "Peer": "device to another"}  # fmt: skip
_INSIDE = ("DtoD", "Peer", "DtoA", "AtoD", "AtoA")
"""Parts of the names of copies that use no memory of the host."""
_OTHERS: dict[str, tuple[Kind, str]] = {
    "graph launch": ("graph", "CUDA graph"),
    "host function": ("function", "host function"),
    "free": ("function", "free"),
}


def operations(
    steps: Sequence[CudaStep], named: Callable[[CudaQueue], AuditedQueue], *hidden: StepKind
) -> Iterator[Given]:
    """Yield the operations of a block, without those of private streams and of hidden kinds."""
    private = {handle for _, handle in driver.private_streams}
    recorded: dict[int, CudaStep] = {}  # by events
    lives = Lives(steps)

    def queue_of(step: CudaStep | None) -> AuditedQueue | None:
        return None if step is None or step.queue is None else named(step.queue)

    for step in steps:
        queue, begun, found = queue_of(step), step, None
        if step.kind in WORK:
            found = None if step.kind in hidden else _work(step, queue, lives)
        elif step.kind == "record":
            recorded[step.fields[0]] = step
            found = Operation("record", "record", queue)
        elif step.kind == "wait":
            awaited = recorded.get(step.fields[1])
            begun = awaited or step
            found = Operation("wait", step.call.name, queue, after=queue_of(awaited))
        elif step.kind == "done" and "Synchronize" in step.call.name:
            event = recorded.get(step.fields[0]) if step.call.kind == "event done" else step
            name = step.call.name
            found = Operation("synchronisation", name, queue_of(event), blocks_host=True)
        elif step.kind in _OTHER_RECORDS:
            recorded.pop(step.fields[0], None)
        lives.read(step)
        if found is not None and not (step.queue and step.queue.handle in private):
            file, line = (found.blocks_host and step.fact.place) or (None, 0)
            # in the count that host streams share
            when, since = ((int(one.number), LAST) for one in (step, begun))
            yield Given(replace(found, file=file, line=line), when, since)


def _work(step: CudaStep, queue: AuditedQueue | None, lives: Lives) -> Operation:
    call = step.call
    if step.kind in LAUNCHES:
        name = readable(step.fact.more.symbol)
        return Operation("kernel", name, queue, library_of_kernel(name))
    if step.kind in ELEMENTS:
        size = step.fields[1] * ELEMENTS[step.kind]
        return Operation("fill", f"fill, {size} bytes", queue)
    if step.kind in _OTHERS:
        return Operation(*_OTHERS[step.kind], queue)
    if step.kind == "other work" and "Memcpy" not in call.name:
        is_fill = "Memset" in call.name
        return Operation(*(("fill", "fill") if is_fill else ("function", call.name)), queue)
    which = next((text for mark, text in _COPIES.items() if mark in call.name), "of an array")
    size_known = f", {step.fields[2]} bytes" if step.kind in ("copy", "copy and wait") else ""
    # a call without a stream waits, but for copies inside devices
    blocks = call.stream is None and not any(mark in call.name for mark in _INSIDE)
    copy = Operation("copy", f"copy {which}{size_known}", queue, blocks_host=blocks)
    return replace(copy, blocks_host=True, remedy=PAGEABLE) if holds_host(step, lives) else copy


# -- the names of queues in reports ---------------------------------------------------------------


def _known(queue: WatchedQueue) -> KnownQueue:
    """Return any other queue with all that is known of it; without an id its key tells it apart."""
    name = queue.name
    if not name:
        maker = "StreamKit" if queue.is_owned else next(iter(queue.views), "")
        row = registry.BY_NAME.get(maker)
        name = f"{maker if row is None else row.label} stream id={queue.id}".strip()
    key = (queue.context, queue.handle) if queue.id is None else (0, 0)
    is_blocking = None if queue.nonblocking is None else not queue.nonblocking
    named = AuditedQueue(f"cuda:{queue.device}", name, queue.id, key=key)
    return KnownQueue(named, is_blocking, queue.context)
