"""Try the mutations listed beside this file: the tests that each one names must fail.

    python tests/mutations/run.py [NAME ...] [--jobs N]

Each is tried in a temporary copy of the tree, never in the checkout, after the same tests have
passed there unmutated. The exit status is 1 unless every mutation applies and is killed.

A mutation says where it is by the name of a definition, not by a file: a function that moves to
another module takes its mutations along.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import itertools
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = "streamkit"
NEEDED = (PACKAGE, "tests", "pyproject.toml")  # what the copies have
LIMIT = 120.0
"""Seconds that the tests of one mutation may take."""

DRIVER, COMPILER = "driver", "cc"  # in a copy: see compile_once
CONTROL = "(unmutated)"
PASSED, FAILED = 0, 1  # pytest's exit statuses; all others mean that it could not test


@dataclass(frozen=True)
class Mutation:
    """One wrong line, and the tests that have to notice it."""

    name: str
    why: str  # what it would do to a user
    where: str  # the end of the dotted path of what it changes: see find
    old: str  # has to be in there once
    new: str
    tests: tuple[str, ...]  # all of one tier

    @property
    def tier(self) -> str:
        return tier_of(self.tests[0])


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation, or of the control."""

    name: str
    result: str
    seconds: float
    detail: str = ""


class DoesNotApplyError(Exception):
    """It is not one place in the source: the source has changed."""


def tier_of(test: str) -> str:
    return test.split("/")[1]


