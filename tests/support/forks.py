"""What is registered to be called in forked children."""

from __future__ import annotations

import contextlib
import os


@contextlib.contextmanager
def handlers_registered(monkeypatch):
    """List what is given to ``os.register_at_fork`` in the block; each call stays for ever."""
    registered, register = [], os.register_at_fork

    def note(**handlers):
        registered.append(handlers)
        register(**handlers)

    with monkeypatch.context() as patched:
        patched.setattr(os, "register_at_fork", note)
        yield registered
