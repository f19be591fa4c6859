"""Try whether every ordered pair of the libraries on this machine works on one queue.

As in ``streamkit.testing``, the driver decides, by raw handles and a gate. Only ``show`` prints.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import importlib.metadata
import itertools
import platform
import sys
import weakref
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cli import machine
from streamkit._cli.machine import CannotRunError, UnusableError
from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit.testing import _gate

if TYPE_CHECKING:
    from collections.abc import Callable

NATIVE = "native"


@dataclass(frozen=True)
class Pair:
    """The result for one library's streams that another takes over, or waits for."""

    first: str
    second: str
    same_queue: bool
    """The second's object on the first's stream is the same queue for the driver."""
    same_device: bool
    """That object is of the same device, for the driver and for StreamKit."""
    owner_kept: bool | None
    """That object alone keeps the queue alive; None where a bare handle can hold nothing."""
    control_ran: bool
    """Without a wait, work of the second runs while the first's queue is held."""
    order_kept: bool
    """With ``wait``, work of the second runs after the first's, and no call blocks the host."""
    problems: list[str]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class MatrixReport:
    """Every ordered pair of the libraries here, their versions, and the missing libraries."""

    date: str
    device: str
    cuda: str
    versions: dict[str, str]
    libraries: list[str]
    missing: dict[str, str]
    pairs: list[Pair]

    @property
    def ok(self) -> bool:
        return all(pair.ok for pair in self.pairs)


def as_data(report: MatrixReport) -> dict[str, Any]:
    pairs = [asdict(pair) | {"ok": pair.ok} for pair in report.pairs]
    return asdict(report) | {"pairs": pairs, "ok": report.ok}


def run(
    *, device: int = 0, progress: Callable[[str, int, int], object] = lambda *_: None
) -> MatrixReport:
    """Try every ordered pair of the libraries that are installed.

    Imports them. ``progress`` is called with what comes next, how much is done, and of how much.
    CannotRunError if there is no CUDA device.
    """
    if not driver.is_present():
        raise CannotRunError("streamkit matrix needs a CUDA GPU; none was found.")
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(_gate.on_device(device))
        progress("import the libraries", 0, 1)
        found, missing = machine.load_each(LABELS, partial(load, device=device, cleanup=cleanup))
        pairs = list(itertools.permutations(found.values(), 2))
        results: list[Pair] = []
        for done, (first, second) in enumerate(pairs, 1):
            progress(f"{LABELS[first.name]} to {LABELS[second.name]}", done, len(pairs) + 1)
            with _gate.on_device(device):  # the libraries may leave another context current
                results.append(examine(first, second))
        gc.collect()
    return MatrixReport(
        date=f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
        device=driver.device_name(device),
        cuda=machine.cuda_version(),
        versions={
            "python": platform.python_version(),
            **{"streamkit" if name == NATIVE else name: one.version for name, one in found.items()},
        },
        libraries=list(found),
        missing={name: machine.remedy(name, why) for name, why in missing.items()},
        pairs=results,
    )


_PROMISE = (
    "Each row's stream, taken over by each column's library, is the same queue on the same device "
    "and kept alive; each column's stream waits for the row's after a wait, and only then."
)
_BARE = "* not kept alive: a bare handle can hold nothing. Keep the StreamKit stream beside it."


def show(report: MatrixReport) -> None:
    """Print the grid, what failed in it, which libraries are missing, and the verdict.

    The headings of the grid are numbers, because names are too wide for a terminal.
    """
    versions = [f"{LABELS.get(name, name)} {version}" for name, version in report.versions.items()]
    cells = {(pair.first, pair.second): _cell(pair) for pair in report.pairs}
    grid = [["from \\ to", *(str(number) for number, _ in enumerate(report.libraries, 1))]]
    grid += [
        [f"{number} {LABELS[first]}", *(cells.get((first, one), "-") for one in report.libraries)]
        for number, first in enumerate(report.libraries, 1)
    ]
    lines = [f"{report.device}, CUDA {report.cuda}; {', '.join(versions)}", ""]
    lines += [f"  {row[0]:16}{''.join(f'{cell:5}' for cell in row[1:])}".rstrip() for row in grid]
    lines += ["", _PROMISE]
    if any(pair.owner_kept is None for pair in report.pairs):
        lines.append(_BARE)
    lines += [f"No {LABELS[name]}: {why}" for name, why in report.missing.items()]
    lines += [
        f"{LABELS[pair.first]} to {LABELS[pair.second]}: {problem}"
        for pair in report.pairs
        for problem in pair.problems
    ]
    bad = sum(not pair.ok for pair in report.pairs)
    verdict = f"FAILED: {bad} of" if bad else "OK:"
    lines.append(f"{verdict} {len(report.pairs)} pairs of {len(report.libraries)} libraries")
    sys.stdout.write("\n".join(lines) + "\n")


def _cell(pair: Pair) -> str:
    if not pair.ok:
        return "FAIL"
    return "ok*" if pair.owner_kept is None else "ok"


# -- the libraries ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryStreams:
    """One library's streams on one device, made and read in its own public way."""

    name: str
    version: str
    new_stream: Callable[[], Any]
    handle_of: Callable[[Any], int]
    destroys: bool = True  # whether the queue dies with the stream object
    holds: bool = True  # whether a stream object can keep the owner of its queue alive

    def view(self, stream: Any) -> Any:
        return stream if self.name == NATIVE else stream.to(self.name)


_NAMES = "torch", "cupy", "warp", "tvm_ffi", "numba", "cuda.core", "cuda.bindings"
LABELS = {row.name: row.label for row in registry.LIBRARIES if row.name in _NAMES}
LABELS[NATIVE] = "StreamKit"


