"""The calls of other libraries, and the line of StreamKit that replaces each.

``names.txt`` is the table. The guide for users of other libraries lists its rows, and StreamKit's
objects answer another library's name with the line.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class OtherName(NamedTuple):
    """A row of the table."""

    section: str
    """The part of the page; "" for a name that is only guessed, because the library lacks it."""
    libraries: str
    written: str
    """The call of the other library."""
    ours: str
    """The line to write instead."""
    more: str = ""
    """Markdown that the page adds to the line."""
    answered: str = ""
    """The attributes that answer with the line, as in "stream.query package.query"."""


@functools.cache
def rows() -> list[OtherName]:
    """Return the table."""
    found: list[OtherName] = []
    section = ""
    path = __file__.rpartition(".")[0] + ".txt"
    with open(path, encoding="utf-8") as table:  # noqa: PTH123 - pathlib is slow to import
        for line in table.read().splitlines():
            if line.startswith("["):
                section = line.strip("[-]")
            elif line and not line.startswith("#"):
                found.append(OtherName(section, *map(str.strip, line.split("|"))))
    return found


@functools.cache
def answers(who: str) -> dict[str, str]:
    """Return the names that a stream, an event or the package answers, each with the line."""
    pairs = [(name.partition("."), row.ours) for row in rows() for name in row.answered.split()]
    return {name: line for (one, _, name), line in pairs if one == who}
