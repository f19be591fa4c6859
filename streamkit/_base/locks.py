"""Locks that a forked child finds free."""

from __future__ import annotations

import os
import threading


def new_lock() -> threading.RLock:
    """Return a lock that a garbage collection inside it may take again.

    In a forked child nobody would release what another thread held, so it is made anew there, as
    the standard library does with its own.
    """
    lock = threading.RLock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    return lock
