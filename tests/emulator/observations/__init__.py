"""What a driver does: each function of a section observes it on raw handles."""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).parent


def source_hash(name: str) -> str:
    """Hash what decides what the sections of a file ask: that file, and the one that all share."""
    digest = hashlib.sha256()
    for stem in (name, "probe"):
        digest.update((HERE / f"{stem}.py").read_bytes() + b"\0")
    return digest.hexdigest()
