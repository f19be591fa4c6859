"""Keeping Python from collecting garbage where that would change what a test looks at."""

from __future__ import annotations

import contextlib
import gc
import sys


@contextlib.contextmanager
def no_collections():
    """Let no collection begin by itself; ``gc.collect()`` and ``gc.isenabled()`` work as always."""
    threshold = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)


def its_thread_ran_again(stream):
    """Let a thread that calls functions for ``then`` run; True.

    Without a GIL an object whose last reference another thread drops is freed when the thread that
    made it runs the next time.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        stream.then(int).result(30)
    return True
