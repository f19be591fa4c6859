"""The faults of ``listed.toml``, found in the source as it is.

A fault says where it is by the name of a definition, not by a file: a function that moves to
another module takes its faults along.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("listed.toml")
PACKAGE = "streamkit"

Span = tuple[int, int]


class DoesNotApplyError(Exception):
    """It is not one place in the source: the source has changed."""


@dataclass(frozen=True)
class Listed:
    """A fault that somebody has met, and the tests that have to notice it."""

    name: str
    why: str  # what it does to a user
    where: str  # the end of the dotted path of the definition that is changed
    old: str  # is in there once
    new: str
    tests: tuple[str, ...]


def read() -> list[Listed]:
    entries = tomllib.loads(LIST.read_text())["fault"]
    return [Listed(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def _spans(source: str) -> dict[str, list[Span]]:
    """The whole lines of each class and function of a module; "" is the module.

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
            found.setdefault(name, []).append((starts[first - 1], starts[child.end_lineno]))
            look(child, name)

    look(ast.parse(source), "")
    return found


class Definitions:
    """All modules, classes and functions of the package in a tree."""

    def __init__(self, root: Path) -> None:
        self._sources: dict[str, str] = {}
        self._found: dict[str, list[tuple[str, str, list[Span]]]] = {}  # by each end of their paths
        for path in sorted((root / PACKAGE).rglob("*.py")):
            file = path.relative_to(root)
            source = self._sources[file.as_posix()] = path.read_text()
            module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            for name, spans in _spans(source).items():
                parts = (module + name).split(".")
                for start in range(len(parts)):
                    one = module + name, file.as_posix(), spans
                    self._found.setdefault(".".join(parts[start:]), []).append(one)

    def plant(self, listed: Listed) -> tuple[str, str]:
        """The file that a fault changes, and what it is with the fault."""
        ends = self._found.get(listed.where, [])
        if len(ends) != 1:
            known = ", ".join(path for path, *_ in ends) or "nothing"
            raise DoesNotApplyError(f"{listed.where} may be any of {known}")
        path, file, spans = ends[0]
        source, old = self._sources[file], listed.old
        count = sum(source.count(old, *span) for span in spans)
        if count != 1:
            raise DoesNotApplyError(f"{path} has the old text {count} times")
        at = max(source.find(old, *span) for span in spans)  # -1 in the other spans
        return file, source[:at] + listed.new + source[at + len(old) :]
