"""Whether what owns a handle has it still: its library may have closed it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit._queues import identity, registry

if TYPE_CHECKING:
    from streamkit._base.queue import Queue


def has(owner: object, queue: Queue) -> bool:
    """Whether the owner is a stream, and of the queue's handle."""
    try:
        return registry.extract(owner)[0].handle == queue.handle
    except Exception:  # noqa: BLE001 - it is no stream, it is closed, or its own code fails
        return False


def has_closed(owner: object, queue: Queue) -> bool:
    """Whether the owner is a stream, and not of the handle any more; a caretaker cannot tell."""
    is_stream = type(owner) in registry.stream_types or registry.speaks_protocol(owner)
    return is_stream and not has(owner, queue)


identity.owner_has_closed = has_closed
