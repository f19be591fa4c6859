"""What each error can say: the messages of the package, read from its source.

A message is the text that an error is made with. What differs from call to call is shown as
``...``. The functions of ``_support/messages.py`` word errors for others: each call of them is a
message of its own. The conformance kit and the tools are left out: they are not raised at users.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import streamkit
from streamkit import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

Known = dict[str, list[ast.expr]]
"""What the names of a function stand for."""

PACKAGE = Path(streamkit.__file__).parent
SHARED = PACKAGE / "_support" / "messages.py"
LEFT_OUT = {"testing", "_cli"}
BUILT_IN = ("AttributeError", "RuntimeError", "TimeoutError", "TypeError", "ValueError")
KINDS = (*(name for name in vars(errors) if name.endswith("Error")), *BUILT_IN)


def listing(kind: str) -> str:
    """Return a list of what errors of a class can say, in Markdown."""
    found = sorted(messages()[kind], key=lambda text: re.sub(r"[^a-z ]", "", text.lower()))
    return "\n".join("- " + re.sub(r"([\\`*_\[\]<>|{}])", r"\\\1", text) for text in found)


@functools.cache
def messages() -> dict[str, set[str]]:
    """Return the messages of the package, by the name of the error's class."""
    shared = {
        function.name: function
        for function in ast.parse(SHARED.read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef)
    }
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path != SHARED and path.relative_to(PACKAGE).parts[0] not in LEFT_OUT:
            for kind, text in of(ast.parse(path.read_text(encoding="utf-8")), {}, shared):
                if re.search(r"[a-z]+ [a-z]+", text):
                    found[kind].add(re.sub(r"\.{4,}", "...", " ".join(text.split())))
    known, others = errors._ADVICE, errors._LOOK_BEFORE  # noqa: SLF001 - they are read here alone
    for code, advice in {**known, "...": others}.items():
        found["DriverError"].add(f"... failed with ... ({code}). {advice}")
    return found


def of(
    tree: ast.AST, given: Known, shared: dict[str, ast.FunctionDef]
) -> Iterator[tuple[str, str]]:
    """Yield class and text of each error that is made in a tree, where ``given`` is known."""
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.FunctionDef, ast.Module)):
            continue
        known = dict(given)
        for node in _inside(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                known[name] = [*known.get(name, []), node.value]
        for node in _inside(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in KINDS and node.args:
                    yield from ((name, text) for text in _texts(node.args[0], known))
                elif name in shared:
                    names = [argument.arg for argument in shared[name].args.args]
                    pairs = zip(names, node.args, strict=False)  # the rest has a default
                    texts = {
                        key: [ast.Constant(text) for text in _texts(value, known)]
                        for key, value in pairs
                    }
                    yield from of(shared[name], texts, {})


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef):
            yield from _inside(node)


def _texts(node: ast.expr, known: Known) -> list[str]:
    """Return all that an expression can say: a name that is set in two places says two things."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.FormattedValue):
        return _texts(node.value, known)
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, known), *_texts(node.orelse, known)]
    if isinstance(node, (ast.JoinedStr, ast.BinOp)):
        joined = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
        parts = [_texts(part, known) for part in joined]
        return ["".join(chosen) for chosen in itertools.product(*parts)]
    if isinstance(node, ast.Name) and node.id in known:
        others = {name: values for name, values in known.items() if name != node.id}
        return [text for value in known[node.id] for text in _texts(value, others)]
    return ["..."]