def load(name: str, device: int, cleanup: contextlib.ExitStack) -> LibraryStreams:
    """Import a library and let it make a stream; any exception says why it cannot."""
    module = machine.load("streamkit" if name == NATIVE else name)
    new_stream: Callable[[], Any]
    handle_of: Callable[[Any], Any] = int
    version = module.__version__
    match name:
        case "torch":
            new_stream, handle_of = partial(module.cuda.Stream, device), attrgetter("cuda_stream")
        case "cupy":
            module.cuda.Device(device).use()
            new_stream = partial(module.cuda.Stream, non_blocking=True)
            handle_of = attrgetter("ptr")
        case "warp":
            new_stream = partial(module.Stream, f"cuda:{device}")
            handle_of = attrgetter("cuda_stream")
        case "tvm_ffi":
            build = partial(module.use_raw_stream, module.device("cuda", device))
            new_stream, handle_of = partial(_on_raw_stream, build, cleanup), _stream_inside
        case "numba":
            cuda = machine.load("numba.cuda")  # a distribution of its own
            version = importlib.metadata.version(registry.BY_NAME[name].distribution)
            cuda.select_device(device)
            new_stream, handle_of = cuda.stream, attrgetter("handle")
        case "cuda.core":
            own = module.Device(device)
            own.set_current()
            new_stream, handle_of = own.create_stream, attrgetter("handle")
        case "cuda.bindings":
            build = machine.load("cuda.bindings.driver").CUstream
            new_stream = partial(_on_raw_stream, build, cleanup)
        case _:
            new_stream = partial(sk.new_stream, device, nonblocking=True)
    library = LibraryStreams(
        name,
        version,
        new_stream,
        lambda stream: int(handle_of(stream) or 0),
        # torch's queues are those of a pool; StreamKit's are held by their views.
        destroys=name not in ("torch", "tvm_ffi", "cuda.bindings", NATIVE),
        holds=name != "cuda.bindings",
    )
    if library.handle_of(library.new_stream()) == 0:
        raise UnusableError("its new stream is the default one")
    return library


def _on_raw_stream(build: Callable[[int], Any], cleanup: contextlib.ExitStack) -> Any:
    return build(cleanup.enter_context(_gate.raw_stream()))


def _stream_inside(context: Any) -> int:
    """Return the handle with which a function of tvm-ffi launches inside the block."""
    import tvm_ffi

    device = tvm_ffi.device("cuda", context.device_id)
    with context:
        return int(tvm_ffi.get_raw_stream(device))


# -- one pair ---------------------------------------------------------------------------------


def examine(first: LibraryStreams, second: LibraryStreams) -> Pair:
    """Let ``second`` take over a stream of ``first``, and wait for another."""
    problems: list[str] = []

    def holds(part: str, test: Callable[[LibraryStreams, LibraryStreams], None]) -> bool:
        try:
            test(first, second)
        except Exception as error:  # noqa: BLE001 - one pair's failure must not stop the others
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            problems.append(f"{part}: {kind}{error}")
            return False
        return True

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


def _same_queue(first: LibraryStreams, second: LibraryStreams) -> None:
    native = first.new_stream()
    stream = sk.wrap(native)
    view = second.view(stream)
    ids = _gate.stream_id(first.handle_of(native)), _gate.stream_id(second.handle_of(view))
    _gate.require(
        ids[0] == ids[1], f"the driver knows the stream as {ids[0]} and its view as {ids[1]}"
    )
    _gate.require(sk.wrap(view) == stream, f"{sk.wrap(view)!r} should equal {stream!r}")


def _same_device(first: LibraryStreams, second: LibraryStreams) -> None:
    native = first.new_stream()
    stream = sk.wrap(native)
    view = second.view(stream)
    devices = (
        _gate.stream_device(first.handle_of(native)),
        _gate.stream_device(second.handle_of(view)),
        stream.device_id,
        sk.wrap(view).device_id,
    )
    _gate.require(
        len(set(devices)) == 1,
        f"the driver says {devices[:2]} of the stream and its view, StreamKit {devices[2:]}",
    )


def _owner_kept(first: LibraryStreams, second: LibraryStreams) -> None:
    native = first.new_stream()
    handle = first.handle_of(native)
    number = _gate.stream_id(handle)
    alive = weakref.ref(native) if first.destroys else lambda: True
    view = second.view(sk.wrap(native))
    del native
    gc.collect()
    # The driver is not asked, because a destroyed stream must not be touched.
    _gate.require(alive() is not None, "the stream died while its view was in use")
    _gate.require(
        _gate.is_alive(handle, number), "the queue was destroyed while its view was in use"
    )
    _gate.require(
        first.name != NATIVE or sk.from_handle(handle).owned,
        "StreamKit gave its queue up while its view was in use",
    )
    del view


def _control_ran(first: LibraryStreams, second: LibraryStreams) -> None:
    held, other = first.new_stream(), second.new_stream()
    _gate.require(
        _gate.runs_beside(first.handle_of(held), second.handle_of(other)),
        "work on one queue waits for the other without a wait, which proves nothing",
    )


def _order_kept(first: LibraryStreams, second: LibraryStreams) -> None:
    producer, consumer = first.new_stream(), second.new_stream()
    handles = first.handle_of(producer), second.handle_of(consumer)
    _gate.require(
        _gate.runs_after(*handles, lambda: sk.wrap(consumer).wait(producer)),
        "work ran before the work for which it had to wait",
    )
