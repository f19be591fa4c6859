"""The matrix on real hardware: every ordered pair of all the libraries."""

from __future__ import annotations

import itertools

import pytest

from support.libraries import LIBRARIES, need


@pytest.fixture(scope="module")
def report(primary_context):
    need(*LIBRARIES)
    from support.gpu.raw import check, driver

    # set up before the context of each test is: the file before may have left another device
    check(driver.cuCtxSetCurrent(primary_context))
    from streamkit._cli import matrix  # the command prints no objects

    return matrix.run()


def test_every_pair_is_there_and_ok(report):
    from streamkit._cli.matrix import LABELS  # the command prints no objects

    assert (report.libraries, report.missing) == (list(LABELS), {})
    pairs = {(pair.first, pair.second): pair for pair in report.pairs}
    assert set(pairs) == set(itertools.permutations(LABELS, 2))
    assert not [pair for pair in report.pairs if not pair.ok]


def test_the_rest_is_there(report):
    assert report.device
    assert {"streamkit", "python", "torch", "cupy", "warp", "numba"} <= set(report.versions)
