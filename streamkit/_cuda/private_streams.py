"""Streams that only StreamKit uses: no library sees them, no audit shows them, none ends."""

from __future__ import annotations

from streamkit._cuda import driver

known: list[tuple[int, int]] = []
"""Their contexts and handles."""


def create(device: int, *, nonblocking: bool, priority: int) -> int:
    """Create a stream for StreamKit alone, which is never destroyed."""
    stream = driver.create_stream(device, nonblocking=nonblocking, priority=priority)
    known.append((driver.primary_context(device), stream))
    return stream
