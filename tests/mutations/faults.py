"""Faults that people really make, planted by a generator on the syntax tree.

Libraries for this were tried. mutmut runs pytest again and again in one process, and the emulated
driver can be loaded only once in a process; cosmic-ray has one command for all faults, thousands of
tests for each, and no operator that drops a statement, a lock or a ``finally``. Hence this module.

A fault replaces a piece of the source and leaves the rest as it is, so that its diff can be read.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    Found = Iterator[tuple[tuple[int, int], str]]  # which bytes are replaced, and by what text


@dataclass(frozen=True)
class Fault:
    """One wrong piece of a module."""

    file: str
    operator: str
    start: int  # in bytes
    end: int
    new: str
    lines: tuple[int, int]  # the first and the last one of the statement, or of its head
    function: str  # in which it is; "" outside of all, where the import runs it

    @property
    def name(self) -> str:
        return f"{self.file}:{self.lines[0]} {self.operator}"

    def apply(self, source: str) -> str:
        """The source with the fault in it."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def diff(self, source: str) -> str:
        """The lines that differ, with one line around."""
        before, after = source.splitlines(), self.apply(source).splitlines()
        lines = difflib.unified_diff(before, after, self.file, self.file, n=1, lineterm="")
        return "\n".join(itertools.islice(lines, 2, None))


class Place(NamedTuple):
    """A node, and where it is."""

    text: _Text
    node: ast.AST
    parent: ast.AST
    function: ast.FunctionDef | ast.AsyncFunctionDef | None
    statement: ast.stmt


