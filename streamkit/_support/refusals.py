"""Refusals of code that would do nothing: blocks never entered, functions of generators."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from types import CoroutineType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from streamkit._support.messages import describe, in_one_line
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

P = ParamSpec("P")
T = TypeVar("T")


def warn_unentered(what: str, statement: str) -> None:
    """Warn of a block that was never entered; called by the block's ``__del__``."""
    text = f"{what} was never entered, and did nothing: write 'with {statement}:'."
    warnings.warn(text, RuntimeWarning, stacklevel=3)  # often the line that made and dropped it


class Block(contextlib._GeneratorContextManager[T]):  # noqa: SLF001 - it has no public name
    """A context of a generator function, which warns if it is never entered."""

    statement: str
    """The text that follows ``with``."""

    def __call__(self, _: object) -> NoReturn:
        """Raise TypeError, because a decorator would lose the object that ``as`` gives."""
        raise TypeError(
            f"{self.statement.partition(' as ')[0]} is not a decorator, because what it gives "
            f"would be lost: write 'with {self.statement}:' inside the function."
        )

    def __enter__(self) -> T:
        if not hasattr(self, "args"):  # entering the block deletes ``args``
            what = self.statement.partition(" as ")[0]
            raise ScopeError(
                f"this object of {what} was entered before, and serves one block: write "
                f"'with {self.statement}:' for each."
            )
        return super().__enter__()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "args") and not is_finalizing():
            warn_unentered(self.statement.partition(" as ")[0], self.statement)


def block(
    statement: str,
) -> Callable[[Callable[P, Generator[T]]], Callable[P, Block[T]]]:
    """Return a decorator like ``contextlib.contextmanager``; ``statement`` follows ``with``."""

    def decorate(function: Callable[P, Generator[T]]) -> Callable[P, Block[T]]:
        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
            made = Block(function, args, kwargs)
            made.statement = statement
            return made

        return make

    return decorate


# -- functions whose call runs nothing yet: those of generators and of ``async`` ----------------


class Kind(NamedTuple):
    """A kind of functions whose call runs nothing yet."""

    name: str
    pause: str
    """The words of its body at which the caller goes on."""


# by the flag in ``co_flags``; ``inspect``, which names these flags, is slow to import
_KINDS = {
    0x80: Kind("an async function", "await"),
    0x200: Kind("an async generator", "yield or await"),
    0x20: Kind("a generator", "yield"),
}
_ANY = 0x80 | 0x200 | 0x20


def kind_of(fn: Any) -> Kind | None:
    """Return the kind of a function, a partial one or a callable object; None if it has none."""
    flags = getattr(code_of(fn), "co_flags", 0)
    return next(kind for flag, kind in _KINDS.items() if flags & flag) if flags & _ANY else None


def code_of(fn: Any) -> Any:
    """Return the code of a function, a partial one or a callable object; None if it is C's."""
    fn = _inner(fn)
    return getattr(fn, "__code__", None) or getattr(_inner(type(fn).__call__), "__code__", None)


def _inner(fn: Any) -> Any:
    """Return the function of a method or of a ``functools.partial``."""
    while isinstance(fn, (functools.partial, MethodType)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return fn


def check(fn: object, stream: object, method: str) -> None:
    """Raise TypeError for an object that a method cannot call, or would call in vain."""
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


def check_captured(fn: object) -> None:
    """Raise TypeError for an object that ``graphed`` cannot call, or would call in vain."""
    if not callable(fn):
        raise TypeError(
            f"graphed needs a function, and was given {describe(fn)}: write '@streamkit.graphed' "
            "above a function."
        )
    kind = kind_of(fn)
    if kind is not None:
        raise TypeError(
            f"graphed cannot capture {name_of(fn)}, which is {kind.name}, because its work comes "
            "after the call that a graph would hold. Write the GPU work as a plain function under "
            f"'@streamkit.graphed', and call that from {name_of(fn)}."
        )


def check_result(result: object, fn: object) -> None:
    """Raise TypeError for the coroutine that a submitted function has returned."""
    if type(result) is CoroutineType:
        result.close()  # else the coroutine would warn that it was not awaited
        raise TypeError(
            f"{name_of(fn)} returned a coroutine, {name_of(result)}, which will not be "
            "awaited, because submit drops what a function returns. Let the function do the work "
            "before it returns; in async code, await the stream: 'await s'."
        )


def name_of(fn: object) -> str:
    """Return a function's name in messages."""
    return in_one_line(getattr(_inner(fn), "__qualname__", None) or describe(fn))
