"""Keeping Python from collecting garbage where that would change what a test looks at."""

from __future__ import annotations

import contextlib
import gc


@contextlib.contextmanager
def no_collections():
    """Let no collection begin by itself; ``gc.collect()`` and ``gc.isenabled()`` work as always."""
    threshold = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
