"""The end of a program: what it submitted runs before, as with the executors of the library.

Ctrl-C ends the wait, and a program that a Ctrl-C ends waits for nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from typing import TYPE_CHECKING

from streamkit._base import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        uncollected.report(error, "work that was dropped")


@atexit.register
def _end() -> None:
    try:
        _finish()  # what other threads submitted, which have ended by now
    finally:
        for drop in drops:
            drop()
        uncollected.report_all()


with contextlib.suppress(RuntimeError):  # this is imported at the end
    # before other threads are joined and the exit functions of libraries are called, as executors
    threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001 - no public one
