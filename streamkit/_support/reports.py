"""Errors of functions that StreamKit calls later, and the functions left at a program's end."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from streamkit._support.messages import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType


class Submitted:
    """A submitted function and the place of its submission, as text. Keeps no frame alive."""

    __slots__ = ("_at", "_code", "_name")

    def __init__(self, fn: Any, frame: FrameType | None, prefix: str = "") -> None:
        """``frame`` is the caller's, if Python code called; ``prefix`` comes before the name."""
        name = getattr(fn, "__qualname__", None)
        if name is None:
            fn = getattr(fn, "func", fn)  # of a functools.partial
            name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
        self._name = in_one_line(prefix + name)
        self._code = None if frame is None else frame.f_code
        self._at = 0 if frame is None else frame.f_lasti  # the line is slow to find

    def __str__(self) -> str:
        return f"{self._name}, submitted {self._where()}"

    def source(self, taker: str) -> str:
        """Say that the function raised an error, and where it was given to ``taker``."""
        return f"raised by {self._name}, which {taker} was given {self._where()}"

    def _where(self) -> str:
        if self._code is None:
            return "outside of Python"
        places = itertools.islice(self._code.co_positions(), self._at // 2, None)
        return f'in "{in_one_line(self._code.co_filename)}", line {next(places)[0]}'


def note_source(error: BaseException, text: str) -> None:
    """Add to an error where the function that raised it was submitted, once for each place."""
    with contextlib.suppress(Exception):  # a class of errors can forbid new attributes
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)


class Failure:
    """An error for whoever waits for a function; reported when nobody can wait for it any more."""

    __slots__ = ("__weakref__", "_process", "_trace", "_what", "error", "is_told")

    def __init__(self, error: BaseException, what: object, *, is_told: bool = False) -> None:
        """Note an error; a report names the work that failed by the text of ``what``."""
        self.is_told = True  # until all attributes are set
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
    """A callback of a weak reference, whose error and ``repr`` the interpreter reports."""

    def __init__(self, error: BaseException, text: str) -> None:
        self._error: BaseException | None = error
        self._text = text

    def __call__(self, _: object) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame

    def __repr__(self) -> str:
        return self._text


def report(error: BaseException, text: str) -> None:
    """Give an error to ``sys.unraisablehook``, as the error of an object with this text."""
    target: set[object] = set()
    reference = weakref.ref(target, _Raise(error, text))
    del target
    del reference, error


# -- the end of a program --------------------------------------------------------------------------

# Submitted functions still run before the program ends, as with the standard library's executors.
# Ctrl-C ends the wait, and a program that a Ctrl-C ends waits for nothing.

PATIENCE = 1.0
"""Seconds that the end waits for an object that another thread holds, perhaps for ever."""

_SHOWN = 4  # functions in a report

finishes: list[Callable[[], bool]] = []
"""Each runs the functions left, in the main thread, and tells whether there were any."""
drops: list[Callable[[], object]] = []
"""Each reports the functions that can run no more, when all is over."""
_is_interrupted = False


def _finish() -> None:
    global _is_interrupted  # noqa: PLW0603 - one interpreter
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        _is_interrupted = True  # the program did not catch the interrupt
    try:
        while not _is_interrupted and sum(finish() for finish in finishes):
            pass  # a function may have submitted another
    except BaseException:
        _is_interrupted = True
        raise


def report_dropped(functions: Sequence[object]) -> None:
    """Report functions that the program's end dropped, by their ``Submitted`` objects."""
    if functions:
        shown = "; ".join(str(one) for one in functions[:_SHOWN])
        rest = len(functions) - _SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        error = RuntimeError(f"the program ended before this had run: {shown}{more}")
        report(error, "work that was dropped")


@atexit.register
def _end() -> None:
    try:
        _finish()  # functions submitted by other threads, which have ended by now
    finally:
        for drop in drops:
            drop()
        for failure in list(_failures):
            failure.report()


with contextlib.suppress(RuntimeError):  # the program imports this module at its end
    # before other threads are joined and the exit functions of libraries are called, as executors
    threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001 - no public one
