"""The parity tables: every row is backed by a test that is there. See also tests/nogpu."""

from __future__ import annotations

import ast
import re

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


def passed(test, cases):
    """Whether a case of that test passed in a record, and none failed."""
    outcomes = {found for case, found in cases.items() if case.partition("[")[0] == test}
    return "passed" in outcomes and "failed" not in outcomes


def test_the_classes_of_the_issue_have_tables():
    assert {table.of for table in TABLES.values()} == {
        "torch.cuda.Stream",
        "torch.cuda.ExternalStream",
        "cuda.core.Stream",
        "cupy.cuda.Stream",
        "warp.Stream",
    }


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_tests_that_are_there(row):
    assert row.tests
    assert [test for test in row.tests if not is_there(test)] == []


@pytest.mark.parametrize(
    "row", [row for row in parity.consumers() if "tests" in row], ids=lambda row: row["name"]
)
def test_a_consumer_names_tests_that_are_there(row):
    assert row["tests"]
    assert [test for test in row["tests"] if not is_there(test)] == []


@pytest.mark.parametrize("name", [*TABLES, "consumers"])
def test_the_gpu_tests_of_a_table_passed_where_the_record_is_of_this_source(name):
    record = evidence.read("gpu.json")
    fresh = {
        file
        for file, entry in record["files"].items()
        if entry["hash"] == evidence.meanings().get(file)
    }
    tests = [test for test in gpu_tests(name) if test.partition("::")[0] in fresh]
    if not tests:
        pytest.skip("docs/evidence/gpu.json is of another source: run the GPU suite again")
    cases = evidence.suite()["outcomes"](record)
    assert [test for test in tests if not passed(test, cases)] == []


def test_the_search_for_tests_can_fail():
    assert is_there("unit/tools/test_parity.py::test_the_search_for_tests_can_fail")
    assert not is_there("unit/tools/test_parity.py::test_that_is_not_there")


def test_the_search_for_outcomes_can_fail():
    cases = {"t.py::a[1]": "passed", "t.py::a[2]": "skipped", "t.py::b": "skipped",
             "t.py::c[x]": "passed", "t.py::c[y]": "failed"}  # fmt: skip
    assert [test for test in ("a", "b", "c", "d") if passed(f"t.py::{test}", cases)] == ["a"]
    assert sum(len(gpu_tests(name)) for name in TABLES) > 20
    assert len(gpu_tests("consumers")) > 5


def test_what_was_run_and_what_was_read_of_a_consumer_is_told():
    names = [line.split(" | ")[0] for line in parity.consumers_table().splitlines()[2:]]
    evidence = parity.consumers_evidence().splitlines()
    assert names
    for row, name, line in zip(parity.consumers(), names, evidence, strict=True):
        assert name == f"| {row['name']}" + ("" if "tests" in row else " (read)")
        assert line.startswith(f"- {row['name']}: ")
        assert ("not run here" in line) is ("read" in row)
        assert all(test.partition("::")[2] in line for test in row.get("tests", ()))


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
