"""The class of the package's threads, and a question for the one that waits for CUDA queues."""

from __future__ import annotations

import threading


class Thread(threading.Thread):
    """A thread of StreamKit's."""

    is_dispatcher = False


def is_dispatcher() -> bool:
    """Whether this is the thread that learns when CUDA queues have run, and cannot wait for that.

    A destructor that the garbage collector runs in this thread could try to wait.
    """
    return getattr(threading.current_thread(), "is_dispatcher", False)
