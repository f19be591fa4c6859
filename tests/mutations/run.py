"""Plant faults in the source: the tests have to catch them.

    python tests/mutations/run.py --sample 300 --seed 7 [--since REV] [--threshold 90]
    python tests/mutations/run.py --listed [NAME ...]

Each is tried in a temporary copy of the tree, never in the checkout. Of a sample the tests are run
that reach the line, and the exit status is 1 if fewer are caught than the threshold says. A listed
fault names its tests, which have to pass without it, and each must be caught.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from mutations import copies, faults, listed, reach  # noqa: E402 - found through the line above

REACH = ROOT / ".mutations" / "reach.sqlite"
OUT_OF_REACH = (
    # only the GPU tier runs these
    "streamkit/processes/driver.py",
    "streamkit/processes/mappings.py",
    "streamkit/backends/_cupy/fft_plans.py",
    "streamkit/backends/_rmm/",
    "streamkit/backends/_torch/capture.py",
    "streamkit/backends/_torch/random_numbers.py",
    "streamkit/backends/_torch/shared_pool.py",
    "streamkit/_cli/demo_kernels.py",
)


@dataclass(frozen=True)
class Outcome:
    """What became of one fault, or of the tests without one."""

    name: str
    result: str
    seconds: float = 0
    detail: str = ""  # of one that was caught: the test that did

    def show(self) -> None:
        print(f"{self.result:9} {self.seconds:5.1f} s  {self.name}  {self.detail}", flush=True)


CAUGHT, SURVIVED = "caught", "survived"
UNREACHED = "unreached"  # no test that passes runs the line
BROKEN = "broken"  # the tests could not even be imported, which everybody would notice
HUNG = "hung"
UNJUDGED = "unjudged"  # a test was not found, for its name is another each time
MISSED = {SURVIVED, UNREACHED, UNJUDGED}


def attempt(tree: Path, fault: faults.Fault, tests: tuple[str, ...]) -> Outcome:
    """Try one fault in the copy, and take it out again."""
    if not tests:
        return Outcome(fault.name, UNREACHED)
    begun = time.monotonic()
    path = tree / fault.file
    source = path.read_text()
    result, detail = SURVIVED, ""
    try:
        copies.write(path, fault.apply(source))
        for tier in dict.fromkeys(map(copies.tier_of, tests)):  # the one of the closest test first
            chosen = [test for test in tests if copies.tier_of(test) == tier]
            status, said = copies.run_tests(tree, chosen)
            result, detail = _result(status, said, chosen)
            if result != SURVIVED:
                break
    finally:
        copies.write(path, source)
    return Outcome(fault.name, result, time.monotonic() - begun, detail)


def _result(status: int | None, said: str, tests: list[str]) -> tuple[str, str]:
    if status is None:
        return HUNG, ""
    if status in (copies.PASSED, copies.NONE_RAN):
        return SURVIVED, ""
    if status != copies.FAILED and status > 0:
        return UNJUDGED if "ERROR: not found: " in said else BROKEN, said[-1500:]
    return CAUGHT, next(iter(_failed(said, tests)), "by a crash or a time-out")


def _failed(said: str, tests: list[str]) -> set[str]:
    """Those of the tests that pytest's summary says have failed."""
    lines = re.findall(r"^(?:FAILED|ERROR) (.*)", said, re.MULTILINE)  # some are of the program's
    named = (max(filter(line.startswith, tests), key=len, default="") for line in lines)
    return set(filter(None, named))


class Trees:
    """Copies of the tree, each of which is used by one thread at a time."""

    def __init__(self, folder: str, root: Path, jobs: int, *, emulated: bool) -> None:
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._jobs = jobs
        for number in range(jobs):
            tree = Path(folder, str(number), "tree")
            tree.mkdir(parents=True)
            copies.copy_tree(root, tree)
            if emulated:
                copies.compile_once(tree)
            self._free.put(tree)

    @contextmanager
    def one(self) -> Iterator[Path]:
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)

    def map(self, call: Callable, many: list) -> Iterator[Outcome]:
        """The outcomes of what is called with a copy and each of these, shown as they come."""

        def in_a_tree(one):
            with self.one() as tree:
                return call(tree, *one)

        with ThreadPoolExecutor(self._jobs) as pool:
            for outcome in pool.map(in_a_tree, many):
                outcome.show()
                yield outcome


