"""Libraries of the CUDA toolkit, which other code loads when they are first needed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from streamkit.protocols.libraries import OLDEST


def has(name: str, *majors: int) -> bool:
    """Whether the toolkit's library of that name, of one of these versions, can be loaded here."""
    # on other systems the libraries have other names, and nothing here needs them
    return sys.platform != "linux" or load(name, *majors) is not None


def load(name: str, *majors: int) -> Any:
    """Return the toolkit's library of that name, of the first version that is found, or None.

    A copy that the process has loaded comes first, because two copies do not know each other. Then
    cuda-pathfinder looks beside what pip has installed, as for the libraries, then the system.
    """
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    files = [f"lib{name}.so.{major}" for major in majors]
    with contextlib.suppress(Exception):  # no pathfinder, or it finds no library
        finder: Any = importlib.import_module("cuda.pathfinder")
        path = finder.load_nvidia_dynamic_lib(name).abs_path
        if any(file in path for file in files):
            return ctypes.CDLL(path)
    for file in files:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(file)
    return None


def has_headers() -> bool:
    """Whether CUDA's headers are here, which a compiler needs; True if nothing can tell."""
    try:
        finder: Any = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return True
    return finder.find_nvidia_header_directory("cudart") is not None


def install_line(name: str, served: int) -> str:
    """Return the line that installs the toolkit's library for the CUDA that a driver serves."""
    # from 13 on the packages are called alike, whatever the major version
    suffix = "" if served > OLDEST else f"-cu{OLDEST}"
    return f"pip install nvidia-cuda-{name}{suffix}"
