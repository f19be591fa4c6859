"""The adapter between StreamKit and toylib: a module with the names of the contract."""

import toylib

from streamkit.errors import UnsupportedStreamError
from streamkit.protocols import Binding, Queue

name = "toylib"
api = 1


def extract(obj):
    """Read the queue of a toylib stream, which owns it."""
    if not isinstance(obj, getattr(toylib, "Stream", ())):  # () while toylib is being imported
        raise UnsupportedStreamError(f"{obj!r} is no toylib stream")
    return Queue(obj.number, None, obj)


def borrow(queue):
    """Build a toylib stream on the queue, which it keeps alive."""
    return toylib.Stream(queue.handle, keeps=queue)


def current(device):
    """Return toylib's current stream in this thread."""
    return toylib.current_stream()


def bind(stream):
    """Return how a scope makes the stream current, and then again what was before."""
    return Binding.of(stream, toylib.current_stream, toylib.set_current_stream)
