"""Keeping Python's own garbage collections out of what they would change."""

from __future__ import annotations

import contextlib
import gc


@contextlib.contextmanager
def no_collections():
    """Let none begin by itself; ``gc.collect()`` and ``gc.isenabled()`` do what they always do."""
    threshold = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
