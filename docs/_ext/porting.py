"""The table of the porting page, made from the rows that our objects answer names with."""

from __future__ import annotations

import re

from streamkit._queues import registry

# What is written with one of these shows itself whose it is; a method does not.
_SHOWS_ITS_LIBRARY = re.compile(r"\b(torch|cupy|wp|tvm_ffi)\.")


def table() -> str:
    """Return the table in Markdown: by section, what is written today and what is written here."""
    rows: dict[str, dict[str, dict[str, list[str]]]] = {}
    for library in registry.LIBRARIES:
        for row in library.names:
            if row.section:
                here = f"`{row.ours}`{row.more}"
                today = rows.setdefault(row.section, {}).setdefault(here, {})
                today.setdefault(row.written, []).append(library.label)
    lines = ["| what you write today | StreamKit |", "|---|---|"]
    for section, found in rows.items():
        lines.append(f"| **{section}** | |")
        lines += [f"| {_today(today)} | {here} |" for here, today in found.items()]
    return "\n".join(lines)


def _today(written: dict[str, list[str]]) -> str:
    return ", ".join(
        _code(line) + ("" if _SHOWS_ITS_LIBRARY.search(line) else f" ({', '.join(labels)})")
        for line, labels in written.items()
    )


def _code(line: str) -> str:
    return line if "`" in line else f"`{line}`"
