"""The words of every refusal to wait; the error classes are in ``errors``."""

from __future__ import annotations

from typing import NoReturn

from streamkit._refusals import describe
from streamkit.errors import ForkedProcessError


def future_of_the_parent() -> ForkedProcessError:
    """Word the outcome, in a forked child, of a function that the parent calls."""
    return ForkedProcessError(
        "this future was pending when the process was forked: its function is called in the "
        "parent, and its outcome is known there only. Ask for it before the fork, or start workers "
        "with multiprocessing's 'spawn' or 'forkserver' method."
    )


def cannot_watch() -> RuntimeError:
    """Word an ``await`` or ``then`` without the thread that would wait for the queue."""
    return RuntimeError(
        "no thread can be started that waits for the queue: the interpreter is ending, or there "
        "are too many. Call sync() instead."
    )


def raise_timeout(what: object, timeout: float) -> NoReturn:
    """Raise the built-in TimeoutError, naming what is still pending and after how many seconds."""
    message = f"{describe(what)} is still busy after {timeout} s. Its work goes on."
    raise TimeoutError(message)
