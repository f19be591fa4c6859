"""What is made for a ``with`` statement, and says so if it is used in another way."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

P = ParamSpec("P")
T = TypeVar("T")


def warn_unentered(what: str, statement: str) -> None:
    """Warn of what is dropped without having been entered, from its ``__del__``."""
    text = f"{what} was never entered, and did nothing: write 'with {statement}:'."
    warnings.warn(text, RuntimeWarning, stacklevel=3)  # often the line that made and dropped it


class Block(contextlib._GeneratorContextManager[T]):  # noqa: SLF001 - one more frame would be a place for an interrupt
    """What a generator function does around a block."""

    statement: str
    """What follows ``with``."""

    def __call__(self, _: object) -> NoReturn:
        """Raise TypeError: as a decorator it would throw away what ``as`` gives."""
        raise TypeError(
            f"{self.statement.partition(' as ')[0]} is not a decorator, because what it gives "
            f"would be lost: write 'with {self.statement}:' inside the function."
        )

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "args") and not is_finalizing():  # which entering it deletes
            warn_unentered(self.statement.partition(" as ")[0], self.statement)


def block(
    statement: str,
) -> Callable[[Callable[P, Generator[T]]], Callable[P, Block[T]]]:
    """Return a decorator as ``contextlib.contextmanager``, for what follows this ``with``."""

    def decorate(function: Callable[P, Generator[T]]) -> Callable[P, Block[T]]:
        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
            made = Block(function, args, kwargs)
            made.statement = statement
            return made

        return make

    return decorate
