"""The driver library and its bindings, loaded by the first call that needs them."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

from streamkit import errors

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NO_DEVICE = 100


class Library:
    """The driver's functions as attributes: those of ``cuda.bindings.driver``.

    An attribute is looked up once. In a forked child each raises ForkedProcessError, and so do
    ``record``, ``wait`` and ``edge``: what orders queues goes through cuda.core's objects, at half
    the cost of the bindings.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bindings: Any = None
        self._forked = False

    @property
    def is_loaded(self) -> bool:
        """Whether the driver was initialised here, in this very process."""
        return self._bindings is not None and not self._forked

    def __getattr__(self, name: str) -> Any:
        """Load the driver at the first call; an attribute that is found does not come here."""
        if self._forked:
            raise errors.forked()
        with self._lock:
            if self._bindings is None:
                self._load()
        value = getattr(self, name) if name in self.__dict__ else getattr(self._bindings, name)
        self.__dict__[name] = value
        return value

    def _load(self) -> None:
        bindings = _import_bindings()
        try:
            (code,) = bindings.cuInit(0)
        except RuntimeError as error:  # cuda-pathfinder: no libcuda to load
            raise errors.no_device("the CUDA driver library cannot be loaded") from error
        if code == _NO_DEVICE:
            raise errors.no_device("the driver reports none (CUDA_ERROR_NO_DEVICE)")
        if code:
            _, name = bindings.cuGetErrorName(code)
            raise errors.DriverError("cuInit", name.decode(), int(code))
        self.record, self.wait, self.edge = _record, _wait, _edge
        os.register_at_fork(after_in_child=self._forbid)
        self._bindings = bindings

    def _forbid(self) -> None:
        self.__dict__.clear()
        self.__init__()  # type: ignore[misc]  # a lock held by a thread that is not in the child
        self._forked = True


def _record(event: Any, stream: Any) -> None:
    stream.record(event)


def _wait(stream: Any, event: Any) -> None:
    stream.wait(event)


def _edge(event: Any, source: Any, target: Any) -> None:
    source.record(event)
    target.wait(event)


def _import_bindings() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        if not _has_driver_library():
            raise errors.no_device("there is no CUDA driver library") from error
        raise errors.not_installed("cuda.bindings", ("cuda12", "cuda13"), error) from error


def _has_driver_library() -> bool:
    import ctypes  # noqa: PLC0415 - slow to import, and not needed without CUDA

    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True
