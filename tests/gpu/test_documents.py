"""The code blocks of README.md and docs on a GPU, those of a machine without one included."""

from __future__ import annotations

import pytest

from support.documents import PAGES, ROOT, blocks, run
from support.libraries import cuda_devices, need

need("torch", "cupy", "warp", "numba", "cuda")

WITH_CODE = [
    path for path in PAGES if any(b.runs(99) for b in blocks(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(path, tmp_path, subjects, pytestconfig):
    # the plugin's, which pytest does not find where StreamKit runs from a checkout
    pytestconfig.addinivalue_line("markers", "streamkit_follows: of a page")
    found = blocks(path.read_text(encoding="utf-8"))
    if any("audit(times=True)" in block.code for block in found if block.runs(99)):
        pytest.importorskip("cupti")  # of CUDA 13 alone
    for name in ("torch", "cupy", "warp"):
        subjects(name)  # warmed up: a first use inside a page could wait for the device
    if not run(path, tmp_path, cuda_devices()):
        pytest.skip("one CUDA device, and its code needs more")
