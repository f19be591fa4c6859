"""The lines that make calls, which the recorder in C reads from Python's own frames.

It does so without the GIL, so it has to know where Python keeps them. Only a thread itself changes
its frames, and it changes none while it is in a call of C.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit.diagnostics.recording.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# The offsets of CPython with 64 bits, in the order of ``recorder_python``.
_LAYOUTS = {
    (3, 11): (56, 8, 32, 56, 48, 69, 184, 168, 112, 128, 136, 72, 32, 48, 72, 32),
    (3, 12): (56, 0, 0, 56, 8, 70, 192, 176, 112, 128, 136, 68, 32, 40, 56, 32),
    (3, 13): (72, -1, 0, 56, 8, 70, 200, 184, 112, 128, 136, 68, 32, 40, 56, 32),
}
_MOST = 16  # frames that are compared
_ENCODINGS = {0: "latin-1", 1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # by bytes of a character


class Line(NamedTuple):
    """A line that made a call."""

    place: Place
    function: tuple[str, int]
    """The file and the first line of the function around it."""


def layout() -> tuple[int, ...] | None:
    """Return where this Python keeps its frames; None if that is not known."""
    is_known = (
        sys.implementation.name == "cpython"
        and sys.version_info.releaselevel == "final"
        and sys.maxsize == 2**63 - 1
        and sys.byteorder == "little"
        and not hasattr(sys, "gettotalrefcount")  # a debug build
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
    )
    return _LAYOUTS.get(sys.version_info[:2]) if is_known else None


class _Text(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
    )

    def raw(self) -> bytes:
        return ctypes.string_at(self.data, self.bytes)

    def __str__(self) -> str:
        return self.raw().decode(_ENCODINGS[self.width], errors="surrogatepass")


class _Code(ctypes.Structure):
    _fields_ = (
        ("next", ctypes.c_void_p),
        ("address", ctypes.c_void_p),
        ("file", _Text),
        ("name", _Text),
        ("lines", _Text),
        ("first_line", ctypes.c_int32),
        ("is_library", ctypes.c_int32),
    )


class _Place(ctypes.Structure):
    _fields_ = (("next", ctypes.c_void_p), ("code", ctypes.c_void_p), ("at", ctypes.c_int64))


def line_at(address: int) -> Line | None:
    """Return the line that the recorder has noted at an address; None for 0."""
    if not address:
        return None
    place = _Place.from_address(address)
    code = _Code.from_address(place.code)
    file, first, at = str(code.file), code.first_line, 2 * place.at
    lines = _any_code().replace(co_linetable=code.lines.raw(), co_firstlineno=first).co_lines()
    line = next((line for start, end, line in lines if start <= at < end), None)
    return Line(Place(file, line or 0), (file, first))


@functools.cache
def _any_code() -> CodeType:
    return line_at.__code__


def are_seen(library: Any) -> bool:
    """Whether the recorder sees the frames that Python shows, with the GIL and without it."""
    shown, seen = [], []
    for kind in (ctypes.CDLL, ctypes.PyDLL):
        find = functools.partial(_seen, kind(library._name).recorder_frames)  # noqa: SLF001 - its file
        for call in (find, lambda find=find: find(), lambda find=find: [find() for _ in "a"][0],
                     lambda find=find: next(find() for _ in "a")):  # fmt: skip
            one, other = call()
            shown.append(one)
            seen.append(other)
    return shown == seen


def _seen(find: Callable[..., int]) -> tuple[list[Any], list[Any]]:
    found = (ctypes.c_void_p * _MOST)()
    # fmt: off
    count, shown = find(found, _MOST), _shown(sys._getframe())  # noqa: SLF001 - a traceback keeps more
    # fmt: on
    return shown, [line_at(one or 0) for one in found[:count]]


def _shown(frame: FrameType | None) -> list[Line]:
    lines: list[Line] = []
    while frame is not None and len(lines) < _MOST:
        file = frame.f_code.co_filename
        place = Place(file, frame.f_lineno or 0)
        lines.append(Line(place, (file, frame.f_code.co_firstlineno)))
        frame = frame.f_back
    return lines
