"""cuda.bindings: ``CUstream``, ``cudaStream_t``, ``CUevent``. Bare handles, which own nothing."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from streamkit._support import messages
from streamkit.protocols import Queue, Traits
from streamkit.protocols.queues import queue_of_bindings

name = "cuda.bindings"
api = 1
# not fixed: the object outlives its stream, whose handle can then be another stream's
traits = Traits(any_context=True, remembers_handles=False)


def extract(obj: Any) -> Queue:
    """Read a ``CUstream`` (``cudaStream_t`` is one)."""
    if not isinstance(obj, driver.CUstream):
        raise messages.not_a_stream(obj)
    return queue_of_bindings(int(obj))


def borrow(queue: Queue) -> Any:
    """Build a ``CUstream``, which holds nothing: its user keeps the StreamKit stream too."""
    return driver.CUstream(queue.handle)


def event_handle(event: Any) -> int:
    """Read a ``CUevent`` (``cudaEvent_t`` is one)."""
    if not isinstance(event, driver.CUevent):
        raise messages.not_a_stream(event)
    return int(event)


def borrow_event(handle: int, device: int, owner: object) -> Any:
    """Build a ``CUevent``, which holds nothing: its user keeps the StreamKit event too."""
    return driver.CUevent(handle)
