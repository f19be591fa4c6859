"""``open_event``: the events of other processes."""

from __future__ import annotations

from streamkit._base import messages
from streamkit._cuda import driver, sharing
from streamkit._interprocess import processes
from streamkit._interprocess.tokens import EventToken
from streamkit._queues.lifetime import InterprocessEvent
from streamkit._streams.event import CudaEvent, exported


def open_event(token: EventToken) -> CudaEvent:
    """Return the event of another process, or of this one, from what ``event.export()`` gave.

    A stream of any library waits for it through ``s.wait(event)``: for its last record by then. A
    wait that is queued before the other process records it holds for the record before, or for
    nothing. So the message that it was recorded has to come first. It can be recorded here too.
    If that process is killed meanwhile, the stream waits for ever, because CUDA does not notice.

    Args:
        token: As it came, by pickle or as bytes through ``streamkit.processes.token_from_bytes``.

    Raises:
        TypeError: It is no token of an event.
        NoDeviceError: This process does not see the event's device.
        StreamClosedError: The event is gone, or its process has ended.
    """
    if not isinstance(token, EventToken):
        raise TypeError(f"{messages.describe(token)} is no token of an event: event.export() is.")
    if processes.is_own(token.process):
        event = exported.get(token.handle)
        if event is None or event.closed:
            raise messages.gone(token)
        return event
    ordinal = sharing.device_of(token.uuid)
    if not processes.is_alive(token.process):
        raise messages.gone(token)
    handle = sharing.open_event(driver.primary_context(ordinal), token.handle)
    if handle is None:
        raise messages.gone(token)
    return CudaEvent(ordinal, InterprocessEvent(handle))
