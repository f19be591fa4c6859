"""RMM: streams, without a current one."""

from __future__ import annotations

from typing import Any

from rmm.pylibrmm.stream import Stream

from streamkit._support import messages
from streamkit.backends._protocol import Source
from streamkit.protocols import Queue, Traits

name = "rmm"
api = 1
traits = Traits(streams_are_fixed=True)


def extract(obj: Any) -> Queue:
    if not isinstance(obj, Stream):
        raise messages.not_a_stream(obj)
    _, handle = obj.__cuda_stream__()
    return Queue(handle, owner=obj)


def borrow(queue: Queue) -> Any:
    """Build a stream on the queue, which the stream keeps alive."""
    return Stream(Source(queue))
