"""Checks of arguments that several calls take, made at the call."""

from __future__ import annotations

from streamkit._base.messages import describe


def check_timeout(timeout: object, what: object) -> None:
    """Raise TypeError or ValueError unless ``what`` can wait that long: None or seconds from 0."""
    if timeout is None:
        return
    is_number = isinstance(timeout, (int, float)) or hasattr(timeout, "__float__")
    if isinstance(timeout, bool) or not is_number:
        raise TypeError(_bad_timeout(timeout, what))
    if not timeout >= 0:  # type: ignore[operator]  # a number of any library; and nan is not
        raise ValueError(_bad_timeout(timeout, what))


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
