"""The layers of the package, drawn from the table that a test holds.

``LAYERS`` of ``tests/unit/test_layers.py`` says which file stands where, and that test compares it
with what the files import. What a file does is the first line of its docstring.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "unit" / "test_layers.py"
PACKAGE = ROOT / "streamkit"


def layers() -> tuple[tuple[str, ...], ...]:
    """Return the table, lowest layer first."""
    for node in ast.parse(TABLE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            table: tuple[tuple[str, ...], ...] = ast.literal_eval(node.value)
            return table
    raise LookupError(f"{TABLE} has no LAYERS")


def purpose(name: str) -> str:
    """Return the first line of a module's or a folder's docstring."""
    path = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def drawing() -> str:
    """Return the layers as HTML, the highest on top as users see it."""
    rows = []
    for names in reversed(layers()):
        modules = "".join(
            f'<li title="{escape(purpose(name), quote=True)}">{escape(name)}</li>' for name in names
        )
        rows.append(f"<ul>{modules}</ul>")
    label = "The layers of the package, the highest on top: each imports from those below it only"
    return f'<div class="layers" role="img" aria-label="{label}">{"".join(rows)}</div>'


def listing() -> str:
    """Return the same in words, as a Markdown table."""
    lines = ["| layer | file | what it is |", "|---|---|---|"]
    for level, names in reversed(list(enumerate(layers()))):
        lines += [f"| {level} | `{name}` | {purpose(name).replace('``', '`')} |" for name in names]
    return "\n".join(lines)
