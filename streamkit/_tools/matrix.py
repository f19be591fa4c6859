"""Whether every ordered pair of the libraries on this machine works as one, seen by the driver.

Its judge is that of ``streamkit.testing``: raw handles and a gate. Nothing here prints.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import itertools
import platform
import weakref
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._base.messages import DISTRIBUTION
from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit._tools import machine
from streamkit._tools.machine import CannotRunError, UnusableError
from streamkit.errors import BackendNotInstalledError
from streamkit.testing import _gate

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[str, int, int], object]

NATIVE = "native"
LABELS = {row.name: row.label for row in registry.LIBRARIES} | {NATIVE: "StreamKit"}


@dataclass(frozen=True)
class Pair:
    """What happened to one library's streams when another took them over, or waited for them."""

    first: str
    second: str
    same_queue: bool
    """The second's object on the first's stream is the same queue for the driver."""
    same_device: bool
    """It is of the same device, for the driver and for StreamKit."""
    owner_kept: bool | None
    """It alone keeps the queue alive; None where a bare handle can hold nothing."""
    control_ran: bool
    """Without a wait, work of the second runs while the first's queue is held."""
    order_kept: bool
    """With ``wait``, work of the second runs after the first's, and no call blocks the host."""
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Whether all of it holds."""
        return not self.problems


@dataclass(frozen=True)
class MatrixReport:
    """Every ordered pair of the libraries here, what they are, and which are missing."""

    date: str
    device: str
    cuda: str
    versions: dict[str, str]
    libraries: list[str]
    missing: dict[str, str]
    pairs: list[Pair]

    @property
    def ok(self) -> bool:
        """Whether every pair is ok."""
        return all(pair.ok for pair in self.pairs)


def as_data(report: MatrixReport) -> dict[str, Any]:
    """Return the report in JSON's types, with its verdicts."""
    data = asdict(report)
    for found, pair in zip(data["pairs"], report.pairs, strict=True):
        found["ok"] = pair.ok
    data["ok"] = report.ok
    return data


def run(*, device: int = 0, progress: Progress = lambda *_: None) -> MatrixReport:
    """Try every ordered pair of the libraries that are installed.

    Imports them. ``progress`` is called with what comes next, how much is done, and of how much.
    CannotRunError if there is no CUDA device.
    """
    _require_device()
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(_gate.on_device(device))
        found, missing = _load(device, cleanup, progress)
        pairs = list(itertools.permutations(found, 2))
        steps = len(LABELS) + len(pairs)
        results: list[Pair] = []
        for done, (first, second) in enumerate(pairs, len(LABELS)):
            progress(f"{LABELS[first.name]} to {LABELS[second.name]}", done, steps)
            with _gate.on_device(device):  # the libraries may leave another context current
                results.append(examine(first, second))
        progress("done", steps, steps)
        gc.collect()
    return MatrixReport(
        date=machine.today(),
        device=driver.device_name(device),
        cuda=machine.cuda_version(),
        versions={
            "python": platform.python_version(),
            **{"streamkit" if one.name == NATIVE else one.name: one.version for one in found},
        },
        libraries=[library.name for library in found],
        missing=missing,
        pairs=results,
    )


def _require_device() -> None:
    try:
        present = driver.is_present()
    except BackendNotInstalledError as error:
        raise CannotRunError(
            "There is a CUDA driver here, but not the package that calls it. Install it with: "
            f"pip install '{DISTRIBUTION}[cuda13]' (cuda12 if the driver is of CUDA 12)"
        ) from error
    if not present:
        raise CannotRunError("There is no CUDA device here, and the libraries' streams are on one.")


def _load(
    device: int, cleanup: contextlib.ExitStack, progress: Progress
) -> tuple[list[LibraryStreams], dict[str, str]]:
    found: list[LibraryStreams] = []
    missing: dict[str, str] = {}
    for done, (name, label) in enumerate(LABELS.items()):
        progress(f"import {label}", done, len(LABELS) ** 2)  # as many pairs as they can make
        try:
            found.append(load(name, device, cleanup))
        except UnusableError as error:
            missing[name] = f"{error}. Install a build that does: {machine.install_line(name)}"
        except ModuleNotFoundError:
            missing[name] = f"not installed. Install it with: {machine.install_line(name)}"
        except Exception as error:  # noqa: BLE001 - a broken library must not stop the others
            missing[name] = f"cannot be used here: {type(error).__name__}: {error}"
    return found, missing


# -- the libraries ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryStreams:
    """One library's streams on one device, made and read in its own public way."""

    name: str
    version: str
    new_stream: Callable[[], Any]
    handle_of: Callable[[Any], int]
    destroys: bool = True  # whether the queue dies with the stream object
    holds: bool = True  # whether a stream object can keep alive what its queue depends on

    def view(self, stream: Any) -> Any:
        """Return this library's object on the queue of a StreamKit stream."""
        return stream if self.name == NATIVE else stream.to(self.name)


def load(name: str, device: int, cleanup: contextlib.ExitStack) -> LibraryStreams:
    """Import a library and let it make a stream; any exception says why it cannot."""
    library = _MAKERS[name](device, cleanup)
    if library.handle_of(library.new_stream()) == 0:
        raise UnusableError("its new stream is the default one")
    return library


def _version(name: str) -> str:
    return importlib.metadata.version(registry.BY_NAME[name].distribution)


