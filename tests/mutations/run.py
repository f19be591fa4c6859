"""Plant the faults of listed.toml, one at a time: the tests that it names have to catch each.

    python tests/mutations/run.py [NAME ...] [--jobs N]

Each is tried in a temporary copy of the tree, never in the checkout. The tests have to pass without
the fault.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from mutations import copies, listed  # noqa: E402 - found through the line above

CAUGHT, SURVIVED, BROKEN, HUNG = "caught", "survived", "broken", "hung"


@dataclass(frozen=True)
class Outcome:
    """What became of one fault, or of the tests without one."""

    name: str
    result: str
    seconds: float = 0
    detail: str = ""


def attempt(tree: Path, known: listed.Definitions, fault: listed.Listed) -> Outcome:
    """Try one fault in the copy, and take it out again."""
    begun = time.monotonic()
    try:
        file, changed = known.plant(fault)
    except listed.DoesNotApplyError as error:
        return Outcome(fault.name, "does not apply", 0, str(error))
    source = (tree / file).read_text()
    try:
        copies.write(tree / file, changed)
        status, said = copies.run_tests(tree, fault.tests)
    finally:
        copies.write(tree / file, source)
    seconds = time.monotonic() - begun
    if status is None:
        return Outcome(fault.name, HUNG, seconds)
    if status == copies.PASSED:
        return Outcome(fault.name, SURVIVED, seconds, fault.why)
    if status != copies.FAILED and status > 0:  # the tests could not even be imported
        return Outcome(fault.name, BROKEN, seconds, said[-1500:])
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.*)", said, re.MULTILINE)
    return Outcome(fault.name, CAUGHT, seconds, failed[1] if failed else "by a crash")


def control(tree: Path, tests: list[str]) -> Outcome:
    """Run tests on the copy as it is: all have to pass, and none may be skipped."""
    begun = time.monotonic()
    status, said = copies.run_tests(tree, tests)
    name = f"{tests[0].partition('::')[0]} (without a fault)"
    skipped = re.search(r"^SKIPPED .*", said, re.MULTILINE)
    passed = status == copies.PASSED and not skipped
    detail = "" if passed else skipped[0] if skipped else said[-3000:]
    return Outcome(name, "passed" if passed else "failed", time.monotonic() - begun, detail)


def try_listed(chosen: list[listed.Listed], root: Path, jobs: int) -> bool:
    """Run the tests without a fault, then with each; whether all were caught."""
    known, free = listed.Definitions(root), queue.SimpleQueue()
    by_file: dict[str, dict[str, None]] = {}
    for test in (test for fault in chosen for test in fault.tests):
        by_file.setdefault(test.partition("::")[0], {})[test] = None

    def in_a_tree(call, *arguments) -> Outcome:
        tree = free.get()
        try:
            outcome = call(tree, *arguments)
        finally:
            free.put(tree)
        told = f"{outcome.result:9} {outcome.seconds:5.1f} s  {outcome.name}  {outcome.detail}"
        print(told, flush=True)
        return outcome

    with (
        tempfile.TemporaryDirectory(prefix="streamkit-mutations-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for number in range(jobs):
            tree = Path(folder, str(number))
            tree.mkdir()
            copies.copy_tree(root, tree)
            if any(copies.tier_of(file) == "emulated" for file in by_file):
                copies.compile_once(tree)
            free.put(tree)
        controls = pool.map(lambda tests: in_a_tree(control, [*tests]), by_file.values())
        if {outcome.result for outcome in controls} != {"passed"}:
            print("the tests fail without a fault: none was tried")
            return False
        outcomes = pool.map(lambda fault: in_a_tree(attempt, known, fault), chosen)
        results = Counter(outcome.result for outcome in outcomes)
    print("listed faults:", ", ".join(f"{count} {result}" for result, count in results.items()))
    return set(results) == {CAUGHT}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="those to try; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    options = parser.parse_args()
    known = {fault.name: fault for fault in listed.read()}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"not in the list: {', '.join(unknown)}")
    chosen = [known[name] for name in options.names] or list(known.values())
    return 0 if try_listed(chosen, ROOT, max(1, options.jobs)) else 1


if __name__ == "__main__":
    sys.exit(main())
