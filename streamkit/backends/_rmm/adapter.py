"""RMM: its streams, and its memory for other libraries. It has no current stream."""

from __future__ import annotations

from typing import Any

from rmm.pylibrmm.stream import Stream

from streamkit._base import messages
from streamkit.backends._protocol import Source
from streamkit.backends._rmm.shared_pool import allocate, free
from streamkit.protocols import Queue

__all__ = ["allocate", "free"]  # functions of the adapter too

name = "rmm"
api = 1


def extract(obj: Any) -> Queue:
    """Read an ``rmm.pylibrmm.stream.Stream``."""
    if not isinstance(obj, Stream):
        raise messages.not_a_stream(obj)
    _, handle = obj.__cuda_stream__()
    return Queue(handle, owner=obj)


def borrow(queue: Queue) -> Any:
    """Build one on the queue, which it keeps alive."""
    return Stream(Source(queue))
