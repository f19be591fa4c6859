"""How each library makes a stream and names its handle: its own public way, for the matrix."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._base.messages import DISTRIBUTION
from streamkit.testing import _gate

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

NATIVE = "native"
LABELS = {
    "torch": "torch",
    "cupy": "CuPy",
    "warp": "Warp",
    "numba": "numba-cuda",
    "cuda.core": "cuda.core",
    "cuda.bindings": "cuda.bindings",
    NATIVE: "StreamKit",
}
_DISTRIBUTIONS = {"numba": "numba-cuda", "cuda.core": "cuda-core", "cuda.bindings": "cuda-bindings"}


@dataclass(frozen=True)
class Library:
    """One library's streams on one device."""

    name: str
    version: str
    new_stream: Callable[[], Any]
    handle_of: Callable[[Any], int]
    destroys: bool = True  # whether the queue dies with the stream object
    holds: bool = True  # whether a stream object can keep alive what its queue depends on

    def view(self, stream: Any) -> Any:
        """Return this library's object on the queue of a StreamKit stream."""
        return stream if self.name == NATIVE else stream.to(self.name)


class UnusableError(Exception):
    """The library is here and cannot use this device."""


def load(name: str, device: int, cleanup: contextlib.ExitStack) -> Library:
    """Import a library and let it make a stream; any exception says why it cannot."""
    library = _MAKERS[name](device, cleanup)
    if library.handle_of(library.new_stream()) == 0:
        raise UnusableError("its new stream is the default one")
    return library


def install_line(name: str) -> str:
    """Return the line that installs a library beside the CUDA Python that is here."""
    major = importlib.metadata.version("cuda-bindings").partition(".")[0]
    extra = {"cupy": f"cupy{major}", "cuda.core": f"cuda{major}"}.get(name, name)
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def _version(name: str) -> str:
    return importlib.metadata.version(_DISTRIBUTIONS[name])


def _import(name: str) -> Any:
    return importlib.import_module(name)


def _torch(device: int, _: contextlib.ExitStack) -> Library:
    torch = _import("torch")
    if not torch.cuda.is_available():
        raise UnusableError(f"torch {torch.__version__} finds no GPU")
    return Library(
        "torch",
        str(torch.__version__),
        lambda: torch.cuda.Stream(device),
        lambda stream: int(stream.cuda_stream),
        destroys=False,  # its streams are those of a pool
    )


def _cupy(device: int, _: contextlib.ExitStack) -> Library:
    cupy = _import("cupy")
    cupy.cuda.Device(device).use()
    return Library(
        "cupy",
        str(cupy.__version__),
        lambda: cupy.cuda.Stream(non_blocking=True),
        lambda stream: int(stream.ptr),
    )


def _warp(device: int, _: contextlib.ExitStack) -> Library:
    warp = _import("warp")
    warp.init()
    if not warp.is_cuda_available():
        raise UnusableError(f"Warp {warp.__version__} finds no GPU")
    return Library(
        "warp",
        str(warp.__version__),
        lambda: warp.Stream(f"cuda:{device}"),
        lambda stream: int(stream.cuda_stream or 0),
    )


def _numba(device: int, _: contextlib.ExitStack) -> Library:
    cuda = _import("numba.cuda")
    cuda.select_device(device)
    return Library("numba", _version("numba"), cuda.stream, lambda stream: int(stream.handle))


def _core(device: int, _: contextlib.ExitStack) -> Library:
    core = _import("cuda.core")
    current = core.Device(device)
    current.set_current()
    return Library(
        "cuda.core",
        _version("cuda.core"),
        current.create_stream,
        lambda stream: int(stream.__cuda_stream__()[1]),
    )


def _bindings(_device: int, cleanup: contextlib.ExitStack) -> Library:
    driver = _import("cuda.bindings.driver")
    return Library(
        "cuda.bindings",
        _version("cuda.bindings"),
        lambda: driver.CUstream(cleanup.enter_context(_gate.raw_stream())),
        int,
        destroys=False,
        holds=False,
    )


def _native(device: int, _: contextlib.ExitStack) -> Library:
    return Library(
        NATIVE,
        sk.__version__,
        lambda: sk.new_stream(device, nonblocking=True),
        int,
        destroys=False,  # the stream object may go: its queue is held by its views
    )


_MAKERS = {
    "torch": _torch,
    "cupy": _cupy,
    "warp": _warp,
    "numba": _numba,
    "cuda.core": _core,
    "cuda.bindings": _bindings,
    NATIVE: _native,
}
