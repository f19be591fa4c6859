"""Functions that StreamKit calls later: their errors, and what is left at a program's end."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType


class Submitted:
    """What was submitted, and where: its text says both. It keeps no frame alive."""

    __slots__ = ("_at", "_code", "_name")

    def __init__(self, fn: Any, frame: FrameType | None, prefix: str = "") -> None:
        """``frame`` is the caller's, if Python code called; ``prefix`` comes before the name."""
        name = getattr(fn, "__qualname__", None)
        if name is None:
            fn = getattr(fn, "func", fn)  # of a functools.partial
            name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
        self._name = prefix + name
        self._code = None if frame is None else frame.f_code
        self._at = 0 if frame is None else frame.f_lasti  # the line is slow to find

    def __str__(self) -> str:
        return f"{self._name}, submitted {self._where()}"

    def source(self, taker: str) -> str:
        """Say that it raised an error, and where ``taker`` was given it."""
        return f"raised by {self._name}, which {taker} was given {self._where()}"

    def _where(self) -> str:
        if self._code is None:
            return "outside of Python"
        places = itertools.islice(self._code.co_positions(), self._at // 2, None)
        return f'in "{self._code.co_filename}", line {next(places)[0]}'


def note_source(error: BaseException, text: str) -> None:
    """Add to an error where the function that raised it was submitted, once for each place."""
    with contextlib.suppress(Exception):  # a class of errors can forbid new attributes
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)


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
            report(self.tell(), f"an error that no call waited for, of {self._what}")

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.report()


_failures: weakref.WeakSet[Failure] = weakref.WeakSet()


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


# -- the end of a program --------------------------------------------------------------------------

# What the program submitted runs before it, as with the executors of the standard library. Ctrl-C
# ends the wait, and a program that a Ctrl-C ends waits for nothing.

PATIENCE = 1.0
"""Seconds that the end waits for what another thread holds, and may never let go."""

_SHOWN = 4  # functions in a report

finishes: list[Callable[[], bool]] = []
"""Each runs what there is, in the main thread, and tells whether there was any."""
drops: list[Callable[[], object]] = []
"""Each reports what can run no more, when all is over."""
_is_interrupted = False


def _finish() -> None:
    global _is_interrupted  # noqa: PLW0603 - one interpreter
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        _is_interrupted = True  # it was not caught
    try:
        while not _is_interrupted and sum(finish() for finish in finishes):
            pass  # one may have given work to another
    except BaseException:
        _is_interrupted = True
        raise


def report_dropped(functions: Sequence[object]) -> None:
    """Report functions that the program ended without, by what tells where each was submitted."""
    if functions:
        shown = "; ".join(str(one) for one in functions[:_SHOWN])
        rest = len(functions) - _SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        error = RuntimeError(f"the program ended before this had run: {shown}{more}")
        report(error, "work that was dropped")


@atexit.register
def _end() -> None:
    try:
        _finish()  # what other threads submitted, which have ended by now
    finally:
        for drop in drops:
            drop()
        for failure in list(_failures):
            failure.report()


with contextlib.suppress(RuntimeError):  # this is imported at the end
    # before other threads are joined and the exit functions of libraries are called, as executors
    threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001 - no public one
