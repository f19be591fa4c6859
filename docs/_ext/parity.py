"""What each stream class of other libraries is in StreamKit: the tables of ``docs/parity``.

A row says what one member of another library's class is in StreamKit, or why it is not offered, and
names the tests that show it. A test compares the rows with the real classes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parents[1] / "parity"
ABSENT = "unit/tools/test_parity.py::test_what_is_not_offered_is_not_there"


@dataclass(frozen=True)
class Row:
    """One member of a class, or several that are one thing."""

    members: tuple[str, ...]
    written: str  # as one would write it in a program
    here: str | None  # what it is in StreamKit
    because: str | None  # or why it is not offered
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Parity:
    """The table of one class."""

    of: str
    inherits: str | None
    rows: tuple[Row, ...]


def read(name: str) -> Parity:
    """Return a table from its file; KeyError for a row that says nothing."""
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    rows = []
    for row in data["row"]:
        here, because = row.pop("here", None), row.pop("not_offered", None)
        if (here is None) == (because is None):
            raise KeyError(f"{name}: {row} needs either `here` or `not_offered`")
        tests = row.pop("tests", [ABSENT]) if because else row.pop("tests")
        rows.append(Row(tuple(row.pop("members")), row.pop("written"), here, because, tuple(tests)))
        if row:
            raise KeyError(f"{name}: a row has no {', '.join(row)}")
    return Parity(data["class"], data.get("inherits"), tuple(rows))


def classes() -> list[str]:
    """Return the names of the tables."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "consumers")


def shown_by(tests: Iterable[str]) -> str:
    """Return the tests' names, each with a place where it may be broken."""
    return ", ".join("`{}` `{}`".format(*test.split("::")) for test in tests)


def as_table(parity: Parity) -> str:
    """Return the table in Markdown."""
    lines = [f"| `{parity.of}` | in StreamKit | shown by |", "|---|---|---|"]
    for row in parity.rows:
        what = row.here or f"not offered: {row.because}"
        lines.append(f"| `{row.written}` | {what} | {shown_by(row.tests)} |")
    return "\n".join(lines)


# -- what others accept -----------------------------------------------------------------------


def consumers() -> list[dict[str, Any]]:
    """Return the rows of ``consumers.toml``: who, what they accept and ignore, and evidence."""
    data = tomllib.loads((FOLDER / "consumers.toml").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = data["consumer"]
    return rows


def consumers_table() -> str:
    """Return them in Markdown; which of them were not run is told beside the name."""
    lines = [
        "| library | accepts as a stream | hand it | what works elsewhere |",
        "|---|---|---|---|",
    ]
    for row in consumers():
        name = row["name"] if "tests" in row else f"{row['name']} (read)"
        columns = name, row["accepts"], row["give"], row.get("ignores", "nothing")
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def consumers_evidence() -> str:
    """Return in Markdown what shows each row."""
    lines = []
    for row in consumers():
        shown = [shown_by(row["tests"])] if "tests" in row else []
        if "read" in row:
            shown.append(f"read in {row['read']}; not run here")
        lines.append(f"- {row['name']}: {'; '.join(shown)}")
    return "\n".join(lines)
