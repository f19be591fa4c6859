"""Threads of the package: how they start, and who takes their place while they wait."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Thread(threading.Thread):
    """A thread of StreamKit's."""

    is_dispatcher = False


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
