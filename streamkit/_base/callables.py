"""Functions whose call runs nothing yet: those of generators and of ``async``."""

from __future__ import annotations

import functools
from types import CoroutineType, MethodType
from typing import Any, NamedTuple

from streamkit._base.messages import describe


class Kind(NamedTuple):
    """A kind of such functions."""

    name: str
    pause: str
    """At which words of its body the caller goes on."""


# by the flag of their code, as ``inspect`` has them, which is slow to import
_KINDS = {
    0x80: Kind("an async function", "await"),
    0x200: Kind("an async generator", "yield or await"),
    0x20: Kind("a generator", "yield"),
}
_ANY = 0x80 | 0x200 | 0x20


def kind_of(fn: Any) -> Kind | None:
    """Return of which kind a callable is, also a partial one or an object; None if of none."""
    fn = _inner(fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        code = getattr(_inner(type(fn).__call__), "__code__", None)
    flags = getattr(code, "co_flags", 0)
    if not flags & _ANY:
        return None
    return next(kind for flag, kind in _KINDS.items() if flags & flag)


def _inner(fn: Any) -> Any:
    """Return the function of a method or of a ``functools.partial``."""
    while isinstance(fn, (functools.partial, MethodType)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return fn


def check(fn: object, stream: object, method: str) -> None:
    """Raise TypeError for what a method of a stream cannot call, or would call in vain."""
    if not callable(fn):
        raise TypeError(
            f"{method} of {describe(stream)} needs a function, and was given {describe(fn)}: write "
            f"s.{method}(fn, x), with the function first and then what to call it with."
        )
    kind = kind_of(fn)
    if kind is not None:
        raise TypeError(
            f"{method} of {describe(stream)} was given {name_of(fn)}, which is {kind.name}: a "
            "call of it runs nothing of its body. Give a function that does the work before it "
            "returns; in async code, await the stream: 'await s'."
        )


def check_result(result: object, fn: object) -> None:
    """Raise TypeError for the coroutine that a submitted function has returned."""
    if type(result) is CoroutineType:
        result.close()  # else it would warn that it was not awaited
        raise TypeError(
            f"{name_of(fn)} returned a coroutine, {result.__qualname__}, which will not be "
            "awaited, because submit drops what a function returns. Let the function do the work "
            "before it returns; in async code, await the stream: 'await s'."
        )


def name_of(fn: object) -> str:
    """Return what a message calls a function."""
    return getattr(_inner(fn), "__qualname__", None) or describe(fn)
