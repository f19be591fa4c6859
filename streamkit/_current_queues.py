"""The queues on which the libraries stand, and the order of a queue with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit import _identity, _order, _refusals, _registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkit._movers import Mover
    from streamkit._queue import Queue


def others(queue: Queue, movers: Iterable[Mover]) -> list[Queue]:
    """Return each library's current queue on this one's device, once, but not this one.

    To be asked with this queue's context current.
    """
    found: list[Queue] = []
    for mover in movers:
        native = mover.current(queue.device or 0)
        extracted, adapter = _registry.extract(native)
        other = _identity.identify(extracted, adapter, native)
        if not any(_identity.same(other, known) for known in (queue, *found)):
            found.append(other)
    return found


def to_wait_for(queue: Queue, others: Iterable[Queue]) -> list[Queue]:
    """Return those of the others that the queue can wait for now.

    An edge over the border of a capture would break it. So inside one, the queue's own or that of
    the first other that captures, only those count that take part: a queue outside forks from it.
    CaptureError if it is illegal to ask.
    """
    own = _order.capture_of(queue)
    captures = [(other, _order.capture_of(other)) for other in others]
    inside = own or next((capture for _, capture in captures if capture), None)
    for asked, capture in ((queue, own), *(() if inside else captures)):
        if capture == 0:
            raise _refused(asked)
    return [other for other, capture in captures if capture == inside]


def is_to_wait(other: Queue, queue: Queue) -> bool:
    """Whether the other can wait for the queue now, and be no fork that nobody joins."""
    captures = _order.capture_of(other), _order.capture_of(queue)
    if captures == (0, None):
        raise _refused(other)
    return captures[0] == captures[1]


def _refused(queue: Queue) -> Exception:
    return _refusals.illegal_in_capture("an ordered scope", queue, "end the capture first.")
