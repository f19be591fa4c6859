"""Graphs given up while one of their launches ran, or a capture went on: destroyed later.

What a graph holds must outlast its last run; and much of what destroys memory is illegal in the
thread of a capture. So both wait here, for the next capture, launch or end of a graph.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from streamkit import _captures, _driver, errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit._graph_parts import Parts

_waiting: deque[tuple[Any, Parts]] = deque()  # the event after the last launch; an append is atomic


def retire(mark: Any, parts: Parts) -> None:
    """Destroy a graph's parts, now or later; ``mark`` is the event after its last launch or None.

    Safe in a destructor.
    """
    _waiting.append((mark, parts))
    sweep()


def sweep(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Destroy what can be by now."""
    if not _waiting or is_finalizing() or _captures.any_goes_on() or not _driver.is_usable():
        return
    for _ in range(len(_waiting)):
        try:
            entry = _waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        stays = True
        try:
            stays = _is_running(entry[0])
            if not stays:
                with _driver._beside_captures():  # noqa: SLF001 - next door
                    entry[1].close()
        finally:
            if stays:
                _waiting.append(entry)
        del entry


def _is_running(mark: Any) -> bool:
    try:
        return mark is not None and not mark.done
    except errors.DriverError:  # nothing runs on this device any more
        return False
