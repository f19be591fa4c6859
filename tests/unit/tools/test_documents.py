"""Every code block of README.md and docs is run, or says why not; and so is every docstring's."""

from __future__ import annotations

import ast
import doctest
import re
import tomllib
from pathlib import Path

import pytest

import streamkit
from support import documents
from support.documents import PAGES, ROOT, blocks
from support.programs import ROOTS, python, run_python

pytest.importorskip("numpy")

PROGRAM = {"gpu", "gpus", "raises", "not run"}
LANGUAGES = {"python", "sh", "toml", "text", ""}
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
BLOCKS = {
    name: blocks(path.read_text(encoding="utf-8")) for name, path in zip(NAMES, PAGES, strict=True)
}
WITH_CODE = [name for name in NAMES if any(block.language == "python" for block in BLOCKS[name])]


@pytest.mark.parametrize(
    "name", [name for name in WITH_CODE if any(block.runs(0) for block in BLOCKS[name])]
)
def test_the_code_of_a_page_runs_without_a_gpu(name, tmp_path, no_driver):
    ran = python(
        f"import pathlib\nfrom support import documents\n"
        f"path = pathlib.Path({str(ROOT / name)!r})\n"
        f"print(documents.run(path, pathlib.Path({str(tmp_path)!r}), 0))",
        path=[Path(documents.__file__).parents[1]],
        blocked=ROOTS,
        options=["-W", "error"],
        loaded=("streamkit", "numpy", "markdown_it", "doctest"),
    )
    assert int(ran.split()[-1]) == sum(block.runs(0) for block in BLOCKS[name])


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_files_that_a_page_names_are_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests|examples|docs/evidence)/[\w./]+?)/?`", text))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_of_a_page_for_a_gpu_compiles(name):
    compile(documents.source_of([b for b in BLOCKS[name] if b.runs(99)]), name, "exec")


@pytest.mark.parametrize("path", documents.PASTED, ids=lambda path: path.name)
def test_a_block_that_is_pasted_alone_makes_all_that_it_uses(path):
    """Also one for a GPU, which runs in that tier: here its names are looked up."""
    text = path.read_text(encoding="utf-8")
    assert "<!-- hidden" not in text, "a reader does not see it"
    for block in (one for one in blocks(text) if one.language == "python"):
        assert documents.taken_from_elsewhere(block.code) == set(), f"{path.name}:{block.line + 1}"


@pytest.mark.parametrize("path", documents.PASTED[:2], ids=lambda path: path.name)
def test_a_block_of_the_first_pages_can_be_pasted_line_by_line(path):
    """Python's plain prompt ends a compound statement at an empty line, and needs one there."""
    found = [one.code for one in BLOCKS[path.relative_to(ROOT).as_posix()] if "import" in one.code]
    statements = [(code, one) for code in found for one in ast.parse(code).body]
    compound = [(code, one) for code, one in statements if hasattr(one, "body")]
    own = [[*code.splitlines(), ""][one.lineno - 1 : one.end_lineno + 1] for code, one in compound]
    assert [lines.index("") for lines in own] == [len(lines) - 1 for lines in own] != []


def test_the_tests_of_a_library_that_follows_are_skipped_without_a_gpu(tmp_path):
    page = ROOT / "docs" / "guides" / "library.md"
    (block,) = (one for one in blocks(page.read_text()) if "import yours" in one.code)
    assert len([line for line in block.code.splitlines() if line]) <= 10
    (tmp_path / "yours.py").write_text("scale = normalise = len\n")
    (tmp_path / "test_streams.py").write_text(block.code)
    plugin = "-p", "streamkit.testing.pytest_plugin", "-p", "no:cacheprovider"
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    done = run_python("-m", "pytest", *plugin, "-rs", "--strict-markers", tmp_path, **settings)
    assert done.returncode == 0, done.stdout
    assert "needs a CUDA device, and this machine has none" in done.stdout
    assert "2 skipped" in done.stdout


def test_the_guides_program_with_worker_processes(tmp_path):
    """The page is no module that a spawned worker could import: the block is a file here."""
    (block,) = (one for one in BLOCKS["docs/guides/asyncio.md"] if "multiprocessing" in one.code)
    script = tmp_path / "service.py"
    script.write_text(block.code)
    done = run_python("-W", "error", script)
    assert (done.stdout, done.stderr) == (block.prints, "")


def test_each_block_is_of_a_language_that_is_tested():
    assert {block.language for name in NAMES for block in BLOCKS[name]} <= LANGUAGES


def test_what_is_not_run_says_why():
    assert NAMES
    for name in NAMES:
        for block in BLOCKS[name]:
            where, marks = f"{name}:{block.line}", set(block.marks)
            known = {"ci", "not run"} if block.language == "sh" else PROGRAM
            assert marks <= known, where
            assert len(block.marks.get("not run", "a long reason").split()) > 2


def test_toml_is_toml():
    found = [block for name in NAMES for block in BLOCKS[name] if block.language == "toml"]
    assert [tomllib.loads(block.code) for block in found]


# -- the checks can fail ----------------------------------------------------------------------


def run(text, tmp_path, devices=0):
    page = tmp_path / "page.md"
    page.write_text(text)
    return documents.run(page, tmp_path, devices)


def test_a_block_that_raises_fails_and_is_named(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        run("# a\n\n```python\nx = 1\n\nx / 0\n```\n", tmp_path)
    assert caught.value.__notes__ == ["in the code block at page.md:4"]
    assert caught.traceback[-1].lineno == 5  # from 0: the line of the page


def test_a_block_that_prints_something_else_fails(tmp_path):
    page = (
        "```python\nprint('loading')\nprint('it took 7 ms')\n```\n\n```text\nit took {} ms\n```\n"
    )
    assert run(page.format("..."), tmp_path) == 1
    with pytest.raises(AssertionError, match="it took 7 ms"):
        run(page.format(8), tmp_path)


def test_an_error_is_expected_by_its_name(tmp_path):
    page = "<!-- raises: {} -->\n```python\n1 / 0\n```\n"
    assert run(page.format("ArithmeticError"), tmp_path) == 1
    with pytest.raises(ZeroDivisionError):
        run(page.format("KeyError"), tmp_path)
    with pytest.raises(AssertionError, match="raises no KeyError"):
        run("<!-- raises: KeyError -->\n```python\n1 / 1\n```\n", tmp_path)


# -- docstrings -------------------------------------------------------------------------------


def docstrings():
    for path in sorted(Path(streamkit.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text and ">>>" in text:
                    yield pytest.param(text, id=f"{path.stem}.{getattr(node, 'name', '')}")


@pytest.mark.parametrize("text", [*docstrings()])
def test_the_example_of_a_docstring_is_right(text):
    test = doctest.DocTestParser().get_doctest(text, {"sk": streamkit}, "example", None, 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)
