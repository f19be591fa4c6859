"""Order between queues: one records an event, another waits for it. Nothing blocks the host.

A default stream's handle means the current context's, so work on it runs with its own context
current; every other handle knows its context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from streamkit._cuda import driver, events, loader
from streamkit._queues import active_captures, identity
from streamkit._queues.lifetime import OwnedEvent, give_back, spare_events, take_event
from streamkit._support import messages
from streamkit.protocols.queues import LEGACY, PER_THREAD, this_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols.queues import QueueRecord

P = ParamSpec("P")
T = TypeVar("T")


def on(queue: QueueRecord, call: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Make a call where the queue's handle means that queue; return its result."""
    if queue.handle <= PER_THREAD:
        return driver.ensure_in(queue.context, call, *arguments, **options)
    return call(*arguments, **options)


def check_thread(queue: QueueRecord, what: object) -> None:
    """Raise ScopeError if this is another thread's per-thread default stream."""
    if queue.thread is not None and queue.thread is not this_thread():
        raise messages.wrong_thread(what, queue.thread, this_thread())


def capture_of(queue: QueueRecord, current: int = 0) -> int | None:
    """Return ``driver.capture_id`` of the queue. ``current`` is as for ``wait_queue``."""
    question = queue.capture_question
    if question is None:
        question = queue.capture_question = driver.capture_question(queue.handle)
    if loader.is_forked:
        raise messages.forked()
    ask, captures = question
    code = ask() if current or queue.handle > PER_THREAD else driver.ensure_in(queue.context, ask)
    # true by this answer, or by a later one if another thread has asked meanwhile
    return driver.capture_id(queue.handle, (code, captures)) if code or captures else None


def record(event: int, queue: QueueRecord, *, external: bool = False) -> None:
    """Mark the present end of the queue."""
    on(queue, events.record, event, queue.handle, external=external)


def mark(event: OwnedEvent, queue: QueueRecord) -> None:
    """Record an event of StreamKit's at the present end of the queue, by cuda.core if possible."""
    if event.serves != queue.context or queue.handle <= PER_THREAD:
        record(event.handle, queue)
        return
    if loader.is_forked:
        raise messages.forked()
    core = queue.core
    if core is None:
        core = _core_of(queue)
    try:
        core.record(event.core)
    except Exception as error:
        raise events.core_error("cuEventRecord", error) from error


def mark_outside_capture(event: OwnedEvent, queue: QueueRecord) -> bool:
    """``mark``, unless the queue captures; False if so, and the event may be the graph's then."""
    if capture_of(queue) is not None:
        return False
    mark(event, queue)
    return capture_of(queue) is None  # else another thread has begun it meanwhile


def _core_of(queue: QueueRecord) -> Any:
    """Return cuda.core's object of the queue, which all its records share."""
    if queue.core is None:
        first = queue.first_record()
        if first.core is None:
            first.core = events.core_stream(queue.handle)
        spare_events(queue)  # whatever has the one has the other
        queue.core = first.core
    return queue.core


def wait_event(
    queue: QueueRecord, event: int, *, external: bool = False, held: object = None
) -> None:
    """Hold the queue's later work until the event's last record; 0 for an event never recorded.

    ``held`` is the object with which the event dies: the graph keeps it for an external wait.
    """
    if event:
        on(queue, events.wait, queue.handle, event, external=external)
        if external:
            active_captures.keep_in_graphs(held)


def wait_queue(
    queue: QueueRecord,
    other: QueueRecord,
    external: bool = False,  # noqa: FBT001, FBT002 - by position, which costs less
    current: int = 0,
) -> None:
    """Hold the queue's later work until all that ``other`` was given so far has run.

    One record and one wait, of an event that is used again; nothing if the two are one queue.
    ``current`` is the current context, if the caller knows it and the two queues are of it.
    """
    one, two = queue.handle, other.handle
    source, target = other.core, queue.core
    if (
        source is None
        or target is None
        or one == two
        or external
        or not (one > LEGACY < two or current)
    ):
        _wait_at_first(queue, other, external=external)
        return
    try:  # ``take_event`` without a call
        event = other.wait_events.pop()
    except IndexError:
        event = OwnedEvent(other.context)
    mark = event.core
    if mark is None:
        _wait_at_first(queue, other, external=external)
        return
    if loader.is_forked:
        raise messages.forked()
    try:
        source.record(mark)
        target.wait(mark)
    except Exception as error:
        raise events.core_error("cuEventRecord or cuStreamWaitEvent", error) from error
    other.wait_events.append(event)


def _wait_at_first(queue: QueueRecord, other: QueueRecord, *, external: bool) -> None:
    """Wait as ``wait_queue``, whatever the two queues are, and make what later waits need."""
    one, two = queue.handle, other.handle
    if one == two and identity.same(queue, other):
        return
    event = take_event(other)
    # two queues of one handle are the legacy streams of two contexts
    if event.core is None or external or one == two or PER_THREAD in (one, two):
        record(event.handle, other)
        wait_event(queue, event.handle, external=external, held=event)
    else:
        cores = _core_of(other), _core_of(queue)
        on(queue if one == LEGACY else other, events.record_and_wait, event.core, *cores)
    if not external:  # else the graph's launches wait for the last record of this event
        give_back(event, spare_events(other))
