"""The emulated driver beside the record of a real one: every observation the same, or accepted."""

from __future__ import annotations

import fnmatch
import subprocess
import sys

import pytest

from emulator.differences import ACCEPTED
from emulator.observations import RECORD, read
from support.documents import ROOT


def observations(path):
    """Observations by (section, name)."""
    return {
        (section, name): seen
        for section, record in read(path).items()
        for name, seen in record["observations"].items()
    }


# Most of their time they wait for gates that open by themselves, 25 s in all: so these two lists
# have processes of their own, beside one with all the other sections.
WAITING = (
    ["copies_that_wait"],
    ["implicit_order", "value_gates"],
)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("differential")
    apart = [name for names in WAITING for name in names]
    parts = [["--without", *apart], *WAITING]
    outs = [folder / f"{number}.json" for number in range(len(parts))]
    script = ROOT / "tests/emulator/differential.py"
    running = [
        subprocess.Popen([sys.executable, script, "--out", out, *part])
        for out, part in zip(outs, parts, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(parts)
    return {key: seen for out in outs for key, seen in observations(out).items()}


@pytest.fixture(scope="module")
def hardware():
    return observations(RECORD)


def accepted(section, name):
    return [row for row in ACCEPTED if row[0] == section and fnmatch.fnmatchcase(name, row[1])]


def test_no_section_broke_off(emulated, hardware):
    for record in (emulated, hardware):
        assert record
        assert [section for section, name in record if name == "broke off"] == []


def test_both_were_asked_the_same(emulated, hardware):
    different = set(emulated) ^ set(hardware)
    assert {key for key in different if not accepted(*key)} == set()


def test_the_answers_are_the_same_or_the_difference_is_accepted(emulated, hardware):
    different = {
        key: {"emulated": emulated[key], "hardware": seen}
        for key, seen in hardware.items()
        if key in emulated and emulated[key] != seen and not accepted(*key)
    }
    assert different == {}


def test_every_accepted_difference_is_one(emulated, hardware):
    keys = set(emulated) | set(hardware)
    different = {key for key in keys if emulated.get(key) != hardware.get(key)}
    needed = [row for key in different for row in accepted(*key)]
    assert [row for row in ACCEPTED if row not in needed] == []
    assert all(reason for _, _, reason in ACCEPTED)
