"""Errors of functions that StreamKit calls later: someone gets each of them, or it is reported."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Submitted:
    """What was submitted, and where: its text tells both. It keeps no frame alive."""

    __slots__ = ("_at", "_code", "_name")

    def __init__(self, fn: Any, frame: FrameType | None) -> None:
        """``frame`` is the caller's, if Python code called."""
        name = getattr(fn, "__qualname__", None)
        if name is None:
            fn = getattr(fn, "func", fn)  # of a functools.partial
            name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
        self._name = name
        self._code = None if frame is None else frame.f_code
        self._at = 0 if frame is None else frame.f_lasti  # the line is slow to find

    def __str__(self) -> str:
        where = "outside of Python"
        if self._code is not None:
            places = itertools.islice(self._code.co_positions(), self._at // 2, None)
            where = f'in "{self._code.co_filename}", line {next(places)[0]}'
        return f"{self._name}, submitted {where}"


class Failure:
    """An error for whoever waits for the function; reported once no one is left who could."""

    __slots__ = ("__weakref__", "_process", "_trace", "_what", "error", "is_told")

    def __init__(self, error: BaseException, what: object, *, is_told: bool = False) -> None:
        """Note an error; the text of ``what`` failed is part of a report."""
        self.is_told = True  # while it is made
        self._trace = error.__traceback__
        self._what = what
        self._process = os.getpid()  # a forked child reports its own
        self.error = error
        self.is_told = is_told
        _failures.add(self)

    def tell(self) -> BaseException:
        """Return the error as it was raised: each ``raise`` adds to the traceback it finds."""
        self.is_told = True
        return self.error.with_traceback(self._trace)

    def report(self) -> None:
        """Give the error to ``sys.unraisablehook``, unless ``tell`` has given it to someone."""
        if not self.is_told and self._process == os.getpid():
            report(self.tell(), f"the error, which nobody waited for, of {self._what}")

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.report()


_failures: weakref.WeakSet[Failure] = weakref.WeakSet()


def report_all() -> None:
    """Report each error that no one has got, at the end of the interpreter."""
    for failure in list(_failures):
        failure.report()


class _Raise:
    """A callback of a weak reference: the interpreter reports what it raises, and its ``repr``."""

    def __init__(self, error: BaseException, text: str) -> None:
        self._error: BaseException | None = error
        self._text = text

    def __call__(self, _: object) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its frames hold this one

    def __repr__(self) -> str:
        return self._text


def report(error: BaseException, text: str) -> None:
    """Give an error to ``sys.unraisablehook``, as that of the object with this text."""
    target: set[object] = set()
    reference = weakref.ref(target, _Raise(error, text))
    del target
    del reference, error
