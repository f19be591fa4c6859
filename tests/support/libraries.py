"""Which libraries are installed, and which of them the lane requires."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import warnings
from typing import Any

import pytest

# library -> the modules that have to be importable, with the one that `need` returns first
LIBRARIES = {
    "cuda": ("cuda.core", "cuda.bindings"),
    "cupy": ("cupy",),
    "numba": ("numba.cuda", "numba_cuda"),  # numba alone brings a numba.cuda of its own
    "torch": ("torch",),
    "tvm_ffi": ("tvm_ffi",),
    "warp": ("warp",),
}
ASIDE = {"rmm": ("rmm",)}  # only in lanes that name it, not in "all"
_KNOWN = LIBRARIES | ASIDE


def lane() -> list[str]:
    """Return the factors of the lane, e.g. ["3.11", "torch", "cu12", "nogpu"]; [""] outside tox."""
    return os.environ.get("STREAMKIT_REQUIRE", "").split("-")


def required() -> set[str]:
    """Return the libraries that the lane names."""
    named = set(_KNOWN).intersection(lane())
    return named | set(LIBRARIES) if "all" in lane() else named


@functools.cache
def installed(library: str) -> bool:
    """Tell without an import, because the unit tier must stay free of libraries."""
    tops = {
        name if name.startswith("cuda.") else name.partition(".")[0] for name in _KNOWN[library]
    }
    try:
        return all(importlib.util.find_spec(name) is not None for name in tops)
    except ModuleNotFoundError:  # no `cuda` at all
        return False


def missing(libraries: set[str]) -> str:
    """Return which of these libraries are not installed, as text."""
    return ", ".join(sorted(name for name in libraries if not installed(name)))


def need(*libraries: str) -> Any:
    """Import libraries and return one module or a tuple; skip the test or file if one is missing.

    In a lane that names the missing one that is a failure. If a library is installed but does not
    import, nothing is skipped: its error fails the test.
    """
    __tracebackhide__ = True  # so that the skip is reported at the caller
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
    """Return the numbers of the installed version; greater than all others if there is none."""
    try:
        text = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return (sys.maxsize,)
    return tuple(int(part) for part in re.match(r"[\d.]*\d", text)[0].split("."))


def any_text_is_yes() -> bool:
    """Whether cuda-bindings take any text of their per-thread switch as yes, even "0" (#2076)."""
    version = version_of("cuda-bindings")
    return version < (12, 9, 7) or (13,) <= version < (13, 3)


@functools.cache
def cuda_devices() -> int:
    """Return how many devices the driver itself reports, 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    answered = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if answered else 0
