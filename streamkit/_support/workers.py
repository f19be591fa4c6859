"""Threads of the package: how they start, and which of them waits for CUDA queues."""

from __future__ import annotations

import sys
import threading


class Thread(threading.Thread):
    """A thread whose start an interrupt can end without harm to any other."""

    is_dispatcher = False

    def start(self) -> None:
        try:
            super().start()
        except BaseException as error:
            if sys.version_info[:2] == (3, 14):  # see locks; each thread needs this one to start
                lock = vars(threading)["_active_limbo_lock"]
                while lock._is_owned():  # noqa: SLF001 - of an RLock there is no public one
                    lock.release()
            former = error.__context__
            if isinstance(error, RuntimeError) and not isinstance(former, (Exception, type(None))):
                raise former from None  # the interrupt, after which threading failed to release
            raise


def is_dispatcher() -> bool:
    """Whether this is the thread that learns when CUDA queues have run, and cannot wait for that.

    It comes to wait if the garbage collector runs a destructor there.
    """
    return getattr(threading.current_thread(), "is_dispatcher", False)
