"""What a driver does: each function of a section observes it on raw handles."""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).parent


def source_hash():
    """Hash the names and bytes of all that decides what is asked of a driver."""
    digest = hashlib.sha256()
    for path in (HERE.parent / "differential.py", *sorted(HERE.glob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
