"""The parity tables: every row is backed by a test that is there. See also tests/nogpu."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import streamkit as sk
from streamkit.types import CudaStream
from support.documents import ROOT
from support.site import extension

pytestmark = pytest.mark.once

parity = extension("parity")
evidence = extension("evidence")
TABLES = {name: parity.read(name) for name in parity.classes()}
ROWS = [
    pytest.param(row, id=f"{name}-{row.members[0]}")
    for name, table in TABLES.items()
    for row in table.rows
]


def is_there(test):
    """Whether a test of that name is in that file of a tier."""
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def gpu_tests(name):
    """The tests of the GPU tier that a table names, without their folder."""
    if name == "consumers":
        named = [row.get("tests", ()) for row in parity.consumers()]
    else:
        named = [row.tests for row in TABLES[name].rows]
    tests = {test for row in named for test in row if test.startswith("gpu/")}
    return sorted(test.removeprefix("gpu/") for test in tests)


def outcomes(test, record):
    """What came of the cases of that test in a record that did not pass."""
    file, _, name = test.partition("::")
    others = record["files"][Path(file).name]["others"]
    return {one for one, cases in others.items() if name in {c.partition("[")[0] for c in cases}}


CONSUMERS = [
    pytest.param(row["tests"], id=row["name"]) for row in parity.consumers() if "tests" in row
]


@pytest.mark.parametrize("tests", [*(one.values[0].tests for one in ROWS), *CONSUMERS])
def test_a_row_names_tests_that_are_there(tests):
    assert tests
    assert [test for test in tests if not is_there(test)] == []


@pytest.mark.parametrize("name", [*TABLES, "consumers"])
def test_the_gpu_tests_of_a_table_passed_where_the_record_is_of_this_source(name):
    record, suite = evidence.read("gpu.json"), evidence.suite()
    fresh = suite["fresh"](record, suite["meanings"]())
    tests = [test for test in gpu_tests(name) if Path(test.partition("::")[0]).name in fresh]
    if not tests:
        pytest.skip("docs/evidence/gpu.json is of another source: run the GPU suite again")
    needs = {"needs two GPUs", "needs a consumer"}  # which the machine of the record had not
    found = {test: outcomes(test, record) for test in tests}
    assert {test: seen for test, seen in found.items() if seen - needs} == {}
    if any(found.values()):
        pytest.skip("docs/evidence/gpu.json is of a machine without a second GPU, or a consumer")


def test_a_consumer_was_tried_or_read():
    rows = parity.consumers()
    assert len({row["name"] for row in rows}) == len(rows) > 15
    for row in rows:
        assert "tests" in row or "read" in row, row["name"]
        assert "read" not in row or re.search(r"\d+\.\d+", row["read"]), row["name"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.values[0].here])
def test_what_a_row_offers_is_there(row):
    names = re.findall(r"`(?:not )?s\.([a-z_]+)", row.here)
    for name in names:
        assert hasattr(CudaStream, name), name
    functions = re.findall(r"\bsk\.([a-z_]+)", row.here)
    for name in functions:
        assert hasattr(sk, name), name
    assert names or functions or "`with s:`" in row.here or "`s == t`" in row.here


@pytest.mark.parametrize("row", [row for row in ROWS if row.values[0].because])
def test_what_is_not_offered_is_not_there(row):
    """Not by that name: ``repr`` and the like are of every object."""
    assert row.members
    for member in row.members:
        ours = getattr(CudaStream, member, None)
        assert ours is getattr(object, member, None) or member == "__reduce__", member


def test_a_member_has_one_row():
    assert TABLES
    for table in TABLES.values():
        members = [member for row in table.rows for member in row.members]
        assert members, table.of
        assert len(members) == len(set(members)), table.of
