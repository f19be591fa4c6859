"""Graphs that were given up, with what they hold: destroyed as soon as that is safe.

What a graph holds must outlast its last run. And much of what destroys memory is illegal in the
thread of a capture, whoever began it: torch (2.11) ends the process if a graph dies there. So
graphs wait here for the next capture, launch or end of a graph, or the next look at what was kept.
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

    from streamkit.protocols import CapturedGraph


class OwnedGraph:
    """An executable graph, and what has to live as long."""

    last_launch: Any = None
    """The event after it."""
    last_queue: int | tuple[int, int, int] | None = None
    """The id of the queue that was given the last launch."""

    def __init__(
        self, executable: CapturedGraph, library: str | None, held: list[Any], context: int
    ) -> None:
        self.executable = executable
        self.library = library  # whose streams ``launch`` takes; None for handles
        self.held = held
        self.context = context

    def close(self) -> None:
        """Destroy the graph, then let go of what it used."""
        self.executable.close()
        self.held = []


waiting: deque[OwnedGraph] = deque()
"""Those to destroy. A deque, because its append needs no lock."""


def dispose(graph: OwnedGraph) -> None:
    """Destroy a graph and what it holds, now or later; safe in a destructor."""
    waiting.append(graph)
    sweep()


def sweep(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Destroy the waiting graphs that can be destroyed by now."""
    if not waiting or is_finalizing() or active_captures.any_goes_on() or not driver.is_usable():
        return
    for _ in range(len(waiting)):
        try:
            graph = waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        stays = True
        try:
            # what can fail here is a broken context, which every other call reports
            with contextlib.suppress(Exception), driver.beside_captures():
                has_run = graph.last_launch is None or graph.last_launch.done
                # a library's calls leave its device current, and torch looks at captures there
                with driver.ensure_context(graph.context):
                    if has_run and not checks.a_library_captures_here():
                        graph.close()
                        stays = False
        finally:
            if stays:
                waiting.append(graph)
        del graph  # what it held goes here, not with the next one


keepalive.add_sweep(sweep)
