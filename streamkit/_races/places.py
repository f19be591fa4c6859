"""Where the user's code gave work, and what it calls the objects."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from streamkit._queues import registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_OTHERS = {"streamkit", "numpy", *(row.root for row in registry.LIBRARIES)}


class Place(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def users_frame() -> FrameType | None:
    """Return the innermost frame outside StreamKit and the libraries; None if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback keeps more
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _OTHERS:
            return frame
        frame = frame.f_back
    return None


def place_of(frame: FrameType) -> Place:
    """Return the line that a frame is at."""
    return Place(frame.f_code.co_filename, frame.f_lineno or 0)


def variables(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield what the code of a frame can name, the nearest last."""
    here = frame.f_locals
    yield from reversed(frame.f_globals.items())
    for name, value in getattr(here.get("self"), "__dict__", {}).items():
        yield f"self.{name}", value
    yield from reversed(here.items())
