"""The conformance kit on real hardware: every library's adapter, and the toy plugin's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.conformance_cases import CASES, check_library
from support.conformance_mutants import RIGHT, run_kit
from support.programs import run_program


@pytest.mark.parametrize("library", [name for name in CASES if name != "toylib"])
def test_the_adapter_conforms(library):
    check_library(library)


def test_the_toy_plugins_adapter_conforms():
    """In a process of its own: once imported it takes part in every scope of a process."""
    if importlib.util.find_spec("toylib") is None:
        pytest.skip("the plugin of tests/plugin is not installed")
    done = run_program(f"""
        import sys
        sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
        from support.gpu.raw import check, driver
        check(driver.cuInit(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
        from support.conformance_cases import check_library
        check_library("toylib")
    """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_third_partys_adapter_conforms_with_every_capability(tmp_path):
    assert run_kit(tmp_path, {}) == {adapter: {} for adapter in RIGHT}
