"""Each wait of the examples and pages is removed in turn: ``races`` finds it, at its line.

They run on host streams, with NumPy.
"""

from __future__ import annotations

import pytest

from support.missing_waits import outcomes, program_of

pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("no_driver")

ON_PURPOSE = {
    "docs/cookbook.md": 2,
    "docs/guides/races.md": 2,
    "docs/guides/testing.md": 1,
    "examples/17_missing_wait.py": 1,
}
"""How many races a program shows that it has."""

POSSIBLE = {"examples/07_thread_pool.py": 1}  # parts of one array, by functions that nobody knows

BODY = "the work is the body of a scope, which is not looked at"
LISTS = "the functions use no NumPy arrays"
GPU = "it runs on a GPU alone"
BLOCK = "the code of the block itself uses the array, on one of the two sides"
NOT_FOUND = {
    "docs/concepts/queues.md": {"b.wait(ready)": LISTS},
    "docs/quickstart.md": {"sk.use(s, ordered=True)": BODY},
    "docs/reference/testing.md": {"b.wait(a)": LISTS},
    "examples/01_torch_cupy.py": {"sk.use(s, ordered=True)": BODY},
    "examples/02_order_two_streams.py": {"reader.wait(writer)": BLOCK},  # the first of two
    "examples/03_library_author.py": {"s.wait(theirs)": GPU, "sk.wrap(theirs).wait(s)": GPU},
    "examples/07_thread_pool.py": {"join.wait(s)": BLOCK, "s.wait(join)": BLOCK},
}
"""Why nothing is found without a call, by program."""

PROGRAMS = [
    *(f"examples/{name}.py" for name in (
        "01_torch_cupy", "02_order_two_streams", "03_library_author", "04_without_a_gpu",
        "06_two_devices", "07_thread_pool", "17_missing_wait",
    )),
    *(f"docs/{name}.md" for name in (
        "quickstart", "cookbook", "concepts/queues", "guides/arrays", "guides/races",
        "guides/testing", "guides/wrong-queue", "reference/functions", "reference/streams",
        "reference/testing",
    )),
]  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_wait_that_is_removed_is_found_at_its_line(name, tmp_path):
    whole, found = outcomes(program_of(name, 0), tmp_path)
    assert found
    assert (len(whole.certain), len(whole.possible)) == (
        ON_PURPOSE.get(name, 0),
        POSSIBLE.get(name, 0),
    )
    missed = [site.call for site, races in found.items() if not races]
    assert sorted(missed) == sorted(NOT_FOUND.get(name, ()))
