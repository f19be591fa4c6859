"""The driver library and its bindings, loaded by the first call that needs them."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

from streamkit import errors
from streamkit._support import messages
from streamkit._support.locks import in_child, new_lock

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable with which a user chooses devices, and hides others from the driver."""
_NO_DEVICE = 100
_NOT_INITIALIZED = 3
_OLDEST = 12000  # the first driver that serves StreamKit: CUDA 12.0


class _Unloaded:
    """A stand-in for the bindings until the first call, which loads the driver."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if cu is self:
                _load()
        return getattr(cu, name)


class _Forked:
    """A stand-in for the bindings in the child of a process that had initialised CUDA."""

    def __getattr__(self, name: str) -> Any:
        raise messages.forked()


cu: Any = _Unloaded()
"""``cuda.bindings.driver`` once the driver is loaded, so read this variable at each call."""

is_forked = False
"""Whether this process is the child of one that had initialised CUDA, as far as is known."""

_is_loading = _is_child = False
_lock = new_lock()


def is_loaded() -> bool:
    """Whether the driver was initialised here, in this very process."""
    return not isinstance(cu, (_Unloaded, _Forked))


def _load() -> None:
    global cu, _is_loading  # noqa: PLW0603 - one driver for the process
    try:
        bindings: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as cause:
        if why_not_loaded():
            raise messages.no_device(
                f"there is no {LIBRARY}, which NVIDIA's driver installs"
            ) from cause
        raise not_installed("cuda.bindings", cause) from cause
    _is_loading = True
    try:
        _initialise(bindings)
        cu = bindings
    finally:
        _is_loading = False


def _initialise(bindings: Any) -> None:
    try:
        (code,) = bindings.cuInit(0)
    except RuntimeError as cause:  # no libcuda is found, or the bindings cannot use the one found
        _check_version(driver_version(), cause)
        raise messages.no_device("the CUDA driver library cannot be loaded") from cause
    if code == _NO_DEVICE:
        hidden = os.environ.get(VISIBLE)
        also = "" if hidden is None else f", and {VISIBLE}={hidden!r} can hide them"
        raise messages.no_device(f"the driver reports none (CUDA_ERROR_NO_DEVICE){also}")
    if code == _NOT_INITIALIZED and (_is_child or _began_as_fork()):
        _forbid()  # because another library had initialised CUDA in the parent
        raise messages.forked()
    if code:
        raise error(bindings, "cuInit", code)
    code, version = bindings.cuDriverGetVersion()
    if code:
        raise error(bindings, "cuDriverGetVersion", code)
    _check_version(int(version))


def error(bindings: Any, call: str, code: int) -> errors.DriverError:
    """Return the error of a call that returned this code."""
    _, name = bindings.cuGetErrorName(bindings.CUresult(code))  # before 13.2 it takes no number
    return errors.DriverError(call, name.decode() if name else "unknown", int(code))


def _check_version(version: int, cause: Exception | None = None) -> None:
    """Refuse an old driver before any function that it lacks is needed; 0 is unknown."""
    if 0 < version < _OLDEST:
        cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
        raise errors.DriverError(
            "cuDriverGetVersion",
            "cudaErrorInsufficientDriver",
            35,
            f"This driver serves {cuda}, and StreamKit needs one of CUDA 12 or newer: update the "
            "NVIDIA driver. streamkit.new_stream(device='cpu') works without one.",
        ) from cause


def _forbid() -> None:
    global cu, is_forked
    if _is_loading or is_loaded():
        cu, is_forked = _Forked(), True


def _be_child() -> None:
    global _is_child  # noqa: PLW0603 - one process
    _is_child = True
    _forbid()


in_child(_be_child)

_FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC of Linux


def _began_as_fork() -> bool:
    """Whether Linux says that this process is a fork, even if StreamKit was imported later."""
    from pathlib import Path  # noqa: PLC0415 - slow to import, and seldom needed

    try:
        status = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = int(status.rpartition(")")[2].split()[6])
    return bool(flags & _FORKED_WITHOUT_EXEC)


def not_installed(library: str, cause: object) -> errors.BackendNotInstalledError:
    """Return the error for a library that cannot be imported, with the line that installs it."""
    from streamkit.protocols import installed  # noqa: PLC0415 - slow to import, and for errors only

    return messages.not_installed(
        library, installed.install_line(library, driver_version() // 1000), cause
    )


def _library(kind: str) -> Any:
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    return getattr(ctypes, kind)(LIBRARY)


def why_not_loaded() -> str:
    """Return the system's reason why it cannot load the driver's library; "" if it can."""
    try:
        _library("CDLL")
    except OSError as error:
        return str(error)
    return ""


@functools.cache
def c_types() -> Any:
    """Return ``c_int``, ``c_void_p`` and ``byref``: kept, as no import works at a program's end."""
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    return ctypes.c_int, ctypes.c_void_p, ctypes.byref


@functools.cache
def with_gil(call: str, *, is_checked: bool = True) -> Any:
    """Return a function of the driver that lets no other thread run meanwhile.

    For a function that only looks, during which another thread would take the GIL for long.
    It returns the code as an int, or nothing unless it ``is_checked``.
    """
    function = getattr(_library("PyDLL"), call)
    if not is_checked:
        function.restype = None
    return function


@functools.cache
def without_gil(call: str) -> Any:
    """Return a function of the driver that lets other threads run, at less than the bindings' cost.

    The function takes handles as ``c_void_p``, and returns the code as an int.
    """
    return getattr(_library("CDLL"), call)


def driver_version() -> int:
    """Return the newest CUDA that the driver serves, as 13000 for 13.0; 0 if it does not tell.

    The driver is asked without the bindings, which may not start if they are too new for it.
    """
    c_int, _, byref = c_types()
    version = c_int()
    try:
        code = without_gil("cuDriverGetVersion")(byref(version))
    except (AttributeError, OSError):  # not every file of that name is a driver
        return 0
    return 0 if code else version.value
