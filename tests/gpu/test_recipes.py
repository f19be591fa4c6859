"""The recipes of the cookbook that need more than a GPU and its libraries, each as a program."""

from __future__ import annotations

import shutil

import pytest

from support.documents import ROOT, blocks
from support.engines import run_with_children
from support.libraries import need

need("torch", "cupy", "cuda")

COOKBOOK = ROOT / "docs" / "cookbook.md"


def recipe(names, tmp_path):
    """Run the one block that is not run elsewhere and has these words; return what it prints."""
    (block,) = (
        one
        for one in blocks(COOKBOOK.read_text(encoding="utf-8"))
        if "not run" in one.marks and names in one.code
    )
    script = tmp_path / "recipe.py"
    script.write_text(block.code, encoding="utf-8")
    done = run_with_children("-P", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert block.prints is not None
    return done.stdout, block.prints


def test_the_workers_of_a_data_loader_leave_cuda_to_the_main_process(tmp_path):
    printed, shown = recipe("DataLoader(", tmp_path)
    assert printed == shown


def test_a_compiled_function_and_cupy_share_a_scope(tmp_path):
    pytest.importorskip("triton")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("a consumer that is not installed: a C compiler, for torch.compile")
    printed, shown = recipe("torch.compile", tmp_path)
    assert printed == shown


def test_an_array_of_jax_is_kept_until_it_was_read(tmp_path):
    pytest.importorskip("jax")
    printed, shown = recipe("jax.dlpack", tmp_path)
    assert printed == shown
