"""The programs of examples and pages with one of their waits removed, and their races."""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import io
import re
import sys
import types
from collections import Counter
from typing import NamedTuple

import streamkit as sk
from support.documents import ROOT, blocks, source_of

_FOLLOWING = 5


class Program(NamedTuple):
    """An example, or the blocks of a page: parts that run one after the other."""

    name: str
    source: str
    parts: list[ast.Module]


class Site(NamedTuple):
    """A call that orders: ``wait``, ``handoff``, or a scope with ``ordered=True``."""

    line: int
    call: str
    kind: str


def program_of(name, devices):
    """Read an example, or the blocks of a page for so many CUDA devices."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        return Program(name, text, [ast.parse(text)])
    chosen = [block for block in blocks(text) if block.runs(devices)]
    return Program(name, source_of(chosen), [ast.parse(source_of([one])) for one in chosen])


def sites(program):
    """Return the calls of a program that order work, by their lines."""
    found = [
        Site(node.lineno, ast.unparse(node), kind)
        for part in program.parts
        for node in ast.walk(part)
        if (kind := _kind(node)) is not None
    ]
    return sorted(found)


def without(program, site):
    """Return the program without one of its sites; each other line stays where it is."""
    remove = _Remove(site)
    return program._replace(parts=[remove.visit(copy.deepcopy(part)) for part in program.parts])


def races_of(program, folder):
    """Run a program, whatever it prints or raises, and return the report of its races."""
    name = f"program_{re.sub(r'[^a-z0-9]', '_', program.name.lower())}"
    file = folder / f"{name}.py"  # for libraries that read the source of a function
    file.write_text(program.source, encoding="utf-8")
    gc.collect()  # freed in the block, what others left would let the host wait for the device
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = str(file)
    try:
        with sk.races() as report, contextlib.redirect_stdout(io.StringIO()):
            for part in program.parts:
                with contextlib.suppress(Exception, SystemExit):
                    exec(compile(part, str(file), "exec"), module.__dict__)  # noqa: S102 - ours
    finally:
        del sys.modules[name]
    return report


def outcomes(program, folder):
    """Return the races of the whole program, and for each site those that are new without it.

    They are those that tell of the missing call: it is between the two lines of the race, and the
    advice of the race names its place.
    """
    whole = races_of(program, folder)
    found = {}
    for site in sites(program):
        races = races_of(without(program, site), folder).races
        new = Counter(map(_lines, races)) - Counter(map(_lines, whole.races))
        following = lines_after(program, site)
        found[site] = [
            race
            for race in races
            if _lines(race) in new
            and race.first.line < site.line
            and race.second.line in following
            and race.fix.endswith(f" before line {race.second.line}")
        ]
    return whole, found


def lines_after(program, site):
    """Return the lines of the next statements, and of the program's functions that they name.

    On a GPU a function that is submitted runs at once, so that the work is at its own lines.
    """
    nodes = [node for part in program.parts for node in ast.walk(part)]
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    lines = {node.lineno for node in nodes if _is_code(node)}
    following = set(sorted(line for line in lines if line > site.line)[:_FOLLOWING])
    named = [node.id for node in nodes if isinstance(node, ast.Name) and node.lineno in following]
    while named:
        function = functions.pop(named.pop(), None)
        if function is not None:
            inside = list(ast.walk(function))
            following |= {node.lineno for node in inside if _is_code(node)}
            named += [node.id for node in inside if isinstance(node, ast.Name)]
    return following


def _lines(race):
    return race.first.line, race.second.line


def _is_code(node):
    return isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef)


def _kind(node):
    if not isinstance(node, ast.Call):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if called == "wait" and len(node.args) == 1 and not node.keywords:
        return "wait"
    if called == "handoff":
        return "handoff"
    return "scope" if any(one.arg == "ordered" for one in node.keywords) else None


class _Remove(ast.NodeTransformer):
    def __init__(self, site):
        self._site = site

    def visit_Call(self, node):
        self.generic_visit(node)
        if (node.lineno, ast.unparse(node), _kind(node)) != self._site:
            return node
        if self._site.kind == "scope":
            node.keywords = [one for one in node.keywords if one.arg != "ordered"]
            return node
        if self._site.kind == "handoff":
            return node.args[0]
        return ast.copy_location(ast.Constant(None), node)
