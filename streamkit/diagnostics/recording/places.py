"""The lines of the user's code that give work, and the names that it has for objects."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, NamedTuple

from streamkit._queues import registry
from streamkit._support.frames import local_variables

if TYPE_CHECKING:
    from types import CodeType, FrameType

_OTHERS = {"streamkit", "numpy", "contextlib", *(row.root for row in registry.LIBRARIES)}
_is_users: dict[object, bool] = {}
"""Whether a module is the user's. A cache, because each launch asks for each frame."""


class Place(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def users_frame(within: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame outside StreamKit and the libraries; None if there is none.

    With ``within``, only frames that this code of StreamKit has called count.
    """
    return users_around(sys._getframe(1), within)  # noqa: SLF001 - a traceback keeps more


def users_around(frame: FrameType | None, within: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's, of this frame and those around it."""
    while frame is not None and frame.f_code is not within:
        module = frame.f_globals.get("__name__", "")
        is_users = _is_users.get(module)
        if is_users is None:
            is_users = _is_users[module] = str(module).partition(".")[0] not in _OTHERS
        if is_users:
            return frame
        frame = frame.f_back
    return None


def line_of_user() -> tuple[CodeType, int] | None:
    """Return the line of the user's code that makes the present call, as callbacks note it."""
    frame = users_frame()
    return None if frame is None else (frame.f_code, frame.f_lineno or 0)


def placed(line: tuple[CodeType, int] | None) -> Place | None:
    """Return the line that a callback noted."""
    return None if line is None else Place(line[0].co_filename, line[1])


def place_of(frame: FrameType | None) -> Place | None:
    """Return the present line of a frame."""
    return frame and Place(frame.f_code.co_filename, frame.f_lineno or 0)


def variables(frame: FrameType | None) -> list[tuple[str, object]]:
    """Return the objects that the code of a frame has names for, the nearest last."""
    if frame is None:
        return []
    here = local_variables(frame)
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    is_module = not is_function and frame.f_locals is frame.f_globals
    attributes = getattr(here.get("self"), "__dict__", {})
    return [
        *(() if is_module else reversed(frame.f_globals.items())),
        *((f"self.{name}", value) for name, value in attributes.items()),
        *reversed(here.items()),
    ]