# -- a sample ---------------------------------------------------------------------------------


def changed_lines(root: Path, revision: str) -> set[tuple[str, int]]:
    """The lines of the package that are new or different since a revision."""
    command = ["git", "diff", "-U0", revision, "--", "streamkit"]
    diff = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    found, file = set(), ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found |= {(file, number) for number in range(first, first + count)}
    return found


def sources_of(root: Path) -> dict[str, str]:
    """The modules whose faults a test could catch here."""
    found = {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted((root / "streamkit").rglob("*.py"))
    }
    return {name: text for name, text in found.items() if not name.startswith(OUT_OF_REACH)}


def try_sample(
    chosen: list[faults.Fault], root: Path, jobs: int, store: Path, files: list[str]
) -> float:
    """Plant faults and print what became of them; what part was caught, in percent."""
    sources = sources_of(root)
    emulated = any(copies.tier_of(file) == "emulated" for file in files)
    with tempfile.TemporaryDirectory(prefix="streamkit-mutations-") as folder:
        trees = Trees(folder, root, jobs, emulated=emulated)
        with closing(reach.Reach(store, files)) as known:
            with trees.one() as tree:
                known.measure(tree)
            planted = [(fault, known.tests_of(fault, sources[fault.file])) for fault in chosen]
        results = _try_until_true(trees, planted)
    for fault, result in results.items():
        if result in MISSED:
            print(f"\n{result}: {fault.name}\n{fault.diff(sources[fault.file])}")
    return _table(results)


def _try_until_true(
    trees: Trees, planted: list[tuple[faults.Fault, list[str]]]
) -> dict[faults.Fault, str]:
    """What became of faults; none is caught by a test that fails without it too."""
    results: dict[faults.Fault, str] = {}
    sound: set[str] = set()
    while planted:
        outcomes = list(trees.map(attempt, planted))
        results |= {fault: one.result for (fault, _), one in zip(planted, outcomes, strict=True)}
        catchers = {one.detail for one in outcomes if one.result == CAUGHT and "::" in one.detail}
        with trees.one() as tree:
            wrong = _fail_anyway(tree, catchers - sound)
        sound |= catchers - wrong
        planted = [
            (fault, [test for test in tests if test not in wrong])
            for (fault, tests), one in zip(planted, outcomes, strict=True)
            if one.detail in wrong
        ]
    return results


def _fail_anyway(tree: Path, tests: set[str]) -> set[str]:
    found = set()
    for tier in {copies.tier_of(test) for test in tests}:
        chosen = sorted(test for test in tests if copies.tier_of(test) == tier)
        _, said = copies.run_tests(tree, chosen, (), limit=copies.LIMIT * 10)
        found |= _failed(said, chosen)
    for test in sorted(found):
        print(f"{test} fails without a fault too: it catches nothing", flush=True)
    return found


def _folder(file: str) -> str:
    _, name, *others = file.split("/")
    return name if others else "streamkit"


def _table(results: dict[faults.Fault, str]) -> float:
    planted = Counter(_folder(fault.file) for fault in results)
    missed = Counter(_folder(fault.file) for fault, result in results.items() if result in MISSED)
    unreached = Counter(
        _folder(fault.file) for fault, result in results.items() if result == UNREACHED
    )
    print("\nfolder          caught  unreached  of")
    for folder in sorted(planted):
        caught = planted[folder] - missed[folder]
        print(f"{folder:14} {caught:7} {unreached[folder]:10} {planted[folder]:3}")
    caught = planted.total() - missed.total()
    share = 100 * caught / max(1, planted.total())
    print(f"{'all':14} {caught:7} {unreached.total():10} {planted.total():3}  {share:.1f} %")
    return share


