"""The code blocks of README.md and docs, and how each of them is run.

A page is one program whose blocks run one after the other in one module, because a guide develops
one example. On the pages of ``PASTED`` each block is a program of its own, because a reader takes
one block and leaves the rest. An HTML comment right above a block, which readers do not see, says
what the block needs, or why it is not run:

    <!-- gpu -->                    needs a CUDA device and the libraries
    <!-- gpus: 2 -->                needs two
    <!-- raises: ScopeError -->     ends with that error; also <!-- gpu, raises: ... -->
    <!-- not run: reason -->
    <!-- ci: demo -->               a command, of the shell, that .ci/run reads here and runs
    <!-- hidden                     code of its own, for what a reader would have already;
    import numpy as np              `hidden gpu` for a machine with a GPU
    -->

If a block right below has no language, or ``text``, it is what the one above it prints last, since
a library may print something when it loads a kernel; ``...`` stands for anything. The unit tier
runs a block of the shell that calls ``streamkit`` alone and has no ``ci`` and no ``not run``.
"""

from __future__ import annotations

import builtins
import contextlib
import doctest
import functools
import io
import symtable
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COOKBOOK = sorted((ROOT / "docs" / "cookbook").glob("*.md"))
PASTED = [ROOT / "README.md", ROOT / "docs" / "index.md", *COOKBOOK]


@dataclass
class Block:
    """One code block of a page."""

    line: int  # of its first line of code, from 0
    language: str
    code: str
    marks: dict[str, str]
    prints: str | None = None

    def runs(self, devices: int) -> bool:
        needed = int(self.marks.get("gpus", "gpu" in self.marks))
        return self.language == "python" and "not run" not in self.marks and needed <= devices


@functools.cache
def blocks(text: str) -> list[Block]:
    """Return the blocks of a page, the hidden ones too, in their order."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    before = None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            comment = token.content.strip()
            head, _, code = comment.removeprefix("<!--").removesuffix("-->").partition("\n")
            if head.split()[:1] == ["hidden"]:
                wants = dict.fromkeys(head.split()[1:], "")
                found.append(Block(token.map[0] + 1, "python", code, wants))
            elif comment.startswith("<!--"):
                marks = dict(_mark(part) for part in head.split(", "))
            continue
        if token.type == "fence" and not token.info.startswith("{"):  # that is a directive
            language = token.info.strip()
            if language in ("", "text") and before is not None and before.language == "python":
                before.prints = token.content
            else:
                before = Block(token.map[0] + 1, language, token.content, marks)
                found.append(before)
        elif token.level == 0:
            before = None
        marks = {}
    return found


def _mark(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition(":")
    return name, value.strip()


def source_of(chosen: list[Block]) -> str:
    """Return one Python file of the blocks, with each line where it is in the page."""
    lines: list[str] = []
    for block in chosen:
        lines += [""] * (block.line - len(lines)) + block.code.splitlines()
    return "\n".join(lines) + "\n"


def run(path: Path, folder: Path, devices: int) -> int:
    """Run the blocks of a page that so many CUDA devices can run; return how many these were.

    The page becomes a file in ``folder``, for libraries that read the source of a function.
    """
    chosen = [block for block in blocks(path.read_text(encoding="utf-8")) if block.runs(devices)]
    program = folder / f"page_{path.stem.replace('-', '_')}.py"
    program.write_text(source_of(chosen), encoding="utf-8")
    programs = [[block] for block in chosen] if path in PASTED else [chosen]
    for one in programs:
        module = sys.modules[program.stem] = types.ModuleType(program.stem)
        module.__file__ = str(program)
        try:
            for block in one:
                _run(block, path, program, module.__dict__)
        finally:
            del sys.modules[program.stem]
    return len(chosen)


def taken_from_elsewhere(code: str) -> set[str]:
    """Return the names that a program uses, and neither makes nor imports."""
    tables = [symtable.symtable(code, "block", "exec")]
    made = {one.get_name() for one in tables[0].get_symbols() if one.is_assigned()}
    made |= {one.get_name() for one in tables[0].get_symbols() if one.is_imported()}
    used = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {one.get_name() for one in table.get_symbols() if one.is_global()}
    return used - made - vars(builtins).keys()


def _run(block: Block, path: Path, program: Path, names: dict[str, object]) -> None:
    out, expected = io.StringIO(), block.marks.get("raises")
    where = f"{path.name}:{block.line + 1}"
    code = compile("\n" * block.line + block.code, str(program), "exec", dont_inherit=True)
    try:
        with contextlib.redirect_stdout(out):
            exec(code, names)  # noqa: S102 - it is the documentation
    except Exception as error:
        if expected not in {kind.__name__ for kind in type(error).__mro__}:
            error.add_note(f"in the code block at {where}")
            raise
    else:
        assert expected is None, f"{where} raises no {expected}"
    if block.prints is not None:
        printed = out.getvalue().splitlines(keepends=True)
        last = "".join(printed[-len(block.prints.splitlines()) :])
        same = doctest.OutputChecker().check_output(block.prints, last, doctest.ELLIPSIS)
        assert same, f"{where} prints\n{out.getvalue()}\nand the page says\n{block.prints}"
