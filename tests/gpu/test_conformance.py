"""The conformance kit on real hardware: every library's adapter, and the toy plugin's."""

from __future__ import annotations

import pytest

from _conformance_cases import CASES, check_library
from _conformance_mutants import UNCHANGED, run_kit


@pytest.mark.parametrize("library", CASES)
def test_the_adapter_conforms(library):
    check_library(library)


def test_a_third_partys_adapter_conforms_with_every_capability(tmp_path):
    assert run_kit(tmp_path, {}) == {UNCHANGED: {}}