# -- the listed ones --------------------------------------------------------------------------


def control(tree: Path, tests: tuple[str, ...]) -> Outcome:
    """Run tests on the copy as it is: all have to pass, and none may be skipped."""
    begun = time.monotonic()
    status, said = copies.run_tests(tree, tests)
    seconds = time.monotonic() - begun
    name = f"{tests[0].partition('::')[0]} (without a fault)"
    skipped = re.search(r"^SKIPPED .*", said, re.MULTILINE)
    if status != copies.PASSED or skipped:
        return Outcome(name, "failed", seconds, skipped[0] if skipped else said[-3000:])
    return Outcome(name, "passed", seconds)


def by_file(chosen: list[listed.Listed]) -> list[tuple[str, ...]]:
    """All the tests that the faults name, those of one file together."""
    found: dict[str, dict[str, None]] = {}
    for test in (test for one in chosen for test in one.tests):
        found.setdefault(test.partition("::")[0], {})[test] = None
    return [tuple(tests) for tests in found.values()]


def try_listed(chosen: list[listed.Listed], root: Path, jobs: int) -> bool:
    """Run the tests without a fault, then with each; whether all were caught."""
    known = listed.Definitions(root)

    def one(tree: Path, entry: listed.Listed) -> Outcome:
        try:
            outcome = attempt(tree, known.fault(entry), entry.tests)
        except listed.DoesNotApplyError as error:
            return Outcome(entry.name, "does not apply", 0, str(error))
        why = entry.why if outcome.result == SURVIVED else outcome.detail
        return Outcome(entry.name, outcome.result, outcome.seconds, why)

    emulated = any(copies.tier_of(entry.tests[0]) == "emulated" for entry in chosen)
    with tempfile.TemporaryDirectory(prefix="streamkit-mutations-") as folder:
        trees = Trees(folder, root, jobs, emulated=emulated)
        controls = list(trees.map(control, [(tests,) for tests in by_file(chosen)]))
        if any(outcome.result != "passed" for outcome in controls):
            print("the tests fail without a fault: none was tried")
            return False
        results = Counter(outcome.result for outcome in trees.map(one, [(e,) for e in chosen]))
    print("listed faults:", ", ".join(f"{count} {result}" for result, count in results.items()))
    return set(results) == {CAUGHT}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="with --listed: those to try; all by default")
    add("--listed", action="store_true", help="try the faults of listed.toml")
    add("--sample", type=int, default=300, metavar="N", help="how many to plant (%(default)s)")
    add("--seed", type=int, default=7, help="which ones (%(default)s)")
    add("--since", metavar="REV", help="first in the lines that have changed since a revision")
    add("--only", default="", metavar="TEXT", help="of the sample those whose FILE:LINE has it")
    add(
        "--threshold", type=float, default=0, metavar="P", help="fail if fewer than P %% are caught"
    )
    add("--using", nargs="+", metavar="FILE", help="run only the tests of these files")
    add("--show", action="store_true", help="print the diffs of the sample, and try nothing")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    options = parser.parse_args(arguments)
    if options.listed:
        known = {entry.name: entry for entry in listed.read()}
        if unknown := [name for name in options.names if name not in known]:
            parser.error(f"not in the list: {', '.join(unknown)}")
        chosen = [known[name] for name in options.names] or list(known.values())
        return 0 if try_listed(chosen, ROOT, max(1, options.jobs)) else 1
    sources = sources_of(ROOT)
    changed = changed_lines(ROOT, options.since) if options.since else set()
    found = faults.sample(sources, options.sample, options.seed, changed)
    found = [fault for fault in found if options.only in fault.name]
    if options.show:
        for fault in found:
            print(f"{fault.name}\n{fault.diff(sources[fault.file])}")
        return 0
    files = options.using or reach.test_files(ROOT)
    return int(try_sample(found, ROOT, max(1, options.jobs), REACH, files) < options.threshold)


if __name__ == "__main__":
    sys.exit(main())