class _Text:
    """A source, by the positions that the syntax tree gives."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        lengths = (len(line) for line in self.data.splitlines(keepends=True))
        self._starts = [0, *itertools.accumulate(lengths)]

    def span(self, first: ast.AST, last: ast.AST | None = None) -> tuple[int, int]:
        last = last or first
        return (
            self._starts[first.lineno - 1] + first.col_offset,
            self._starts[last.end_lineno - 1] + last.end_col_offset,
        )

    def of(self, first: ast.AST, last: ast.AST | None = None) -> str:
        start, end = self.span(first, last)
        return self.data[start:end].decode()

    def moved(self, body: list[ast.stmt], column: int) -> str:
        """Statements with the comments between them, begun at another column, but for the first."""
        by = body[0].col_offset - column
        first, *others = self.of(body[0], body[-1]).split("\n")
        return "\n".join([first, *(line[by:] if line[:by].isspace() else line for line in others)])


# -- the operators ----------------------------------------------------------------------------


def _conditions(place: Place) -> Iterator[ast.expr]:
    """What decides here: of a branch or a loop, or an answer that is one of two."""
    node = place.node
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test
    elif isinstance(node, ast.comprehension):
        yield from node.ifs
    elif isinstance(node, ast.Return | ast.Assign) and (
        isinstance(node.value, ast.Compare)
        or (isinstance(node.value, ast.UnaryOp) and isinstance(node.value.op, ast.Not))
    ):
        yield node.value


def invert_condition(place: Place) -> Found:
    for test in _conditions(place):
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield place.text.span(test), place.text.of(test.operand)
        elif not isinstance(test, ast.Constant):
            yield place.text.span(test), f"not ({place.text.of(test)})"


def drop_part_of_condition(place: Place) -> Found:
    node = place.node
    if isinstance(node, ast.BoolOp) and isinstance(place.parent, ast.If | ast.While | ast.Return):
        word = " and " if isinstance(node.op, ast.And) else " or "
        for part in node.values:
            others = [place.text.of(other) for other in node.values if other is not part]
            yield place.text.span(node), word.join(others)


def drop_branch(place: Place) -> Found:
    node = place.node
    if isinstance(node, ast.If):
        yield place.text.span(node.test), "False"
        if not node.orelse:
            yield place.text.span(node.test), "True"
    elif isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Raise):
        yield place.text.span(node.body[0], node.body[-1]), "raise"


_LOCK = re.compile(r"(?<![bc])lock")  # no block and no clock
_KEEPS = re.compile(rf"keep|kept|held|hold|owner|lent|loan|alive|{_LOCK.pattern}")


def _keeps(place: Place) -> bool:
    return not isinstance(place.node, ast.Raise) and bool(_KEEPS.search(place.text.of(place.node)))


def _dropped(place: Place) -> Found:
    node = place.node
    if (
        (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield))
        or isinstance(node, ast.AugAssign | ast.Raise | ast.Break | ast.Continue | ast.Delete)
        or (isinstance(node, ast.Return) and node.value is None)
        or (
            isinstance(node, ast.Assign)  # of a name it would be an error at once
            and place.function is not None
            and not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
        )
    ):
        yield place.text.span(node), "pass"


def drop_statement(place: Place) -> Found:
    for span, new in _dropped(place):
        if not _keeps(place):
            yield span, new


def drop_keepalive_or_lock(place: Place) -> Found:
    """Drop a statement that keeps, or hand on nothing to be kept."""
    node = place.node
    for span, new in _dropped(place):
        if _keeps(place):
            yield span, new
    is_keyword = isinstance(node, ast.keyword) and not isinstance(node.value, ast.Constant)
    if is_keyword and _KEEPS.search(node.arg or ""):
        yield place.text.span(node.value), "None"
    if isinstance(node, ast.With):
        for item in node.items:
            if _LOCK.search(place.text.of(item.context_expr)):
                yield from _without(place, node, item)


def _without(place: Place, node: ast.With, item: ast.withitem) -> Found:
    if item.optional_vars is not None:
        return  # its block uses what it gives
    others = [other for other in node.items if other is not item]
    if others:
        ends = node.items[-1].optional_vars or node.items[-1].context_expr
        span = place.text.span(node.items[0].context_expr, ends)
        yield span, ", ".join(ast.unparse(other) for other in others)
    else:
        yield place.text.span(node), place.text.moved(node.body, node.col_offset)


def unprotect(place: Place) -> Found:
    """Make a sequence of ``try`` and ``finally``, or of a block and what it is in."""
    node, text = place.node, place.text
    if isinstance(node, ast.Try) and node.finalbody:
        column = node.col_offset
        end = text.moved(node.finalbody, column)
        if node.handlers:
            last = (node.orelse or node.handlers)[-1]
            yield text.span(node), f"{text.of(node, last)}\n{' ' * column}{end}"
        else:
            yield text.span(node), f"{text.moved(node.body, column)}\n{' ' * column}{end}"
    elif isinstance(node, ast.With):
        for item in node.items:
            if not _LOCK.search(text.of(item.context_expr)):
                yield from _without(place, node, item)


_NEVER_SWAPPED = {
    # an error at once
    *("cast", "getattr", "hasattr", "isinstance", "issubclass", "map", "setattr"),
    # no difference
    *("max", "min"),
}


def swap_arguments(place: Place) -> Found:
    node = place.node
    if not isinstance(node, ast.Call) or any(isinstance(arg, ast.Starred) for arg in node.args):
        return
    if isinstance(node.func, ast.Name) and node.func.id in _NEVER_SWAPPED:
        return
    for one, other in itertools.pairwise(node.args):
        first, second = place.text.of(one), place.text.of(other)
        if first != second and not {type(one), type(other)} & {ast.Lambda, ast.GeneratorExp}:
            yield place.text.span(one, other), f"{second}, {first}"


_NEXT = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


def off_by_one(place: Place) -> Found:
    node = place.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _NEXT:
        left, right = place.text.of(node.left), place.text.of(node.comparators[0])
        yield place.text.span(node), f"{left} {_NEXT[type(node.ops[0])]} {right}"
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value < 10**6:
        yield place.text.span(node), str(node.value + 1)


def flip_flag(place: Place) -> Found:
    node = place.node
    is_flag = isinstance(node, ast.Constant) and isinstance(node.value, bool)
    if is_flag and not isinstance(place.parent, ast.While):
        yield place.text.span(node), str(not node.value)


_PAIRS = (
    {"one", "other"}, {"queue", "other"}, {"stream", "other"}, {"source", "target"},
    {"before", "after"}, {"begin", "end"}, {"first", "second"}, {"first", "last"},
    {"old", "new"}, {"mine", "theirs"}, {"handle", "context"}, {"LEGACY", "PER_THREAD"},
)  # fmt: skip


def take_another(place: Place) -> Found:
    """Use another stream, or whatever else there is two of: a parameter of the same type."""
    node, function = place.node, place.function
    if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and function):
        return
    known = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    types = {arg.arg: ast.dump(arg.annotation) for arg in known if arg.annotation is not None}
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    for name in sorted(names.union(arg.arg for arg in known)):
        same = name in types and types.get(node.id) == types[name]
        if name != node.id and (same or {name, node.id} in _PAIRS):
            yield place.text.span(node), name


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and (node.id.istitle() or node.id in {"dict", "tuple"})


def _is_key(place: Place) -> bool:
    parent, names = place.parent, ()
    if isinstance(parent, ast.Subscript):
        return parent.slice is place.node and not _is_type(parent.value)
    if isinstance(parent, ast.Assign):
        names = [getattr(target, "id", getattr(target, "attr", "")) for target in parent.targets]
    elif isinstance(parent, ast.Return) and place.function:
        names = [place.function.name]
    elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        return parent.func.attr in {"get", "setdefault", "pop", "add", "discard", "first"}
    elif isinstance(parent, ast.Compare):
        is_equality = isinstance(parent.ops[0], ast.Eq | ast.NotEq)
        return is_equality or parent.left is place.node
    return any("key" in name or "signature" in name for name in names)


def shorten_key(place: Place) -> Found:
    node = place.node
    if isinstance(node, ast.Tuple) and len(node.elts) > 1 and _is_key(place):
        for part in node.elts:
            others = [place.text.of(other) for other in node.elts if other is not part]
            text = ", ".join(others) if len(others) > 1 else f"{others[0]},"
            is_enclosed = place.text.of(node).startswith("(")
            yield place.text.span(node), f"({text})" if is_enclosed else text


OPERATORS = {
    "condition inverted": invert_condition,
    "part of a condition dropped": drop_part_of_condition,
    "branch dropped": drop_branch,
    "statement dropped": drop_statement,
    "keep-alive or lock removed": drop_keepalive_or_lock,
    "finally or with unprotected": unprotect,
    "arguments swapped": swap_arguments,
    "off by one": off_by_one,
    "flag inverted": flip_flag,
    "another one of two": take_another,
    "key shortened": shorten_key,
}


# -- all faults of a module, and a sample of them ---------------------------------------------

_WORDING = re.compile(r"__repr__|__str__|_repr_\w+_|__dir__|__all__|__slots__|__match_args__")


def _does_not_matter(node: ast.AST, parent: ast.AST) -> bool:
    """Whether a fault in it would be one of words or types only."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
        return bool(_WORDING.fullmatch(node.name) or decorators & {"overload", "abstractmethod"})
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(_WORDING.fullmatch(getattr(target, "id", "")) for target in targets)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in {"TYPE_CHECKING", "__name__ == '__main__'"}
    is_frozen = isinstance(node, ast.keyword) and node.arg == "frozen"  # of a dataclass
    if is_frozen or isinstance(parent, ast.Raise):  # whose words these are
        return True
    if isinstance(node, ast.Compare):
        return ast.unparse(node.left) in {"sys.version_info", "sys.platform"}
    return isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom | ast.Global)


