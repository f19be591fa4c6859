"""What a file of GPU tests reaches, and what that means: its comments and words may change.

A file reaches what it imports, at any depth. An import inside a function of the package or of the
tests' support counts only if the function's name stands in what is reached, and a name that
``streamkit`` loads at its first use only if that name does. In the tests, the examples and the code
of the pages the words of strings count as names: programs for child processes are written so.
What is named by a computed string counts whole: ``f"streamkit.backends._{name}.adapter"`` is each
adapter. A computed ``getattr`` is not seen: the package has them on other libraries' objects alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.documents import PAGES, ROOT, blocks, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.documents import Block

FOLDERS = {"examples": "examples", "plugin/src": "tests/plugin/src"}
"""Strings by which a test finds files that are no modules, and where they are."""
PAGES_ARE = {"docs", "README.md"}
MODULE = re.compile(r"(?:streamkit|support)(?:\.\w+)*")


class Import(NamedTuple):
    """A module that a file may import, with what has to be named for that."""

    pattern: str
    unless_named: tuple[str, bool] | None = None  # the name, and whether only an attribute is one


class Source(NamedTuple):
    """What is read of one file."""

    digest: str
    imports: tuple[Import, ...]
    attributes: frozenset[str]
    names: frozenset[str]
    files: frozenset[str]


# -- what a file means ------------------------------------------------------------------------


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_wording(node: ast.AST, name: str) -> bool:
    """Whether the strings below a node are the words of a message."""
    match node:
        case ast.Raise():
            return True
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
            return called.endswith(("Error", "Warning"))
        case ast.Assign(targets=[ast.Name(id="message")]):
            return True
        case ast.Return():
            return name == "streamkit/_support/messages.py"
    return False


def told(node: Any, name: str) -> list[str]:
    """The syntax tree as text, the same in each version of Python."""
    parts: list[str] = []
    _tell(parts, node, name, wording=False)
    return parts


def _tell(parts: list[str], node: Any, name: str, *, wording: bool) -> None:
    if isinstance(node, list):
        for one in node:
            if not (isinstance(one, ast.Expr) and is_text(one.value)):  # a docstring
                _tell(parts, one, name, wording=wording)
    elif is_text(node):
        parts.append("a message" if wording else repr(node.value))
    elif isinstance(node, ast.JoinedStr) and wording:
        words = [one for one in node.values if not is_text(one)]
        _tell(parts, words, name, wording=True)
    elif isinstance(node, ast.AST):
        wording = wording or is_wording(node, name)
        parts.append(f"({type(node).__name__}")
        for field in node._fields:
            value = getattr(node, field, None)
            if value in (None, []) or field in ("ctx", "kind", "type_ignores"):
                continue
            parts.append(f"{field}=")
            if isinstance(value, ast.AST | list):
                _tell(parts, value, name, wording=wording)
            else:
                parts.append(repr(value))
        parts.append(")")
    else:
        parts.append(repr(node))


# -- what a file names ------------------------------------------------------------------------


class Reader(ast.NodeVisitor):
    """Collects what a file imports and names."""

    def __init__(self, name: str) -> None:
        self.of_package = name.startswith("streamkit/")
        self.is_called = name.startswith(
            ("streamkit/", "tests/support/")
        )  # by tests, not by pytest
        self.imports: list[Import] = []
        self.attributes: set[str] = set()
        self.names: set[str] = set()
        self.files: set[str] = set()
        self.inside: list[str] = []  # classes and functions around the node, as "class" or a name

    def condition(self) -> tuple[str, bool] | None:
        functions = [index for index, one in enumerate(self.inside) if one != "class"]
        if not self.is_called or not functions:
            return None
        first = functions[0]
        name = self.inside[first]
        return None if name.startswith("__") else (name, first > 0)

    def imported(self, pattern: str) -> None:
        self.imports.append(Import(pattern, self.condition()))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.inside.append("class")
        self.generic_visit(node)
        self.inside.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for one in node.decorator_list:
            self.visit(one)
        self.inside.append(node.name)
        for one in (node.args, *node.body):
            self.visit(one)
        self.inside.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - as ``ast`` calls it

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.visit(node.test)
            for one in node.body:
                self.visit(one)
        for one in node.orelse:
            self.visit(one)

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            self.imported(re.escape(one.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imported(re.escape(node.module or ""))
        for one in node.names:
            self.imported(re.escape(f"{node.module}.{one.name}"))
            self.attributes.add(one.name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.add(node.attr)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                self.attributes.add(name)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            match key, value:
                case ast.Constant(value=str(name)), ast.Constant(value=str(module)) if (
                    self.of_package and MODULE.fullmatch(module)
                ):
                    self.imports.append(Import(re.escape(module), (name, True)))
                case _:
                    for one in filter(None, (key, value)):
                        self.visit(one)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pattern = "".join(re.escape(p.value) if is_text(p) else ".*" for p in node.values)
        if pattern.startswith(("streamkit\\.", "support\\.")):
            self.imported(pattern)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.text(node.value)

    def text(self, text: str) -> None:
        if self.of_package:
            if MODULE.fullmatch(text):
                self.imported(re.escape(text))
            return
        words = set(re.findall(r"\w+", text))
        self.attributes |= words
        self.names |= words
        for module in MODULE.findall(text):
            self.imported(re.escape(module))
        for module, named in re.findall(r"from ([\w.]+) import ([\w, ]+)", text):
            for one in re.findall(r"\w+", named):
                self.imported(re.escape(f"{module}.{one}"))
        if len(text) < 100:  # a path, not a program
            self.files.add(text)


def read(name: str, code: str) -> Source:
    """Read a file of Python, by its path from the root."""
    tree, reader = ast.parse(code), Reader(name)
    for node in ast.walk(tree):  # docstrings name nothing
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [s for s in body if not (isinstance(s, ast.Expr) and is_text(s.value))]
    reader.visit(tree)
    digest = hashlib.sha256("\0".join(told(tree, name)).encode()).hexdigest()
    kinds = (frozenset(kind) for kind in (reader.attributes, reader.names, reader.files))
    return Source(digest, tuple(dict.fromkeys(reader.imports)), *kinds)


@functools.cache
def source(name: str) -> Source:
    """Read a file, a folder's page or the settings of pytest."""
    path = ROOT / name
    if name == "pyproject.toml":
        settings = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("pytest")
        return Source(hashlib.sha256(repr(settings).encode()).hexdigest(), (), *[frozenset()] * 3)
    if path.suffix == ".md" and path in PAGES:
        found = code_of(path)
        marks = [(one.marks, one.prints) for one in found]
        return read(name, f"{source_of(found)}\n{marks!r} or 0\n")
    if path.suffix == ".py":
        return read(name, path.read_text(encoding="utf-8"))
    reader = Reader(name)
    content = path.read_bytes()
    if path.suffix == ".ipynb":
        reader.text(content.decode())
    words = frozenset(reader.attributes)
    digest = hashlib.sha256(content).hexdigest()
    return Source(digest, tuple(reader.imports), words, words, frozenset())


