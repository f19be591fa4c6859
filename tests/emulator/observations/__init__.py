"""What a driver does: each function of a section observes it on raw handles."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).parent
RECORD = HERE.parents[1] / "recorded" / "driver.json"
"""What a real driver did."""


def write(path: Path, sections: dict[str, dict]) -> None:
    """Write a line for each section, each answer once for all to which it was given."""
    lines = []
    for name, section in sections.items():
        answers: dict[str, dict[str, list[str]]] = {}
        for asked, seen in section["observations"].items():
            start, colon, end = asked.rpartition(": ")
            answers.setdefault(start + colon, {}).setdefault(json.dumps(seen), []).append(end)
        lines.append(f"{json.dumps(name)}: {json.dumps({**section, 'observations': answers})}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path = RECORD) -> dict[str, dict]:
    """The sections of a record, each with its observations."""
    sections = json.loads(path.read_text())
    for section in sections.values():
        section["observations"] = {
            start + end: json.loads(seen)
            for start, answers in section["observations"].items()
            for seen, ends in answers.items()
            for end in ends
        }
    return sections


def source_hash(name: str) -> str:
    """Hash what decides what the sections of a file ask: that file, and the one that all share."""
    digest = hashlib.sha256()
    for stem in (name, "probe"):
        digest.update((HERE / f"{stem}.py").read_bytes() + b"\0")
    return digest.hexdigest()[:16]
