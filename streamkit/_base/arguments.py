"""Checks of arguments that several calls take, made at the call."""

from __future__ import annotations

import threading
from typing import Any

from streamkit._base.messages import describe

_LONGEST = threading.TIMEOUT_MAX / 2  # seconds: well below what a lock can wait for


def in_seconds(timeout: Any, what: object) -> float | None:
    """Return how long ``what`` may wait, as a float of Python's own; None is without an end.

    TypeError or ValueError unless it is None or a number of seconds from 0, of any library.
    """
    if timeout is None:
        return None
    is_number = isinstance(timeout, (int, float)) or hasattr(timeout, "__float__")
    if isinstance(timeout, bool) or not is_number:
        raise TypeError(_bad_timeout(timeout, what))
    if not timeout >= 0:  # nan is not
        raise ValueError(_bad_timeout(timeout, what))
    return float(min(timeout, _LONGEST))


def _bad_timeout(timeout: object, what: object) -> str:
    return (
        f"{describe(what)} cannot wait for {describe(timeout)}: a timeout is a number of seconds, "
        "0 or more; None waits as long as it takes."
    )


def not_callable(fn: object, stream: object, method: str) -> TypeError:
    """Return the error for what a method of a stream was given instead of a function."""
    return TypeError(
        f"{describe(stream)} cannot {method} {describe(fn)}, which is no function: give the "
        f"function and what to call it with, as in s.{method}(fn, x)."
    )
