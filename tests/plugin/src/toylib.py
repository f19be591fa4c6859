"""A toy library with CUDA streams, which has never heard of StreamKit.

Its streams have no ``__cuda_stream__``, and each thread has a current one.
"""

import threading


class Stream:
    """A queue, known by its number."""

    def __init__(self, number, keeps=None):
        self.number = number
        self.keeps = keeps


class Array:
    """Something of this library that is no stream."""


class _Current(threading.local):
    def __init__(self):
        self.stream = Stream(0)


_current = _Current()


def current_stream():
    """Return the stream on which this thread's next work runs."""
    return _current.stream


def set_current_stream(stream):
    """Let this thread's next work run on ``stream``; return the stream before."""
    previous, _current.stream = _current.stream, stream
    return previous
