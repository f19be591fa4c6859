"""Text in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO


def show(text: str, stream: TextIO | None = None) -> None:
    """Print a text, by default to stdout, with characters that it cannot encode escaped."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(writable(text, encoding), file=stream)


def writable(text: str, encoding: str = "utf-8") -> str:
    """Return a text in which characters that the encoding lacks are escaped."""
    return text.encode(encoding, "backslashreplace").decode(encoding)
