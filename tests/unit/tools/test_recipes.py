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
