"""Where a library of the CUDA toolkit is that other code loads when it is first needed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any


def has(name: str, major: int) -> bool:
    """Whether the toolkit's library of that name and major version can be loaded here.

    As the libraries do, it looks beside what pip has installed, and then where the system looks.
    """
    if sys.platform != "linux":
        return True  # its libraries have other names there, and nothing here needs them
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    file = f"lib{name}.so.{major}"
    with contextlib.suppress(Exception):  # it is not installed, or finds none
        finder: Any = importlib.import_module("cuda.pathfinder")
        if file in finder.load_nvidia_dynamic_lib(name).abs_path:
            return True
    try:
        ctypes.CDLL(file)
    except OSError:
        return False
    return True


def install_line(name: str, major: int) -> str:
    """Return the line that installs the toolkit's library of that name."""
    suffix = "" if major >= _WITHOUT_SUFFIX else f"-cu{major}"
    return f"pip install nvidia-cuda-{name}{suffix}"


_WITHOUT_SUFFIX = 13  # from here on the packages are called alike, whatever the major version
