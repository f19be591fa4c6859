"""Each wait of the examples and pages is removed in turn on a GPU: ``races`` finds it, at its line.

tests/unit/tools/test_missing_waits.py does the same on host streams.
"""

from __future__ import annotations

import pytest

from support.libraries import need
from support.missing_wait_cases import GPU
from support.missing_waits import outcomes, program_of

need("torch", "cupy", "warp")


@pytest.fixture(scope="module", autouse=True)
def libraries(subjects):
    """Warmed up: a first use of a library waits for the device, which orders everything."""
    for name in ("torch", "cupy", "warp"):
        subjects(name)


@pytest.mark.filterwarnings(  # a program without its join leaves a capture behind
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("name", GPU.programs)
def test_each_wait_that_is_removed_is_found_at_its_line(name, tmp_path, pytestconfig):
    # the plugin's, which pytest does not find where StreamKit runs from a checkout
    pytestconfig.addinivalue_line("markers", "streamkit_follows: of a page")
    whole, found = outcomes(program_of(name, 1), tmp_path)
    assert found
    assert len(whole.certain) == GPU.on_purpose.get(name, 0), whole
    assert len(whole.possible) == GPU.possible.get(name, 0), whole
    missed = [site.call for site, races in found.items() if not races]
    assert sorted(missed) == sorted(GPU.not_found.get(name, ()))
