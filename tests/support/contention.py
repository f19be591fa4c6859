"""Threads that hold the GIL in turn and take a lock, and a logger that really writes."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import sys
import threading


@contextlib.contextmanager
def contended():
    """Give a lock that two other threads take in turn, which keep the GIL while they sleep."""
    lock, stop = threading.Lock(), threading.Event()

    def hold():
        library = ctypes.PyDLL(None)  # whose calls keep the GIL
        while not stop.is_set():
            with lock:
                library.usleep(10)
            library.usleep(20)

    holders = [threading.Thread(target=hold, daemon=True) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for holder in holders:
            holder.start()
        yield lock
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for holder in holders:
            holder.join()


@contextlib.contextmanager
def logged():
    """Give a logger of level DEBUG, and the text that its handler writes, a line a record."""
    text, logger = io.StringIO(), logging.getLogger("contention")
    handler = logging.StreamHandler(text)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # so that this handler alone gets the records
    logger.addHandler(handler)
    try:
        yield logger, text
    finally:
        logger.removeHandler(handler)
        handler.close()