def _torch(device: int, _: contextlib.ExitStack) -> LibraryStreams:
    torch = machine.load("torch")
    return LibraryStreams(
        "torch",
        str(torch.__version__),
        lambda: torch.cuda.Stream(device),
        lambda stream: int(stream.cuda_stream),
        destroys=False,  # its streams are those of a pool
    )


def _cupy(device: int, _: contextlib.ExitStack) -> LibraryStreams:
    cupy = machine.load("cupy")
    cupy.cuda.Device(device).use()
    return LibraryStreams(
        "cupy",
        str(cupy.__version__),
        lambda: cupy.cuda.Stream(non_blocking=True),
        lambda stream: int(stream.ptr),
    )


def _warp(device: int, _: contextlib.ExitStack) -> LibraryStreams:
    warp = machine.load("warp")
    return LibraryStreams(
        "warp",
        str(warp.__version__),
        lambda: warp.Stream(f"cuda:{device}"),
        lambda stream: int(stream.cuda_stream or 0),
    )


def _numba(device: int, _: contextlib.ExitStack) -> LibraryStreams:
    from numba import cuda

    cuda.select_device(device)
    return LibraryStreams(
        "numba", _version("numba"), cuda.stream, lambda stream: int(stream.handle)
    )


def _core(device: int, _: contextlib.ExitStack) -> LibraryStreams:
    core: Any = importlib.import_module("cuda.core")
    current = core.Device(device)
    current.set_current()
    return LibraryStreams(
        "cuda.core",
        _version("cuda.core"),
        current.create_stream,
        lambda stream: int(stream.__cuda_stream__()[1]),
    )


def _bindings(_device: int, cleanup: contextlib.ExitStack) -> LibraryStreams:
    from cuda.bindings.driver import CUstream

    return LibraryStreams(
        "cuda.bindings",
        _version("cuda.bindings"),
        lambda: CUstream(cleanup.enter_context(_gate.raw_stream())),
        int,
        destroys=False,
        holds=False,
    )


def _native(device: int, _: contextlib.ExitStack) -> LibraryStreams:
    return LibraryStreams(
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


# -- one pair ---------------------------------------------------------------------------------


def examine(first: LibraryStreams, second: LibraryStreams) -> Pair:
    """Let ``second`` take over a stream of ``first``, and wait for another."""
    problems: list[str] = []

    def holds(part: str, test: Callable[[LibraryStreams, LibraryStreams], str | None]) -> bool:
        try:
            problem = test(first, second)
        except Exception as error:  # noqa: BLE001 - one pair's failure must not stop the others
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            problems.append(f"{part}: {problem}")
        return problem is None

    return Pair(
        first.name,
        second.name,
        same_queue=holds("queue", _same_queue),
        same_device=holds("device", _same_device),
        owner_kept=holds("owner", _owner_kept) if second.holds else None,
        control_ran=holds("control", _control_ran),
        order_kept=holds("order", _order_kept),
        problems=problems,
    )


def _same_queue(first: LibraryStreams, second: LibraryStreams) -> str | None:
    native = first.new_stream()
    stream = sk.wrap(native)
    view = second.view(stream)
    ids = _gate.stream_id(first.handle_of(native)), _gate.stream_id(second.handle_of(view))
    if ids[0] != ids[1]:
        return f"the driver knows the stream as {ids[0]} and its view as {ids[1]}"
    if sk.wrap(view) != stream:
        return f"{sk.wrap(view)!r} should equal {stream!r}"
    return None


def _same_device(first: LibraryStreams, second: LibraryStreams) -> str | None:
    native = first.new_stream()
    stream = sk.wrap(native)
    view = second.view(stream)
    devices = {
        "the stream": _gate.stream_device(first.handle_of(native)),
        "its view": _gate.stream_device(second.handle_of(view)),
        "StreamKit": stream.device_id,
        "StreamKit, of the view": sk.wrap(view).device_id,
    }
    if len(set(devices.values())) > 1:
        return ", ".join(f"{who} says {device}" for who, device in devices.items())
    return None


def _owner_kept(first: LibraryStreams, second: LibraryStreams) -> str | None:
    native = first.new_stream()
    handle = first.handle_of(native)
    number = _gate.stream_id(handle)
    alive = weakref.ref(native) if first.destroys else lambda: True
    view = second.view(sk.wrap(native))
    del native
    gc.collect()
    if alive() is None:  # not asked of the driver: a destroyed stream must not be touched
        return "the stream died while its view was in use"
    if not _gate.is_alive(handle, number):
        return "the queue was destroyed while its view was in use"
    if first.name == NATIVE and not sk.from_handle(handle).owned:
        return "StreamKit gave its queue up while its view was in use"
    del view
    return None


def _control_ran(first: LibraryStreams, second: LibraryStreams) -> str | None:
    held, other = first.new_stream(), second.new_stream()
    if _gate.runs_beside(first.handle_of(held), second.handle_of(other)):
        return None
    return "work on one queue waits for the other without being told to, which proves nothing"


def _order_kept(first: LibraryStreams, second: LibraryStreams) -> str | None:
    producer, consumer = first.new_stream(), second.new_stream()
    handles = first.handle_of(producer), second.handle_of(consumer)
    if _gate.runs_after(*handles, lambda: sk.wrap(consumer).wait(producer)):
        return None
    return "work ran before that for which it was told to wait"
