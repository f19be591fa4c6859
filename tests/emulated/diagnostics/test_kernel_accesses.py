"""What a launch uses, by its name and parameters, with real arrays on the emulated driver."""

from __future__ import annotations

import numpy as np
import pytest

from streamkit._support.extents import Extent  # what the accesses have
from streamkit.diagnostics.races.memory_use import LaunchReader  # a report shows only what races
from streamkit.protocols import MemoryUse
from support.emulated.kernels import carray, pointers
from support.libraries import need


@pytest.fixture
def cuda():
    return need("numba")


@pytest.fixture
def array(cuda):
    return cuda.device_array(100, np.float32)


def address(array):
    return array.device_ctypes_pointer.value


def block(start, size):
    return Extent(start, start + size, size)


def seen(launch):
    return [(one.mode, one.is_sure, one.extent, one.array.name) for one in launch.accesses]


def test_addresses_are_found_in_the_parameters_of_any_kernel(array, cuda):
    other = cuda.device_array(10, np.float64)
    start = address(array)
    launches = LaunchReader([("x", array), ("n", 5), ("text", "x")])
    parameters = b"\5\0\0\0", pointers(start, 7, start), pointers(address(other) + 8, 2**63)
    launch = launches.kernel("anything", parameters)
    assert not launch.is_known
    assert seen(launch) == [
        ("unknown", False, block(start, 400), "x"),
        ("unknown", False, block(address(other) + 8, 1), None),
    ]
    assert str(launch.accesses[0].array) == "x (float32, shape (100,), 400 bytes)"
    assert str(launch.accesses[1].array) == f"memory at {address(other) + 8:#x}"
    nothing = launches.kernel("anything", [pointers(3, 2**20, 2**60)])
    assert (nothing.accesses, nothing.is_known) == ((), False)


def test_what_the_library_explains_is_known(array):
    need("cupy")
    start = address(array)
    given = carray(start, 50, step=8), bytes(4), carray(start + 200, 25), bytes(24)
    launch = LaunchReader([("x", array)]).kernel("cupy_add__float32_float_float32", given)
    assert (launch.library, launch.is_known) == ("cupy", True)
    assert seen(launch) == [
        ("read", True, Extent(start, start + 396, 4, ((8, 50),)), "part of x"),
        ("write", True, block(start + 200, 100), "part of x"),
    ]
    launch = LaunchReader().kernel("cupy_take", given)
    assert (launch.library, launch.is_known) == ("cupy", False)
    assert str(launch.accesses[1].array) == f"memory at {start + 200:#x} (100 bytes)"


def test_an_array_goes_by_the_nearest_name(array, cuda):
    start = address(array)
    launches = LaunchReader([("whole", array), ("half", array[:50])])

    def name(*use):
        (access,) = launches.transfer("fill", [MemoryUse(*use)]).accesses
        return access.array.name

    assert name(start, "write", (100,), (4,), 4) == "whole"
    assert name(start, "write", (50,), (4,), 4) == "half"
    assert name(start, "write", (60,), (4,), 4) == "part of whole"
    assert name(start + 4, "write", (10,), (4,), 4) == "part of half"
    assert name(start, "write") == "half"
    assert name(start + 396, "write") == "part of whole"


def test_a_transfer_uses_all_of_its_rows_and_nothing_between(array):
    start = address(array)
    uses = [MemoryUse(start, "write", (3, 8), (16, 1), is_sure=True)]
    launch = LaunchReader().transfer("memset", uses)
    assert (launch.name, launch.is_known) == ("memset", True)
    assert seen(launch) == [("write", True, Extent(start, start + 40, 8, ((16, 3),)), None)]
    assert LaunchReader().transfer("memset", [MemoryUse(start, "write", (0,), (1,))]).accesses == ()
