"""Threads of the package: how they start, and which of them waits for CUDA queues."""

from __future__ import annotations

import threading


class Thread(threading.Thread):
    """A thread of StreamKit's."""

    is_dispatcher = False


def is_dispatcher() -> bool:
    """Whether this is the thread that learns when CUDA queues have run, and cannot wait for that.

    It comes to wait if the garbage collector runs a destructor there.
    """
    return getattr(threading.current_thread(), "is_dispatcher", False)