# -- what a file reaches ----------------------------------------------------------------------


def files_of(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


@functools.cache
def modules() -> dict[str, str]:
    """The file of each module of the package, of the tests' support and of the bench."""
    found = {}
    for top, folder in (
        ("streamkit", ROOT),
        ("support", ROOT / "tests"),
        ("bench", ROOT / "tests"),
    ):
        for path in sorted((folder / top).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path.relative_to(ROOT).as_posix()
    return found


@functools.cache
def matching(pattern: str) -> frozenset[str]:
    """The files of the modules that match, and of the packages around them."""
    known = modules()
    exact = re.sub(r"\\(.)", r"\1", pattern)
    found = [exact] if exact in known else []
    if ".*" in pattern:
        found = [name for name in known if re.fullmatch(pattern, name)]
    return frozenset(
        known[".".join(parts[: stop + 1])]
        for parts in (name.split(".") for name in found)
        for stop in range(len(parts))
        if ".".join(parts[: stop + 1]) in known
    )


@functools.cache
def beside(name: str) -> frozenset[str]:
    """What a file names by its path: one beside it, a folder of FOLDERS, the pages; its data."""
    path, found = ROOT / name, set()
    for text in source(name).files:
        if text.endswith(".py") and "\n" not in text and (path.parent / text).is_file():
            found.add((path.parent / text).relative_to(ROOT).as_posix())
        if text in PAGES_ARE:
            found |= {page.relative_to(ROOT).as_posix() for page in PAGES if code_of(page)}
        for start, folder in FOLDERS.items():
            if text == start or text.startswith(f"{start}/"):
                found |= set(files_of(ROOT / folder))
    if name.startswith("streamkit/") and path.suffix == ".py":
        data = (one for one in path.parent.iterdir() if one.is_file())
        found |= {one.relative_to(ROOT).as_posix() for one in data if one.suffix not in CODE}
    return frozenset(found)


CODE = {".py", ".pyc", ".pyi", ".so", ".typed", ""}


@functools.cache
def code_of(page: Path) -> list[Block]:
    """The blocks of a page that a machine with GPUs runs."""
    return [one for one in blocks(page.read_text(encoding="utf-8")) if one.runs(99)]


def reached(test: str) -> set[str]:
    """The files that a file of tests reaches, itself included, by their paths from the root."""
    found: set[str] = set()
    conftests = [folder / "conftest.py" for folder in Path(test).parents]
    todo = {test, "pyproject.toml"}
    todo |= {path.as_posix() for path in conftests if (ROOT / path).exists()}
    waiting: set[Import] = set()
    attributes: set[str] = set()
    names: set[str] = set()
    while todo:
        for name in todo:
            one = source(name)
            attributes |= one.attributes
            names |= one.names
            waiting.update(one.imports)
        found |= todo
        todo = set().union(*(beside(name) for name in todo))
        for one in list(waiting):
            name, only_attributes = one.unless_named or (None, False)
            if name is None or name in attributes or (name in names and not only_attributes):
                todo |= matching(one.pattern)
                waiting.discard(one)
        todo -= found
    return found


def forget() -> None:
    """Have the files read again, which may have changed."""
    for cached in (source, modules, matching, beside, code_of):
        cached.cache_clear()


def meaning(test: str) -> str:
    """The hash of what a file of tests reaches."""
    digest = hashlib.sha256()
    for name in sorted(reached(test)):
        digest.update(f"{name}\0{source(name).digest}\0".encode())
    return digest.hexdigest()[:16]
