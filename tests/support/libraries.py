"""What this run has, and what the lane it runs in may not go without."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import re
import sys
import warnings
from typing import Any

import pytest

from streamkit._queues import registry  # its rows name the libraries

# library, by the root of its name -> what must be importable, the module `need` returns first
_KNOWN = {
    name: tuple(row.module for row in rows)
    for name, rows in itertools.groupby(registry.LIBRARIES, lambda row: row.name.split(".")[0])
}
_KNOWN["numba"] += ("numba_cuda",)  # numba alone brings a numba.cuda of its own
# these are only in lanes that name them, not in "all"
_BY_NAME_ONLY = {"rmm", "numba_mlir"}
LIBRARIES = {name: found for name, found in sorted(_KNOWN.items()) if name not in _BY_NAME_ONLY}


def lane() -> list[str]:
    """The factors of the lane's name, e.g. ["3.11", "torch", "cu12", "nogpu"]; [] outside tox."""
    return os.environ.get("STREAMKIT_REQUIRE", "").split("-")


def required() -> set[str]:
    """The libraries that the lane names."""
    named = set(_KNOWN).intersection(lane())
    return named | set(LIBRARIES) if "all" in lane() else named


@functools.cache
def installed(library: str) -> bool:
    """Tell without importing it: the unit tier must stay free of libraries."""
    tops = {
        name if name.startswith("cuda.") else name.partition(".")[0] for name in _KNOWN[library]
    }
    try:
        return all(importlib.util.find_spec(name) is not None for name in tops)
    except ModuleNotFoundError:  # no `cuda` at all
        return False


def missing(libraries: set[str]) -> str:
    """The libraries among these that are not installed, as text."""
    return ", ".join(sorted(name for name in libraries if not installed(name)))


def need(*libraries: str) -> Any:
    """Import libraries, one module or a tuple of them, or skip the caller, test or whole file.

    In a lane that names one of them its absence fails. One that is installed and does not import
    is never skipped: its error is the result.
    """
    __tracebackhide__ = True  # the skip is reported where it was asked for
    if absent := missing(set(libraries)):
        if named := missing(required().intersection(libraries)):
            pytest.fail(f"the lane {'-'.join(lane())} needs {named}: not installed", pytrace=False)
        pytest.skip(f"not installed: {absent}", allow_module_level=True)
    with warnings.catch_warnings():  # what a library's own modules warn of is not ours to mend
        warnings.simplefilter("ignore")
        modules = tuple(importlib.import_module(_KNOWN[name][0]) for name in libraries)
    return modules[0] if len(modules) == 1 else modules


@functools.cache
def version_of(distribution: str) -> tuple[int, ...]:
    """The numbers of the installed version; beyond all others if it is not installed."""
    try:
        text = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return (sys.maxsize,)
    return tuple(int(part) for part in re.match(r"[\d.]*\d", text)[0].split("."))


def any_text_is_yes() -> bool:
    """Whether cuda-bindings take any text of their per-thread switch for yes, "0" too (#2076)."""
    version = version_of("cuda-bindings")
    return version < (12, 9, 7) or (13,) <= version < (13, 3)


@functools.cache
def cuda_devices() -> int:
    """How many devices the driver reports, asked of the driver itself: 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    answered = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if answered else 0
