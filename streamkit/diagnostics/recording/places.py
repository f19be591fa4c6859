"""The lines of the user's code that give work, and the names that it has for objects."""

from __future__ import annotations

import inspect
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._queues import registry
from streamkit._support import refusals
from streamkit._support.frames import local_variables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType

_STANDARD = {
    "asyncio", "concurrent", "contextlib", "copy", "functools", "importlib", "logging",
    "multiprocessing", "pickle", "pprint", "runpy", "threading", "timeit", "weakref",
}  # fmt: skip
"""Modules of Python's own that call what a program gives them."""
_PACKAGES = {"streamkit", "numpy", *(row.root for row in registry.LIBRARIES)}
_OTHERS = _STANDARD | _PACKAGES
_CALLERS = 3  # frames around a line in which a name is looked for
_is_users: dict[object, bool] = {}
"""Whether a module is the user's. A cache, because each launch asks for each frame."""


class _Skipping:
    """A context that ends where an object raises, and lets what a signal's handler raises pass."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, _: object, raised: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        run = {one.f_code for one, _ in traceback.walk_tb(raised)}
        handlers = map(signal.getsignal, range(1, signal.NSIG))
        return not any(callable(one) and refusals.code_of(one) in run for one in handlers)


skipping: _Skipping = _Skipping()


class Place(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int


def users_frame() -> FrameType | None:
    """Return the innermost frame of the user's; None if there is none."""
    return users_around(sys._getframe(1))  # noqa: SLF001 - a traceback keeps more


def users_around(frame: FrameType | None, within: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's, of this frame and those around it.

    With ``within``, only frames that this code of StreamKit has called count.
    """
    while frame is not None and frame.f_code is not within:
        module = frame.f_globals.get("__name__", "")
        is_users = _is_users.get(module)
        if is_users is None:
            is_users = _is_users[module] = str(module).partition(".")[0] not in _OTHERS
        if is_users:
            return frame
        frame = frame.f_back
    return None


def files_of_libraries() -> list[str]:
    """Return how the files of StreamKit and of libraries begin.

    A library that is not imported yet is expected where pip installs it.
    """
    found = {f"{folder}/{root}{end}" for folder in sys.path if folder.endswith("-packages")
             for root in _PACKAGES for end in ("/", ".py")}  # fmt: skip
    found.add("<frozen importlib")
    named = (name for name, is_users in list(_is_users.items()) if not is_users)
    for name in (*_OTHERS, *named):
        module = sys.modules.get(str(name))
        folders = [f"{folder}/" for folder in getattr(module, "__path__", ())]
        found.update(folders or filter(None, [getattr(module, "__file__", None)]))
    return sorted(found)


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
    attributes: Any = None
    with skipping:  # some classes have a ``__dict__`` of their own
        attributes = object.__getattribute__(here.get("self"), "__dict__")
    attributes = attributes.copy() if type(attributes) is dict else {}
    return [
        *(() if is_module else reversed(frame.f_globals.items())),
        *((f"self.{name}", value) for name, value in attributes.items()),
        *reversed(here.items()),
    ]


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the nearest frames of the user's around a function, the innermost first."""
    for _ in range(_CALLERS):
        if frame is None or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        frame = users_around(frame.f_back)
        if frame is not None:
            yield frame
