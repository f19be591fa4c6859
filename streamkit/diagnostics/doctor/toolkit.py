"""Where a library of the CUDA toolkit is that other code loads when it is first needed."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any


def has(name: str, *majors: int) -> bool:
    """Whether the toolkit's library of that name, of one of these versions, can be loaded here.

    As the libraries do, it looks beside what pip has installed, and then where the system looks.
    Where the process has one already, no second one is loaded beside it.
    """
    if sys.platform != "linux":
        return True  # its libraries have other names there, and nothing here needs them
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    files = [f"lib{name}.so.{major}" for major in majors]
    for file in files:
        with contextlib.suppress(OSError):
            ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return True
    with contextlib.suppress(Exception):  # it is not installed, or finds none
        finder: Any = importlib.import_module("cuda.pathfinder")
        path = finder.load_nvidia_dynamic_lib(name).abs_path
        if any(file in path for file in files):
            return True
    for file in files:
        with contextlib.suppress(OSError):
            ctypes.CDLL(file)
            return True
    return False


def has_headers() -> bool:
    """Whether CUDA's headers are here, which a compiler needs; True if nothing can tell."""
    try:
        finder: Any = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return True
    return finder.find_nvidia_header_directory("cudart") is not None


def install_line(name: str, major: int) -> str:
    """Return the line that installs the toolkit's library of that name."""
    suffix = "" if major >= _WITHOUT_SUFFIX else f"-cu{major}"
    return f"pip install nvidia-cuda-{name}{suffix}"


_WITHOUT_SUFFIX = 13  # from here on the packages are called alike, whatever the major version
