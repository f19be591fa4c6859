"""Which tests reach a line: measured once, and again for each file of tests that has changed.

The unit, nogpu and emulated tiers run under coverage, with the name of the test as the context, in
its child processes too. What they reach is kept in a file.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import itertools
import json
import math
import re
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mutations import copies

if TYPE_CHECKING:
    from mutations.faults import Fault

HOUR = 3600.0
TEST, OUTCOMES = "MUTATIONS_TEST", "MUTATIONS_OUTCOMES"  # variables: see contexts.py
MANY, SECONDS = 200, 60.0
"""How many tests are run for one fault, and how long they may take by the measurement."""

_CONFIGURATION = """
[run]
include = {tree}/streamkit/*
data_file = {data}
parallel = true
core = ctrace
context = ${{{test}-}}
patch = _exit, fork
disable_warnings = no-data-collected, module-not-measured, trace-changed, no-ctracer
"""  # core: the one on sys.monitoring has no contexts

_STARTS = "import coverage\ncoverage.process_startup()\n"

_TABLES = """
create table if not exists files (name text primary key, version text);
create table if not exists tests (
    id integer primary key, name text, file text, seconds real, size integer
);
create table if not exists reached (test integer, source text, version text, lines blob);
create table if not exists sources (version text primary key, text text);
create index if not exists by_source on reached (source);
"""


class Test(NamedTuple):
    """A test that passes, and reaches a line."""

    name: str
    seconds: float
    size: int  # how many lines of the package it reaches


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_files(root: Path) -> list[str]:
    """All files of tests that need no GPU, but the one that tests what is here."""
    found = [
        path.relative_to(root).as_posix()
        for tier in copies.TIERS
        for path in sorted((root / "tests" / tier).glob("test_*.py"))
    ]
    return [file for file in found if file != "tests/unit/tools/test_mutations.py"]


class Reach:
    """What is known of the tests of some files."""

    def __init__(self, path: Path, files: list[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(path, check_same_thread=False)
        self._base.executescript(_TABLES)
        self._files = files

    def close(self) -> None:
        self._base.close()

    def measure(self, tree: Path) -> None:
        """Run the tests of the files that have changed, in a copy of the tree."""
        versions = {file: _version((tree / file).read_text()) for file in self._files}
        known = dict(self._base.execute("select name, version from files"))
        stale = [file for file in self._files if known.get(file) != versions[file]]
        for tier, files in itertools.groupby(stale, copies.tier_of):
            names = list(files)
            print(f"{tier}: measuring what the tests of {len(names)} files reach", flush=True)
            passed, said = self._run(tree, names)
            if not passed:
                print(f"{said[-2000:]}\n{tier}: no test passed", flush=True)
                continue
            self._forget(names)
            self._add(tree, passed)
            self._base.executemany(
                "insert into files values (?, ?)", [(name, versions[name]) for name in names]
            )
            self._base.commit()

    def _run(self, tree: Path, files: list[str]) -> tuple[dict[str, tuple[float, list[str]]], str]:
        """The tests that passed, with their seconds and fixtures; what they reach is in files."""
        for path in tree.parent.glob("reached*"):
            path.unlink()
        configuration, outcomes = tree.parent / "coveragerc", tree.parent / "outcomes.json"
        outcomes.unlink(missing_ok=True)
        configuration.write_text(
            _CONFIGURATION.format(tree=tree, data=tree.parent / "reached", test=TEST)
        )
        starts = tree / "sitecustomize.py"  # found by the children too
        starts.write_text(_STARTS)
        variables = {
            "COVERAGE_PROCESS_START": str(configuration),
            OUTCOMES: str(outcomes),
            "PYTEST_TIMEOUT": str(copies.LIMIT),
        }
        options = "-p", "mutations.contexts", "--continue-on-collection-errors"
        _, said = copies.run_tests(tree, files, options, variables, HOUR)
        starts.unlink()
        return json.loads(outcomes.read_text()) if outcomes.exists() else {}, said

    def _forget(self, files: list[str]) -> None:
        for file in files:
            self._base.execute(
                "delete from reached where test in (select id from tests where file = ?)", [file]
            )
            self._base.execute("delete from tests where file = ?", [file])
            self._base.execute("delete from files where name = ?", [file])

    def _add(self, tree: Path, passed: dict[str, tuple[float, list[str]]]) -> None:
        found = _lines_by_test(tree)
        versions = {}
        for source in {source for lines in found.values() for source in lines}:
            text = (tree / source).read_text()
            versions[source] = _version(text)
            row = versions[source], text
            self._base.execute("insert or ignore into sources values (?, ?)", row)
        for name, (seconds, fixtures) in passed.items():
            if re.search(r"\b0x[0-9a-f]{6}", name):
                continue  # an address, another one in each run
            for fixture in found.keys() & fixtures:
                for source, lines in found[fixture].items():
                    found[name][source] |= lines
            size = sum(lines.bit_count() for lines in found[name].values())
            row = name, name.partition("::")[0], seconds, size
            made = self._base.execute("insert into tests values (null, ?, ?, ?, ?)", row)
            self._base.executemany(
                "insert into reached values (?, ?, ?, ?)",
                [
                    (made.lastrowid, source, versions[source], _packed(lines))
                    for source, lines in found[name].items()
                ],
            )

    def tests_of(self, fault: Fault, source: str) -> list[str]:
        """The tests that reach a fault, the closest first: as many as there is time for."""
        rows = self._base.execute(
            "select version, lines, name, seconds, size, file from reached join tests on test = id "
            "where source = ?",
            [fault.file],
        ).fetchall()
        wanted, found = {}, []
        for version, lines, name, seconds, size, file in rows:
            if version not in wanted:
                wanted[version] = self._lines(fault, source, version)
            if file in self._files and int.from_bytes(lines, "little") & wanted[version]:
                found.append(Test(name, seconds, size))
        return _in_time(_closest_first(found, fault.file))

    def _lines(self, fault: Fault, source: str, version: str) -> int:
        """The lines of a fault in a source as it was when it was measured, as bits."""
        if not fault.function:
            return -1  # an import runs it, once in a process: any test of the module may notice
        [(text,)] = self._base.execute("select text from sources where version = ?", [version])
        if text == source:
            return _bits(*fault.lines)
        before, now = text.splitlines(), source.splitlines()
        matcher = difflib.SequenceMatcher(None, before, now, autojunk=False)
        low, high = fault.lines
        found = 0
        for kind, i, j, k, m in matcher.get_opcodes():
            first, last = max(low - 1, k), min(high, m)  # of the lines from k to m
            if first < last and kind == "equal":
                found |= _bits(i + first - k + 1, i + last - k)
            elif first < last:
                found |= _bits(max(i, 1), j + 1)  # those around what is new
        return found


def _bits(first: int, last: int) -> int:
    return ((1 << (last - first + 1)) - 1) << first


def _packed(lines: int) -> bytes:
    return lines.to_bytes(lines.bit_length() // 8 + 1, "little")


def _lines_by_test(tree: Path) -> dict[str, dict[str, int]]:
    """The lines that each test reached in each module, as the bits of a number."""
    from coverage import CoverageData  # the tests of this file do without

    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in tree.parent.glob("reached.*"):
        data = CoverageData(str(path))
        with contextlib.suppress(Exception):  # of a process that was killed while it wrote
            data.read()
        for file in data.measured_files():
            source = Path(file).relative_to(tree).as_posix()
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    found[test][source] |= 1 << line
        data.close()
    return found


def _closest_first(tests: list[Test], file: str) -> list[Test]:
    """In turn one that reaches little else, and one whose file has a name like the module's.

    Of the cases of one parametrised test the others come after one of each of the rest.
    """
    parts = [Path(part).stem.strip("_") for part in Path(file).parts[1:]]

    @functools.cache
    def likeness(name: str) -> float:
        return max(difflib.SequenceMatcher(None, name, part).ratio() for part in parts)

    def ranks(test: Test) -> tuple[int, float]:
        name = Path(test.name.partition("::")[0]).stem.removeprefix("test_")
        return int(math.log2(test.size)), -likeness(name)

    small = sorted(tests, key=lambda test: (*ranks(test), test.seconds))
    alike = sorted(tests, key=lambda test: (*reversed(ranks(test)), test.seconds))
    cases: dict[str, int] = defaultdict(int)
    placed = []
    for test in dict.fromkeys(itertools.chain(*zip(small, alike, strict=True))):
        function = test.name.partition("[")[0]
        placed.append((cases[function], test))
        cases[function] += 1
    return [test for _, test in sorted(placed, key=lambda one: one[0])]


def _in_time(tests: list[Test]) -> list[str]:
    chosen, seconds = [], 0.0
    for test in tests:
        if len(chosen) < MANY and (seconds + test.seconds <= SECONDS or not chosen):
            chosen.append(test.name)
            seconds += test.seconds
    return chosen
