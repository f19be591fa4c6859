"""The code blocks of README.md and docs on a GPU, those of a machine without one included."""

from __future__ import annotations

import shutil

import pytest

from support.documents import COOKBOOK, PAGES, ROOT, blocks, run
from support.engines import run_with_children
from support.libraries import cuda_devices, need

need("torch", "cupy", "warp", "numba", "cuda")

WITH_CODE = [
    path for path in PAGES if any(b.runs(99) for b in blocks(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(path, tmp_path, subjects, pytestconfig):
    # the plugin's, which pytest does not find where StreamKit runs from a checkout
    pytestconfig.addinivalue_line("markers", "streamkit_follows: of a page")
    for name in ("torch", "cupy", "warp"):
        subjects(name)  # warmed up: a first use inside a page could wait for the device
    if not run(path, tmp_path, cuda_devices()):
        pytest.skip("one CUDA device, and its code needs more")


@pytest.mark.parametrize("words", ["DataLoader(", "torch.compile", "jax.dlpack"])
def test_a_recipe_that_needs_more_than_the_libraries_runs_as_a_program(words, tmp_path):
    """It starts processes, compiles, or mixes in a library that is not StreamKit's."""
    if words == "torch.compile":
        pytest.importorskip("triton")
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            pytest.skip("a consumer that is not installed: a C compiler")
    if words == "jax.dlpack":
        pytest.importorskip("jax")
    (recipe,) = (
        block
        for page in COOKBOOK
        for block in blocks(page.read_text(encoding="utf-8"))
        if "not run" in block.marks and words in block.code
    )
    script = tmp_path / "recipe.py"
    script.write_text(recipe.code, encoding="utf-8")
    # or JAX takes most of the memory that this process has not taken
    done = run_with_children("-P", script, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert (done.returncode, done.stdout) == (0, recipe.prints), done.stdout + done.stderr
