"""Events of this process that others can open: their tokens, and which event each one is of."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from streamkit import errors
from streamkit._base import messages
from streamkit._cuda import driver, sharing
from streamkit._interprocess import processes
from streamkit._interprocess.tokens import EventToken

_REFUSED = 1, 400  # how CUDA refuses an event that is not for other processes

_exported: WeakValueDictionary[bytes, Any] = WeakValueDictionary()


def token_of(event: Any, handle: int, device: int) -> EventToken:
    """Return the token of an event with this handle; ValueError if others cannot open it."""
    try:
        context = driver.primary_context(device)
        sent = sharing.event_handle(context, handle) if handle else b""
    except errors.DriverError as error:
        if error.code not in _REFUSED:
            raise
        sent = b""
    if not sent:
        raise ValueError(
            f"{messages.describe(event)} cannot be opened in another process: make one with "
            "streamkit.new_event(interprocess=True). A library's own may have to be recorded first."
        )
    _exported[sent] = event
    return EventToken(processes.own_name(), sharing.uuid_of(device), sent)


def find(token: EventToken) -> Any:
    """Return the event of this process that was exported so; None if it has gone or was closed."""
    event = _exported.get(token.handle)
    return None if event is None or event.closed else event
