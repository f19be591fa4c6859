"""Hold the garbage collector back where the end of an object could do something illegal."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

from streamkit._support.locks import in_child, new_lock

if TYPE_CHECKING:
    from collections.abc import Generator

_lock = new_lock()
_holders: set[object] = set()
_was_enabled = False


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """Let no collection start in any thread. The last block to end allows them, as before.

    An object that loses its last reference still dies at once.
    """
    global _was_enabled  # noqa: PLW0603 - the process has one collector
    holder = object()
    try:
        with _lock:
            if not _holders:
                _was_enabled = gc.isenabled()
            _holders.add(holder)
            gc.disable()
        yield
    finally:
        _release(holder)


def _release(holder: object) -> None:
    with _lock:
        if _holders == {holder} and _was_enabled:
            gc.enable()
        _holders.discard(holder)


def _give_back() -> None:
    """Let collections start in a forked child, where the blocks of other threads never end."""
    for holder in tuple(_holders):
        _release(holder)


in_child(_give_back)


def keep_forever(*objects: object) -> None:
    """Give each object a reference that is never given up."""
    for one in objects:
        _change_references("Py_IncRef", one)


@contextlib.contextmanager
def kept_on_error(one: object) -> Generator[None]:
    """Keep an object forever, unless the block ends without an error."""
    keep_forever(one)
    yield
    _change_references("Py_DecRef", one)


def _change_references(call: str, one: object) -> None:
    import ctypes  # noqa: PLC0415 - slow to import

    getattr(ctypes.pythonapi, call)(ctypes.py_object(one))
