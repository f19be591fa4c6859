"""Names and numbers as a report shows them."""

from __future__ import annotations


def in_one_line(name: str) -> str:
    """Return a name, whoever gave it, with what is no printable character written out."""
    return name if name.isprintable() else repr(name)[1:-1]


def counted(count: int, what: str) -> str:
    """Return how many there are, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def times(count: int) -> str:
    """Return how often, in words."""
    return "once" if count == 1 else f"{count} times"
