"""The conformance kit without a device: what it asks for, and that it says so plainly."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit import testing
from support.conformance_cases import CASES
from support.libraries import LIBRARIES, need
from support.programs import python

pytestmark = pytest.mark.versions

ADAPTERS = [name for name in CASES if name != "toylib"]


def library_of(adapter):
    return adapter.partition(".")[0]


def never():
    raise AssertionError("a stream was made")


def test_importing_it_imports_no_library():
    need(*LIBRARIES)
    python("""
import sys

before = set(sys.modules)  # a library's .pth file may import a part of it at the start
import streamkit.testing

assert not {"torch", "cupy", "warp", "tvm_ffi", "numba", "cuda"} & (set(sys.modules) - before)
""")


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_it_says_that_there_is_no_device_before_it_makes_a_stream(adapter):
    need(library_of(adapter))
    with pytest.raises(sk.errors.NoDeviceError):
        testing.check_adapter(adapter, never)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_check_has_a_name_of_its_own_and_a_promise(adapter):
    need(library_of(adapter))
    checks = testing.checks(adapter, never)
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.promise.endswith("."), check
        assert check.name in repr(check)


def test_a_waiver_must_name_a_check():
    need("cuda")
    with pytest.raises(ValueError, match=r"borrow_keeps_nothing.*borrow_keeps_owner"):
        testing.checks("cuda.core", never, waive={"borrow_keeps_nothing": "because"})


def test_a_library_that_is_missing_or_unknown_is_told():
    with pytest.raises(sk.errors.UnsupportedStreamError, match="nolib"):
        testing.checks("nolib", never)
    python(
        """
import streamkit as sk
from streamkit import testing
try:
    testing.checks("torch", None)
except sk.errors.BackendNotInstalledError as error:
    assert "pip install" in str(error) and "torch>=2.11" in str(error), error
else:
    raise AssertionError("no error")
""",
        blocked=["torch"],
    )
