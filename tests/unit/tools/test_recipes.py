"""The recipe for worker processes, on host streams."""

from __future__ import annotations

import pytest

from support.documents import ROOT, blocks
from support.programs import run_python


def test_the_guides_program_with_worker_processes(tmp_path):
    """The page is no module that a spawned worker could import: the block is a file here."""
    pytest.importorskip("numpy")
    page = ROOT / "docs" / "guides" / "asyncio.md"
    (block,) = (one for one in blocks(page.read_text()) if "multiprocessing" in one.code)
    script = tmp_path / "service.py"
    script.write_text(block.code)
    done = run_python("-W", "error", script)
    assert (done.stdout, done.stderr) == (block.prints, "")
