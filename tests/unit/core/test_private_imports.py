"""A test imports a private module only where no public name shows the behaviour, and says why."""

from __future__ import annotations

import ast
import re

import pytest

from support.documents import ROOT

pytestmark = pytest.mark.once

TESTS = ROOT / "tests"
FILES = sorted(
    path.relative_to(TESTS).as_posix()
    for tier in ("unit", "nogpu", "emulated", "gpu", "support")
    for path in (TESTS / tier).rglob("*.py")
)
SAMPLES = {  # their strings are source to be searched, not to be run
    "unit/core/test_layers.py",
    "unit/core/test_private_imports.py",
}
PRIVATE = re.compile(
    r"""\s*(?:from|import)\s+streamkit
        (?:\.backends\b | (?:\.\w+)*\._ | (?:\.\w+)*\s+import\s+\(?_)""",
    re.VERBOSE,
)
REASON = re.compile(r"#\s*(?!noqa)\w")


def code_of(source, *, has_samples=False):
    """The lines that are run: those of imports, and those of the programs in strings."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield lines[node.lineno - 1]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not has_samples:
            yield from node.value.splitlines()


def without_reason(lines):
    return [line for line in lines if PRIVATE.match(line) and not REASON.search(line)]


@pytest.mark.parametrize("name", FILES)
def test_a_private_import_says_why(name):
    source = (TESTS / name).read_text(encoding="utf-8")
    assert without_reason(code_of(source, has_samples=name in SAMPLES)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from streamkit._queues import registry",
        "if True:\n    from streamkit._queues.registry import adapter",
        "from streamkit._queues import registry  # noqa: F401",
        "from streamkit import _queues",
        "from streamkit.testing import _gate",
        "from streamkit.backends._warp import memory",
        "import streamkit._cuda.loader as loader",
        'run("\\nimport streamkit._cuda.loader")',
        "from streamkit._queues import (\n    registry,  # too late\n)",
    ],
)
def test_one_without_a_reason_is_found(line):
    assert len(without_reason(code_of(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "from streamkit._queues import registry  # the public calls need a device",
        "from streamkit._queues import registry  # it is loaded  # noqa: F401",
        "from streamkit.protocols import Queue",
        "from streamkit.testing import adversarial",
        "import streamkit as sk",
    ],
)
def test_others_are_not(line):
    assert without_reason(code_of(line)) == []
