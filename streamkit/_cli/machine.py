"""The libraries on this machine, and the lines that install missing ones."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._cuda import driver, loader
from streamkit.protocols import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LoadedT = TypeVar("LoadedT")


class CannotRunError(Exception):
    """A tool lacks the device or a library that it needs; the message says what to do."""


class UnusableError(Exception):
    """A library is here and cannot use this device."""


def load(name: str, *, on_gpu: bool = True) -> Any:
    """Import a library; with ``on_gpu``, UnusableError if torch, CuPy or Warp finds no GPU."""
    library: Any = importlib.import_module(name)
    if name == "warp":
        library.init()
    if on_gpu and name in ("torch", "cupy", "warp"):
        finds_gpu = library.is_cuda_available if name == "warp" else library.cuda.is_available
        if not finds_gpu():
            raise UnusableError(f"{name} {library.__version__} finds no GPU")
    return library


def load_each(
    names: Iterable[str], load: Callable[[str], LoadedT]
) -> tuple[dict[str, LoadedT], dict[str, str]]:
    """Return the result of ``load`` for each name, or why it raised, in two tables."""
    found: dict[str, LoadedT] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            found[name] = load(name)
        except UnusableError as error:
            missing[name] = str(error)
        except ModuleNotFoundError as error:
            own = error.name in (name, name.partition(".")[0])
            missing[name] = "not installed" if own else str(error)
        except Exception as error:  # noqa: BLE001 - a broken library must not stop the others
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


def install_line(name: str) -> str:
    """Return the line that installs a library beside those here, and for this driver."""
    return installed.install_line(name, loader.driver_version() // 1000)


def remedy(name: str, why: str) -> str:
    """Say why a library is missing, and how to install it."""
    return f"{why}. Install it with: {install_line(name)}"


def cuda_version() -> str:
    """Return the newest CUDA that the driver serves, as 13.0."""
    version = int(driver.ask("cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"
