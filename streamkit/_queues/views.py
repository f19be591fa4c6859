"""The libraries' own objects on a queue, and who may have its handle by now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit._base import messages
from streamkit._base.adapter import traits_of
from streamkit._cuda import driver
from streamkit._queues import identity, registry
from streamkit._queues.lifetime import OwnedQueue

if TYPE_CHECKING:
    from streamkit._base.queue import QueueRecord


def view(queue: QueueRecord, native: object, library: str) -> tuple[Any, bool]:
    """Return that library's object on this queue: the wrapped one, a living one, or a new one.

    And whether the stream may hold it: an object that hides what it holds from the garbage
    collector would never be collected with an owner that holds the stream.
    """
    served = registry.adapter(library)
    traits = traits_of(served)
    may_keep = not traits.hides_owners
    if native is not None and registry.stream_types.get(type(native)) is served:
        return native, may_keep
    found = queue.view(served.name)
    if found is not None:
        return found, may_keep
    if not queue.primary and not traits.any_context:
        raise messages.library_cannot_take(
            served.name,
            "a stream of another context than the device's primary one",
            "it runs in the primary one. Order its own stream after this one: t.wait(s)",
        )
    with identity.lock:
        found = queue.view(served.name)  # another thread's, meanwhile
        if found is not None:
            return found, may_keep
        with driver.in_context(queue.context):  # building it may initialise the library's device
            made = served.borrow(queue)
        expose_handle(queue, remembers=traits.remembers_handles)
        identity.remember(queue, served, made, made=True)
    return made, may_keep


def expose_handle(queue: QueueRecord, *, remembers: bool) -> None:
    """Note that others may have the handle now, and an allocator that ``remembers`` it."""
    record: QueueRecord | None = queue
    while record is not None:  # ``all_records`` without its calls
        record.handle_exposed = True
        if remembers and isinstance(record, OwnedQueue):
            record.remembered = True
        record = record.older_record
