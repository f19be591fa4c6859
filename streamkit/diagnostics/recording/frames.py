"""The lines that make calls, which the recorder in C reads from Python's own frames.

It does so without the GIL, so it has to know where Python keeps them. Only a thread itself changes
its frames, and it changes none while it is in a call of C.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
import traceback
from typing import TYPE_CHECKING, Any

from streamkit.diagnostics.recording.places import Place, place_of

if TYPE_CHECKING:
    from types import FrameType

# The offsets of CPython with 64 bits, in the order of ``recorder_python``.
_LAYOUTS = {
    (3, 11): (56, 8, 32, 56, 48, 69, 184, 168, 112, 136, 72, 32, 48, 72, 32),
    (3, 12): (56, 0, 0, 56, 8, 70, 192, 176, 112, 136, 68, 32, 40, 56, 32),
    (3, 13): (72, -1, 0, 56, 8, 70, 200, 184, 112, 136, 68, 32, 40, 56, 32),
    (3, 14): (72, -1, 0, 56, 8, 74, 208, 192, 112, 136, 68, 32, 40, 56, 32),
    (3, 15): (72, -1, 0, 56, 8, 74, 208, 192, 112, 136, 68, 32, 40, 56, 32),
}
_PLACE = struct.Struct("<16xqQIIQI4xi")  # which unit of a code; its file, lines and first line
# By the bytes of a character; of a text that is not exactly a str the recorder reads none.
_ENCODINGS = {0: "ascii", 1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_MOST = 16  # frames that are compared


def layout() -> tuple[int, ...] | None:
    """Return where this Python keeps its frames; None if that is not known."""
    is_known = (
        sys.implementation.name == "cpython"
        and sys.version_info.releaselevel == "final"
        and not sys.abiflags  # "d" of a debug build, "t" of one without the GIL
    )
    return _LAYOUTS.get(sys.version_info[:2]) if is_known else None


def place_at(address: int) -> Place | None:
    """Return the line that the recorder has noted at an address; None for 0."""
    if not address:
        return None
    at, text, size, width, table, length, first = _PLACE.unpack(
        ctypes.string_at(address, _PLACE.size)
    )
    file = ctypes.string_at(text, size).decode(_ENCODINGS[width], errors="surrogatepass")
    lines = place_at.__code__.replace(
        co_linetable=ctypes.string_at(table, length), co_firstlineno=first
    ).co_lines()
    line = next((line for start, end, line in lines if start <= 2 * at < end), None)
    return Place(file, line or 0)


def are_seen(recorder: Any) -> bool:
    """Whether the recorder sees the frames that Python shows."""
    found = (ctypes.c_void_p * _MOST)()
    count, wanted = recorder.recorder_frames(found, _MOST), shown(sys._getframe())  # noqa: SLF001
    return [place_at(one or 0) for one in found[:count]] == wanted


def shown(frame: FrameType) -> list[Place | None]:
    """Return the lines of a frame and of those around it, as Python shows them."""
    around = itertools.islice(traceback.walk_stack(frame), _MOST)
    return [place_of(one) for one, _ in around]
