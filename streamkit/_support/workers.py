"""Threads of the package: how they start, and who takes their place while they wait."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


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


make_way_of: dict[int, Callable[[], AbstractContextManager[None]]] = {}
"""For each thread that calls functions for ``then``: what to hold while it waits for another."""


def making_way() -> AbstractContextManager[None]:
    """Return what this thread holds while it waits for what a function can hold up."""
    make_way = make_way_of.get(threading.get_ident())
    return nullcontext() if make_way is None else make_way()
