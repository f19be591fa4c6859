"""Each wait of the examples and pages is removed in turn on a GPU: ``races`` finds it, at its line.

Other tests have the programs of several processes and devices;
tests/unit/test_missing_waits.py does
the same on host streams.
"""

from __future__ import annotations

import pytest

from support.libraries import need
from support.missing_waits import outcomes, program_of

need("torch", "cupy", "warp")

ON_PURPOSE = {
    "docs/cookbook.md": 2,
    "docs/guides/races.md": 3,
    "docs/guides/testing.md": 1,
    "examples/17_find_the_missing_wait.py": 1,
}
"""How many races a program shows that it has."""

POSSIBLE = {"examples/07_thread_pool.py": 1}  # parts of one array, by functions that nobody knows

CAPTURE = "the work is captured: graph.races() looks there"
LISTS = "the functions use no arrays"
NOT_FOUND = {
    "docs/concepts/queues.md": {"b.wait(ready)": LISTS},
    "docs/reference/testing.md": {"b.wait(a)": LISTS},
}
"""Why nothing is found without a call, by program."""

PROGRAMS = [
    "README.md",
    *(f"examples/{name}.py" for name in (
        "01_torch_cupy", "02_order_two_streams", "03_library_author", "04_without_a_gpu",
        "06_two_devices", "07_thread_pool", "17_find_the_missing_wait",
    )),
    *(f"docs/{name}.md" for name in (
        "index", "quickstart", "cookbook", "concepts/queues", "concepts/capture", "guides/arrays",
        "guides/graphs", "guides/library", "guides/races", "guides/testing", "guides/torch-cupy",
        "guides/warp", "guides/wrong-queue", "reference/functions", "reference/streams",
        "reference/testing",
    )),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def libraries(subjects):
    """Warmed up: a first use of a library waits for the device, which orders everything."""
    for name in ("torch", "cupy", "warp"):
        subjects(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_wait_that_is_removed_is_found_at_its_line(name, tmp_path):
    whole, found = outcomes(program_of(name, 1), tmp_path)
    assert found
    missed = [site.call for site, races in found.items() if not races]
    assert (len(whole.certain), len(whole.possible), sorted(missed)) == (
        ON_PURPOSE.get(name, 0),
        POSSIBLE.get(name, 0),
        sorted(NOT_FOUND.get(name, ())),
    )