def read() -> list[Mutation]:
    """The mutations of every list beside this file, in order."""
    return [
        Mutation(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(HERE.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutation"]
    ]


# -- where a mutation is ----------------------------------------------------------------------

Span = tuple[int, int]


@dataclass(frozen=True)
class Definition:
    """A module, class or function of the package, by its dotted path."""

    path: str  # from the package on: package.module.Class.method
    file: str  # where it is now, from the root
    source: str  # the text of the whole file
    spans: list[Span]  # whole lines of the source, with the decorators; several if defined again


@functools.cache  # by the text, and so never stale, whatever is written to the file
def names(source: str) -> dict[str, list[Span]]:
    """The classes and functions of a module, and the spans of each; "" is the module.

    A name may be defined more than once: the parts of a property, overloads, the arms of an if.
    """
    starts = [0, *(end.end() for end in re.finditer("\n", source)), len(source)]
    found: dict[str, list[Span]] = {"": [(0, len(source))]}

    def look(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                look(child, outer)
                continue
            name = f"{outer}.{child.name}"
            first = min(part.lineno for part in (child, *child.decorator_list))
            span = starts[first - 1], starts[child.end_lineno or first]
            found.setdefault(name, []).append(span)
            look(child, name)

    look(ast.parse(source), "")
    return found


def definitions(root: Path) -> dict[str, list[Definition]]:
    """All definitions of the package in a tree, by each end of their paths."""
    found: dict[str, list[Definition]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        file = path.relative_to(root)
        source = path.read_text()
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for name, spans in names(source).items():
            definition = Definition(module + name, file.as_posix(), source, spans)
            parts = definition.path.split(".")
            for start in range(len(parts)):
                found.setdefault(".".join(parts[start:]), []).append(definition)
    return found


def find(where: str, known: dict[str, list[Definition]]) -> Definition:
    """The one definition whose dotted path ends with these names."""
    ends = known.get(where, [])
    if not ends:
        raise DoesNotApplyError(f"nothing in {PACKAGE} is called {where}")
    if len(ends) > 1:
        paths = ", ".join(definition.path for definition in ends)
        raise DoesNotApplyError(f"{where} may be any of {paths}")
    return ends[0]


def mutate(definition: Definition, mutation: Mutation) -> str:
    """The source of the definition's file with the mutation in it."""
    source, old = definition.source, mutation.old
    count = sum(source.count(old, *span) for span in definition.spans)
    if count != 1:
        raise DoesNotApplyError(f"{definition.path} has the old text {count} times")
    at = max(source.find(old, *span) for span in definition.spans)  # -1 in the other spans
    return source[:at] + mutation.new + source[at + len(old) :]


# -- one run of pytest ------------------------------------------------------------------------


def copy_tree(root: Path, target: Path) -> None:
    junk = shutil.ignore_patterns("__pycache__", ".*")
    for name in NEEDED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=junk)
        else:
            shutil.copy(source, target / name)


_times = itertools.count(1)


def write(path: Path, source: str) -> None:
    """Write a module at a time of its own, or two within a second would share a .pyc."""
    path.write_text(source)
    when = next(_times)
    os.utime(path, (when, when))


def compile_once(tree: Path) -> None:
    """Put a compiler into the copy that hands out the emulated driver, which nobody mutates."""
    built, compiler = tree / DRIVER, tree / COMPILER
    built.mkdir()
    program = (
        "import pathlib, sys; from emulator import build; "
        "print(build.build(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(built)],
        env={**os.environ, "PYTHONPATH": str(tree / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:  # else each run tries, and the control says why it cannot
        library = shlex.quote(done.stdout.strip())
        compiler.write_text(
            f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp {library} "$2"\n'
        )
        compiler.chmod(0o755)


def environment(tree: Path, tier: str) -> dict[str, str]:
    """The copy's streamkit is found before an installed one, and what a test needs is there."""
    without = {
        "TOX_ENV_NAME",  # in a lane of tox the tests refuse anything but the wheel
        "STREAMKIT_SANITIZER",
    }
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["PYTHONPATH"] = str(tree)
    environment["PYTEST_TIMEOUT"] = str(LIMIT / 4)
    environment["STREAMKIT_REQUIRE"] = "unit" if tier == "unit" else f"all-{tier}"
    if tier != "emulated":
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    elif (tree / COMPILER).exists():
        environment["CC"] = str(tree / COMPILER)
    return environment


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int | None, str]:
    """pytest's exit status and what it said; None if the time was over."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "no:streamkit"]  # StreamKit's own plugin, mutated, could skip these tests
    log = tree / "pytest.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=tree,
            env=environment(tree, tier_of(tests[0])),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group, which can be ended with its children
        )
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, log.read_text(errors="replace")


# -- the outcomes -----------------------------------------------------------------------------


def control(tree: Path, tests: tuple[str, ...]) -> Outcome:
    """Run tests on the unmutated copy: all have to pass, and none may be skipped."""
    begun = time.monotonic()
    status, said = run_tests(tree, tests)
    seconds = time.monotonic() - begun
    skipped = re.search(r"^SKIPPED .*", said, re.MULTILINE)
    name = f"{tests[0].partition('::')[0].removeprefix('tests/')} {CONTROL}"
    if status != PASSED or skipped:
        return Outcome(name, "failed", seconds, skipped[0] if skipped else said[-3000:])
    return Outcome(name, "passed", seconds)


def attempt(tree: Path, mutation: Mutation) -> Outcome:
    """Try one mutation in the copy, and take it out again."""
    begun = time.monotonic()
    try:
        definition = find(mutation.where, definitions(tree))
        mutated = mutate(definition, mutation)
    except DoesNotApplyError as error:
        return Outcome(mutation.name, "does not apply", 0, str(error))
    path = tree / definition.file
    try:
        write(path, mutated)
        status, said = run_tests(tree, mutation.tests)
    finally:
        write(path, definition.source)
    seconds = time.monotonic() - begun
    if status is None:
        return Outcome(mutation.name, "timed out", seconds)
    if status == PASSED:
        return Outcome(mutation.name, "survived", seconds, mutation.why)
    if status != FAILED:
        return Outcome(mutation.name, f"no test ran ({status})", seconds, said[-1500:])
    killer = re.search(r"^(?:FAILED|ERROR) \S*::(\S+)", said, re.MULTILINE)
    return Outcome(
        mutation.name, "killed", seconds, killer[1] if killer else "a crash or a timeout"
    )


def by_file(mutations: list[Mutation]) -> list[tuple[str, ...]]:
    """All the tests that the mutations name, those of one file together."""
    found: dict[str, dict[str, None]] = {}
    for mutation in mutations:
        for test in mutation.tests:
            found.setdefault(test.partition("::")[0], {})[test] = None
    return [tuple(tests) for tests in found.values()]


def try_all(mutations: list[Mutation], root: Path, jobs: int) -> bool:
    """Run the control, then the mutations; print the table; whether all were killed."""
    width = max(len(mutation.name) for mutation in mutations)

    def show(outcome: Outcome) -> None:
        row = f"{outcome.name:{width}}  {outcome.result:8}  {outcome.seconds:5.1f} s"
        print(f"{row}  {outcome.detail}".rstrip(), flush=True)

    with tempfile.TemporaryDirectory(prefix="streamkit-mutations-") as folder:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            tree = Path(folder, str(number))
            tree.mkdir()
            copy_tree(root, tree)
            if any(mutation.tier == "emulated" for mutation in mutations):
                compile_once(tree)
            trees.put(tree)

        def in_a_tree(call, argument):
            tree = trees.get()
            try:
                return call(tree, argument)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            passed = True
            for outcome in pool.map(lambda tests: in_a_tree(control, tests), by_file(mutations)):
                show(outcome)
                passed = passed and outcome.result == "passed"
            if not passed:
                print("the tests fail without a mutation: none was tried")
                return False
            outcomes = []
            for outcome in pool.map(lambda mutation: in_a_tree(attempt, mutation), mutations):
                show(outcome)
                outcomes.append(outcome.result)
    tally = ", ".join(f"{outcomes.count(result)} {result}" for result in dict.fromkeys(outcomes))
    print(f"mutations: {tally}")
    return set(outcomes) == {"killed"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="those to try; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    options = parser.parse_args(arguments)
    listed = {mutation.name: mutation for mutation in read()}
    unknown = [name for name in options.names if name not in listed]
    if unknown:
        parser.error(f"not in the list: {', '.join(unknown)}")
    chosen = [listed[name] for name in options.names] or list(listed.values())
    return 0 if try_all(chosen, ROOT, max(1, options.jobs)) else 1


if __name__ == "__main__":
    sys.exit(main())
