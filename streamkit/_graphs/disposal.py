"""Graphs given up while one of their launches ran, or a capture went on: destroyed later.

What a graph holds must outlast its last run; and much of what destroys memory is illegal in the
thread of a capture, whoever began it: torch (2.11) ends the process with a graph that dies there.
So both wait here, for the next capture, launch or end of a graph, or whatever lets go of what was
kept.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from streamkit._cuda import driver
from streamkit._graphs import checks
from streamkit._queues import active_captures, keepalive

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit._cuda.graphs import Parts

waiting: deque[tuple[Any, Parts]] = deque()
"""Each with the event after its last launch. A deque, because its append needs no lock."""


def retire(mark: Any, parts: Parts) -> None:
    """Destroy a graph's parts, now or later; ``mark`` is the event after its last launch or None.

    Safe in a destructor.
    """
    waiting.append((mark, parts))
    sweep()


def sweep(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Destroy what can be by now."""
    if not waiting or is_finalizing() or active_captures.any_goes_on() or not driver.is_usable():
        return
    for _ in range(len(waiting)):
        try:
            entry = waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        stays = True
        try:
            # what can fail here is a broken context, which every other call reports
            with contextlib.suppress(Exception), driver.beside_captures():
                has_run = entry[0] is None or entry[0].done
                # a library's calls leave its device current, and torch looks at captures there
                with driver.ensure_context(entry[1].context):
                    if has_run and not checks.a_library_captures_here():
                        entry[1].close()
                        stays = False
        finally:
            if stays:
                waiting.append(entry)
        del entry  # what it held goes here, not with the next one


keepalive.add_sweep(sweep)
