"""Each wait of the examples and pages is removed in turn: ``races`` finds it, at its line.

They run on host streams, with NumPy; tests/gpu/tools/test_missing_waits.py has them on a GPU.
"""

from __future__ import annotations

import ast

import pytest

from support.documents import PAGES, ROOT
from support.missing_wait_cases import ELSEWHERE, GPU, HOST
from support.missing_waits import Program, lines_after, outcomes, program_of, sites

DEVICES = {0: HOST, 1: GPU}


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("name", HOST.programs)
def test_each_wait_that_is_removed_is_found_at_its_line(name, tmp_path, pytestconfig):
    # the plugin's, which pytest does not find where StreamKit runs from a checkout
    pytestconfig.addinivalue_line("markers", "streamkit_follows: of a page")
    pytest.importorskip("numpy")
    whole, found = outcomes(program_of(name, 0), tmp_path)
    assert found
    assert (len(whole.certain), len(whole.possible)) == (
        HOST.on_purpose.get(name, 0),
        HOST.possible.get(name, 0),
    )
    missed = {site.call for site, races in found.items() if not races}
    assert missed == set(HOST.not_found.get(name, ()))


@pytest.mark.parametrize("devices", DEVICES)
def test_no_wait_of_a_program_is_forgotten(devices):
    paths = [*PAGES, *sorted((ROOT / "examples").glob("*.py"))]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    with_waits = {name for name in names if sites(program_of(name, devices))}
    cases = DEVICES[devices]
    assert with_waits - set(ELSEWHERE) - set(cases.programs) == set()
    assert set(cases.programs) <= with_waits


def test_no_program_is_elsewhere_without_a_wait():
    assert [name for name in ELSEWHERE if not sites(program_of(name, 2))] == []


def test_a_race_is_right_in_the_next_statements_and_in_functions_that_they_call():
    source = (
        """\
def other():
    far()
def far():
    x[:] = 2
def never():
    x[:] = 3
b.wait(a)
b.submit(other)
"""
        + "again()\n" * 9
    )
    program = Program("a program", source, [ast.parse(source)])
    (site,) = sites(program)
    assert lines_after(program, site) == {2, 4, 8, 9, 10, 11, 12}