_ANNOTATIONS = {"annotation", "returns", "type_params"}


def _places(text: _Text, tree: ast.Module) -> Iterator[Place]:
    def look(node: ast.AST, function, statement) -> Iterator[Place]:
        for field, value in ast.iter_fields(node):
            if field in _ANNOTATIONS:
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or _does_not_matter(child, node):
                    continue
                around = child if isinstance(child, ast.stmt | ast.ExceptHandler) else statement
                is_inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                inner = node if is_inside and field == "body" else function
                if hasattr(child, "lineno") or isinstance(child, ast.comprehension):
                    yield Place(text, child, node, inner, around)
                yield from look(child, inner, around)

    yield from look(tree, None, tree)


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """Those of a statement, or of the head of one that has a body."""
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


@functools.cache
def plant(file: str, source: str) -> list[Fault]:
    """All faults of a module, in the order of its source."""
    text, found = _Text(source), {}
    for place in _places(text, ast.parse(source)):
        for operator, look in OPERATORS.items():
            for (start, end), new in look(place):
                function = place.function.name if place.function else ""
                lines = _lines(place.statement)
                fault = Fault(file, operator, start, end, new, lines, function)
                found.setdefault((start, end, new), fault)
    return [fault for _, fault in sorted(found.items())]


def _is_sound(fault: Fault, source: str) -> bool:
    """Whether it makes another module, and not one that cannot be compiled."""
    try:
        changed = compile(fault.apply(source), fault.file, "exec", ast.PyCF_ONLY_AST)
        compile(changed, fault.file, "exec")
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


def sample(
    sources: dict[str, str], count: int, seed: int, changed: set[tuple[str, int]] = frozenset()
) -> list[Fault]:
    """So many faults of these modules, of each operator about as many, and one a line.

    Those of the lines that have changed come first, by file and line.
    """
    faults = [fault for file, source in sorted(sources.items()) for fault in plant(file, source)]
    chance = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
    groups = {operator: [] for operator in OPERATORS}
    for fault in faults:
        groups[fault.operator].append(fault)
    for group in groups.values():
        chance.shuffle(group)
    in_turn = filter(None, itertools.chain(*itertools.zip_longest(*groups.values())))
    chosen = {}
    for fault in sorted(in_turn, key=lambda fault: not _is_changed(fault, changed)):
        if len(chosen) == count:
            break
        if _is_sound(fault, sources[fault.file]):
            chosen.setdefault((fault.file, fault.lines[0]), fault)
    return list(chosen.values())


def _is_changed(fault: Fault, changed: set[tuple[str, int]]) -> bool:
    first, last = fault.lines
    return any((fault.file, line) in changed for line in range(first, last + 1))
