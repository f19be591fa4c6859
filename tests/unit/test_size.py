"""What each folder of the package may weigh, and the tests: ``python tests/unit/test_size.py``.

A change that needs more takes something away in the same commit, or raises one figure in a commit
of its own, whose body says what a user gets for it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

AT_MOST = {  # lines as ruff formats them
    "_support": 1_700,
    "protocols": 1_730,
    "_cuda": 1_350,
    "backends": 4_220,
    "_queues": 3_100,
    "_streams": 3_345,
    "_graphs": 2_100,
    "processes": 950,
    "diagnostics": 7_000,
    "testing": 2_205,
    "_cli": 1_100,
    "the rest": 300,
    "C": 600,
    "tests": 73_100,
}


def weighed() -> dict[str, int]:
    """The lines of Python of each folder, of C in the package, and of all code of the tests."""
    found = dict.fromkeys(AT_MOST, 0)
    for path in (ROOT / "streamkit").rglob("*.py"):
        folder, *inside = path.relative_to(ROOT / "streamkit").parts
        found[folder if inside else "the rest"] += lines(path)
    found["C"] = sum(map(lines, (ROOT / "streamkit").rglob("*.[ch]")))
    for kind in ("py", "c", "h", "toml"):
        found["tests"] += sum(map(lines, (ROOT / "tests").rglob(f"*.{kind}")))
    return found


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def test_each_folder_is_within_its_limit() -> None:
    assert {name: count for name, count in weighed().items() if count > AT_MOST[name]} == {}


if __name__ == "__main__":
    for name, count in weighed().items():
        over = "  over" if count > AT_MOST[name] else ""
        print(f"{name:12} {count:6} of {AT_MOST[name]:6}{over}")
