"""The folders of the package, drawn from what their files import.

``LAYERS`` of ``tests/unit/core/test_layers.py`` is the order of the folders; that test holds it
against the imports. What a folder is for is the first line of its docstring.
"""

from __future__ import annotations

import ast
import functools
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TABLE = next((ROOT / "tests").rglob("test_layers.py"))
PACKAGE = ROOT / "streamkit"

WIDTH, HEIGHT, GAP, MARGIN = 150, 34, 26, 20


def layers() -> tuple[str, ...]:
    """Return the order of the folders, the lowest first."""
    for node in ast.parse(TABLE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            table: tuple[str, ...] = ast.literal_eval(node.value)
            return table
    raise LookupError(f"{TABLE} has no LAYERS")


def module_name(path: Path, package: Path = PACKAGE) -> str:
    """Return the dotted name of the module in a file."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder(module: str) -> str:
    """Return the folder or top-level module that a module of the package is in."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or "__init__"


def imports(source: str, known: set[str]) -> Iterator[str]:
    """Yield each module of the package that the source imports: lazily and for types, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: a relative import hides where it goes")
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                if member in known:
                    yield member
                elif node.module in known:
                    yield node.module


@functools.cache
def graph(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return, for each module, the other modules of the package that it imports."""
    files = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    known = set(files)
    return {
        name: set(imports(path.read_text(encoding="utf-8"), known)) - {name}
        for name, path in files.items()
    }


def folders() -> dict[str, set[str]]:
    """Return, for each folder, the folders before it that its files import.

    The few imports that go up, which that test lists, are left out.
    """
    order = layers()
    found: dict[str, set[str]] = {name: set() for name in order}
    for module, imported in graph().items():
        own = folder(module)
        before = order[: order.index(own)]
        found[own] |= {folder(other) for other in imported}.intersection(before)
    return found


def direct(of: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without each arrow that a longer way says already."""

    def below(name: str) -> set[str]:
        return set().union(*({other} | below(other) for other in of[name]))

    return {
        name: {other for other in others if not any(other in below(one) for one in others)}
        for name, others in of.items()
    }


def ranks(of: dict[str, set[str]]) -> dict[str, int]:
    """Return how many folders stand below each one, on its longest way down."""
    found: dict[str, int] = {}
    for name in layers():
        found[name] = 1 + max((found[other] for other in of[name]), default=-1)
    return found


def purpose(name: str) -> str:
    """Return the first line of a module's or a folder's docstring."""
    path = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def drawing() -> str:
    """Return the folders as an SVG picture: users above, an arrow to each folder used directly."""
    of = folders()
    rank = ranks(of)
    top = max(rank.values())
    rows = [[name for name in layers() if rank[name] == level] for level in range(top + 1)]
    wide = max(map(len, rows))
    width = 2 * MARGIN + wide * WIDTH + (wide - 1) * GAP
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * GAP
    at: dict[str, tuple[float, float]] = {}
    for level, names in enumerate(rows):
        taken = len(names) * WIDTH + (len(names) - 1) * GAP
        for number, name in enumerate(names):
            x = (width - taken) / 2 + number * (WIDTH + GAP)
            at[name] = x, height - MARGIN - HEIGHT - level * (HEIGHT + GAP)
    parts = []
    for name, others in direct(of).items():
        for other in sorted(others):
            (x1, y1), (x2, y2) = at[name], at[other]
            x1, y1, x2 = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2
            bend = (
                0
                if rank[name] - rank[other] == 1
                else WIDTH * 0.75 * (1 if x1 >= width / 2 else -1)
            )
            parts.append(
                f'<path class="edge" d="M{x1:.0f} {y1:.0f}C{x1 + bend:.0f} {y1 + GAP:.0f} '
                f'{x2 + bend:.0f} {y2 - GAP:.0f} {x2:.0f} {y2:.0f}"/>'
                f'<path class="edge-tip" d="M{x2 - 4:.0f} {y2 - 8:.0f}l4 8l4 -8z"/>'
            )
    for name, (x, y) in at.items():
        parts.append(
            f"<g><title>{escape(purpose(name))}</title>"
            f'<rect class="n" x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<text class="mid on-n" x="{x + WIDTH / 2:.0f}" y="{y + 22:.0f}">{escape(name)}'
            "</text></g>"
        )
    label = "The folders of the package. An arrow goes from a folder to one that it imports."
    return (
        f'<svg class="layers" role="img" aria-label="{label}" viewBox="0 0 {width} {height}" '
        f'width="{width}">{"".join(parts)}</svg>'
    )


def listing() -> str:
    """Return the same in words, as a Markdown table, the highest folder first."""
    of = folders()
    lines = ["| folder | what it is | imports |", "|---|---|---|"]
    for name in reversed(layers()):
        imported = ", ".join(f"`{other}`" for other in layers() if other in of[name])
        lines.append(f"| `{name}` | {purpose(name).replace('``', '`')} | {imported} |")
    return "\n".join(lines)
