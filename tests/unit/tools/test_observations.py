"""All that the emulated driver does is compared with a real one, which was asked the same."""

from __future__ import annotations

import re

import pytest

from emulator.observations import read, source_hash
from support.documents import ROOT

pytestmark = pytest.mark.once

EMULATOR = ROOT / "tests/emulator"

NO_CODE = "the emulated driver's kernels are made by a test: a real one has them from code"
NOT_COMPARED = {
    "cuGraphInstantiateWithFlags": "another name of cuGraphInstantiate, which CUDA Python has",
    "cuFuncGetName": NO_CODE,
    "cuFuncGetParamInfo": NO_CODE,
    "cuGraphKernelNodeGetParams": NO_CODE,
    "cuLaunchKernel": NO_CODE,
}


def test_the_record_of_the_real_driver_is_of_these_observations():
    record = read()
    assert len(record) > 30
    for name, section in record.items():
        again = f"run on hardware again: tests/emulator/differential.py {name}"
        assert section["source"] == source_hash(section["file"]), again
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", section["date"])
        assert not [name for name in section["devices"] if "Emulated" in name]


def test_each_function_of_the_emulated_driver_is_compared():
    entries = (EMULATOR / "source/entry_points.h").read_text()
    functions = set(re.findall(r"^(?:ENTRY|BOTH)\((\w+),", entries, re.MULTILINE))
    source = "".join(path.read_text() for path in (EMULATOR / "observations").glob("*.py"))
    compared = set(re.findall(r"\bdriver\.(cu[A-Z]\w+)", source))
    assert len(functions) > 100
    assert functions - compared == set(NOT_COMPARED)
    assert all(NOT_COMPARED.values())
