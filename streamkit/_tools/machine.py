"""What this machine has for the tools, and the lines that install what it lacks."""

from __future__ import annotations

import datetime as dt
import importlib
import importlib.metadata
from typing import Any

from streamkit._cuda import driver
from streamkit._queues import registry


class CannotRunError(Exception):
    """A tool lacks the device or a library that it needs; the message says what to do."""


class UnusableError(Exception):
    """A library is here and cannot use this device."""


def load(name: str, *, on_gpu: bool = True) -> Any:
    """Return the module of torch, CuPy or Warp.

    UnusableError if ``on_gpu`` and it finds no GPU.
    """
    library: Any = importlib.import_module(name)
    if name == "warp":
        library.init()
    finds_gpu = library.is_cuda_available if name == "warp" else library.cuda.is_available
    if on_gpu and not finds_gpu():
        raise UnusableError(f"{label(name)} {library.__version__} finds no GPU")
    return library


def label(name: str) -> str:
    """Return the name of a library where people read it."""
    return registry.BY_NAME[name].label


def cuda_major() -> int:
    """Return the major version of the CUDA Python that is here."""
    return int(importlib.metadata.version("cuda-bindings").partition(".")[0])


def install_line(name: str) -> str:
    """Return the line that installs a library beside the CUDA Python that is here."""
    return registry.BY_NAME[name].install_line(cuda_major())


def cuda_version() -> str:
    """Return the newest CUDA that the driver serves, as 13.0."""
    version = int(driver.ask("cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def today() -> str:
    """Return the date in UTC, as the records have it."""
    return dt.datetime.now(dt.UTC).date().isoformat()
