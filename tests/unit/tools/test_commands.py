"""The shell's code blocks in README.md and docs: run here or by .ci/run, or they say why not."""

from __future__ import annotations

import doctest
import html
import re
import shlex

import pytest

from streamkit._cli import cli  # its commands
from support.documents import PAGES, ROOT, blocks
from support.programs import ROOTS, streamkit_

np = pytest.importorskip("numpy")

COMMANDS = {*cli.COMMANDS, *cli.PROGRAMS}
CI = (ROOT / ".ci" / "run").read_text()
BLOCKS = [
    (name, block)
    for path in PAGES
    for name in [path.relative_to(ROOT).as_posix()]
    for block in blocks(path.read_text(encoding="utf-8"))
    if block.language == "sh"
]
each = pytest.mark.parametrize(
    ("name", "block"), BLOCKS, ids=[f"{name}:{block.line}" for name, block in BLOCKS]
)


def what_runs(name, block):
    """What runs a block: "ci", "here" or, where it says why, "nothing"; None for none of these."""
    if step := block.marks.get("ci"):
        read = re.search(rf"^(\w+)=\$\(readme {step}\)$", CI, re.MULTILINE)
        there = name == "README.md" and read and f'bash -c "${read[1]}"' in CI
        return "ci" if there else None
    if "not run" in block.marks:
        return "nothing"
    return "here" if re.fullmatch(r"(streamkit [a-z]+.*\n)+", block.code) else None


def command(*arguments):
    """Run ``streamkit ARGUMENTS`` on a machine with NumPy alone, and return what it did."""
    pytest.importorskip("numpy")
    return streamkit_(*arguments, blocked=ROOTS)


@each
def test_a_command_is_run_or_says_why_not(name, block):
    assert what_runs(name, block)


@pytest.mark.parametrize(
    "block",
    [block for name, block in BLOCKS if what_runs(name, block) == "here"],
    ids=lambda block: block.code.strip(),
)
def test_a_command_runs(block, no_driver):
    lines = block.code.splitlines()
    assert lines
    for line in lines:
        done = command(*shlex.split(line)[1:])
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


@each
def test_a_command_is_one_that_there_is(name, block):
    assert set(re.findall(r"\bstreamkit ([a-z]+)", block.code)) <= COMMANDS
    for path in re.findall(r"(?:pytest|python3?) +((?:tests|docs|examples)/[\w./]+)", block.code):
        assert (ROOT / path).exists(), path
    for what in re.findall(r"pip install +(?:--\S+ +)*('[^']*'|[a-z]\S*)", block.code):
        assert what.strip("'").startswith((".", "streamkit-cuda", "tox", "test", "docs", "dev"))


def test_the_quickstart_begins_with_the_line_that_is_run():
    (run,) = [block.code for _, block in BLOCKS if block.marks.get("ci") == "demo"]
    first = next(block.code for name, block in BLOCKS if name == "docs/quickstart.md")
    assert first == run


# -- what the pages say that the demo prints ------------------------------------------------------


def printed_by_the_demo(page):
    """The page's block, with ``...`` for NumPy's version, the queue's number and the error."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = [one.code for one in blocks(text) if one.code.startswith("One array through")]
    return re.sub(r"(NumPy |id=|queue |off by )[\d.e-]+", r"\1...", block)


def agree(page, printed):
    return doctest.OutputChecker().check_output(page, printed, doctest.ELLIPSIS)


@pytest.mark.parametrize("page", ["README.md", "docs/reference/command.md"])
def test_the_demo_prints_what_its_page_says(no_driver, page):
    done, page = command("demo"), printed_by_the_demo(page)
    assert (done.returncode, done.stderr) == (0, "")
    assert agree(page, done.stdout), done.stdout
    queues = set(re.findall(r"(?:id=|queue )(\d+)", done.stdout))  # one for all stages
    assert len(queues) == 1
    assert not agree(page, done.stdout.replace("blur", "sharpen"))
    assert not agree(page, done.stdout.replace("OK", "WRONG"))


def test_the_picture_of_a_missing_wait_is_what_the_command_prints(tmp_path, no_driver):
    svg = (ROOT / "docs" / "pictures" / "race-found.svg").read_text(encoding="utf-8")
    found = re.findall(r'<text [^>]*y="(\d+)"[^>]*>(.*)</text>', svg)  # none for an empty line
    rows = {(int(y) - 30) // 19: html.unescape(text) for y, text in found}
    lines = [rows.get(number, "") for number in range(max(rows) + 1)]
    asked = lines.index("$ streamkit races train.py")
    (tmp_path / "train.py").write_text("\n".join(lines[1:asked]))
    done = command("races", tmp_path / "train.py")
    printed = done.stderr.replace(str(tmp_path), "/home/me").strip()
    assert printed.splitlines() == lines[asked + 1 :]
