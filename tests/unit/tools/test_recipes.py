"""The recipes for worker processes, on host streams."""

from __future__ import annotations

import textwrap

import pytest

from support.documents import ROOT, blocks
from support.programs import run_python


def run(script):
    done = run_python("-W", "error", script)
    assert done.stderr == ""
    return done.stdout


def test_the_guides_program_with_worker_processes(tmp_path):
    """The page is no module that a spawned worker could import: the block is a file here."""
    pytest.importorskip("numpy")
    page = ROOT / "docs" / "guides" / "asyncio.md"
    (block,) = (one for one in blocks(page.read_text()) if "multiprocessing" in one.code)
    script = tmp_path / "service.py"
    script.write_text(block.code)
    assert run(script) == block.prints


def test_a_worker_process_is_sent_no_stream(tmp_path):
    """It is refused with the advice to make one there."""
    script = tmp_path / "service.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing

        import streamkit as sk

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            with spawn.Pool(1) as pool:
                try:
                    pool.apply(id, [sk.new_stream("cpu")])
                except TypeError as error:
                    print("Make a stream in each process" in str(error))
        """)
    )
    assert run(script) == "True\n"
