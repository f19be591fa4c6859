"""Say where a run of a tier is less than ``expected.toml`` asks for.

python tests/expected.py STEP LOG    exit 1, and a line for each fault

A run in which tests skip themselves would pass otherwise. ``tests/conftest.py`` prints what this
reads: the tally of each tier, and each skip with its reason.
"""

from __future__ import annotations

import re
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).with_suffix(".toml")


def faults(step: str, log: str, expected: dict[str, Any]) -> list[str]:
    """What is wrong with the run of a step of ``.ci/run`` that has printed ``log``."""
    tallies = re.findall(r"^tier (\w+): (\d+) passed, \d+ failed, \d+ skipped$", log, re.MULTILINE)
    if not tallies:
        return [f"{step}: no test ran"]
    if step not in expected["passed"]:
        return [f"{step}: {EXPECTED.name} does not say how many tests have to pass"]
    found = []
    floors = expected["passed"][step]
    if sorted(tier for tier, _ in tallies) != sorted(floors):
        ran = ", ".join(tier for tier, _ in tallies)
        found.append(f"{step}: {ran} ran, and one run each of {', '.join(floors)} has to")
    for tier, passed in tallies:
        if int(passed) < (floor := floors.get(tier, 0)):
            found.append(f"{step}: {passed} tests of {tier} passed, and at least {floor} have to")
    for test, reason in re.findall(r"^skipped \d+ (\S+): (.*)$", log, re.MULTILINE):
        if not any(
            fnmatchcase(step, allowed.get("step", "*"))
            and fnmatchcase(test, allowed["test"])
            and fnmatchcase(reason, allowed["reason"])
            for allowed in expected["skip"]
        ):
            found.append(f"{step}: {test} may not be skipped: {reason}")
    return found


def main(step: str, log: str) -> int:
    found = faults(
        step,
        Path(log).read_text(encoding="utf-8", errors="replace"),
        tomllib.loads(EXPECTED.read_text(encoding="utf-8")),
    )
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
