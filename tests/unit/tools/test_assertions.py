"""No test passes because what it looks through is empty."""

from __future__ import annotations

import ast

import pytest

from support.documents import ROOT

pytestmark = pytest.mark.once

TESTS = ROOT / "tests"
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))
FUNCTIONS = {"enumerate", "list", "range", "reversed", "sorted", "tuple", "zip"}


class Literals:
    """What is seen in the source to have elements."""

    def __init__(self, *blocks):
        self.names = set()
        for block in blocks:
            for node in block:
                if isinstance(node, ast.Assign) and self.has_elements(node.value):
                    self.names |= {to.id for to in node.targets if isinstance(to, ast.Name)}

    def has_elements(self, node):
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return any(
                    not isinstance(one, ast.Starred) or self.has_elements(one.value)
                    for one in parts
                )
            case ast.Dict(keys=parts) | ast.Constant(value=str(parts)):
                return bool(parts)
            case ast.Name(id=name):
                return name in self.names
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return name == "range" or any(map(self.has_elements, args))  # zip is strict here
            case (
                ast.ListComp(generators=[ast.comprehension(iter=of, ifs=[])])
                | ast.Call(func=ast.Attribute(value=of, attr="items" | "keys" | "values"))
            ):
                return self.has_elements(of)
        return False


def assertions(node, literals, *, is_maybe_never=False):
    """Yield for each assertion of a test whether it can be that it is never made."""
    match node:
        case ast.For(iter=looped):
            is_maybe_never = is_maybe_never or not literals.has_elements(looped)
        case ast.Assert(
            test=ast.Call(
                func=ast.Name(id="all"),
                args=[ast.GeneratorExp(generators=[ast.comprehension(iter=looped), *_])],
            )
        ):
            yield is_maybe_never or not literals.has_elements(looped)
        case ast.Assert():
            yield is_maybe_never
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in {
            "assume",  # hypothesis refuses a test for which it finds no example
            "raises",
            "warns",
        }:
            yield is_maybe_never
    for child in ast.iter_child_nodes(node):
        yield from assertions(child, literals, is_maybe_never=is_maybe_never)


def maybe_empty(source):
    """The tests whose assertions are all made for each of something that may be nothing."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found = list(assertions(node, Literals(module.body, ast.walk(node))))
            if found and all(found):
                yield node.name


@pytest.mark.parametrize("name", FILES)
def test_each_test_asserts_something_outside_of_loops_that_may_be_empty(name):
    found = list(maybe_empty((TESTS / name).read_text(encoding="utf-8")))
    assert found == [], "assert first that what they loop over is not empty"


@pytest.mark.parametrize(
    "body",
    [
        "for one in found():\n        assert one",
        "for one in found():\n        for _ in range(3):\n            assert one",
        "for one in found():\n        with pytest.raises(TypeError):\n            one()",
        "assert all(one for one in found())",
        "for one in [*found()]:\n        assert one",
    ],
)
def test_assertions_that_may_never_be_made_are_found(body):
    assert list(maybe_empty(f"def test_it():\n    {body}\n")) == ["test_it"]


@pytest.mark.parametrize(
    "body",
    [
        "assert found()\n    for one in found():\n        assert one",
        "for one in (1, 2):\n        assert one",
        "for one in KNOWN:\n        assert one",
        "for one, other in zip(found(), KNOWN, strict=True):\n        assert one == other",
        "made = [found() for _ in range(3)]\n    for one in made:\n        assert one",
        "for one in found():\n        one.check()",
    ],
)
def test_other_assertions_are_not_found(body):
    assert list(maybe_empty(f"KNOWN = [1]\ndef test_it():\n    {body}\n")) == []
