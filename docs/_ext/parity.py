"""What other libraries' streams, calls and arguments are in StreamKit.

``docs/parity`` has a table for each stream class. A row says what one member is in StreamKit, or
why it is not offered, and names the tests that show it. A test compares the rows with the real
classes. The porting page is made from the rows from which our objects answer other names.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit.backends import names

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


# -- the porting page -------------------------------------------------------------------------

# What is written with one of these shows itself whose it is; a method does not.
_SHOWS_ITS_LIBRARY = re.compile(r"\b(torch|cupy|wp|tvm_ffi)\.")
_OWN_NAMES = re.compile(r"^(?:s|e|g|c|start|tensor|device|kernel)\.")  # which a reader chooses


def porting() -> str:
    """Return the table in Markdown: by section, what is written today and what is written here."""
    rows: dict[str, dict[str, dict[str, str]]] = {}
    for row in names.rows():
        if row.section:
            gap = " " if row.more[:1].isalpha() else ""
            here = f"`{row.ours}`{gap}{row.more}"
            rows.setdefault(row.section, {}).setdefault(here, {})[row.written] = row.libraries
    lines = ["| what you write today | StreamKit |", "|---|---|"]
    for section, found in rows.items():
        lines.append(f"| **{section}** | |")
        lines += [f"| {_today(today)} | {here} |" for here, today in found.items()]
    return "\n".join(lines)


def calls() -> list[str]:
    """Return the calls and members that stand in the first column, for the index."""
    written = " ".join(row.written for row in names.rows() if row.section)
    return sorted({_OWN_NAMES.sub("", name) for name in re.findall(r"\w+(?:\.\w+)+", written)})


def _today(written: dict[str, str]) -> str:
    return ", ".join(
        _code(line) + ("" if _SHOWS_ITS_LIBRARY.search(line) else f" ({libraries})")
        for line, libraries in written.items()
    )


def _code(line: str) -> str:
    return line if "`" in line else f"`{line}`"
