"""What the rows are made of: how a plan is written down, and what surrounds its loops."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.timing import TURN, Arms, Libraries, Plan, held_calls
from streamkit._cuda import driver, loader
from streamkit.testing import _gate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def row(
    plans: list[Plan], name: str, against: str, **fields: Any
) -> Callable[[Callable[[Libraries], Generator[Arms]]], None]:
    """Add a plan of these fields, which the decorated function arranges."""

    def register(arrange: Callable[[Libraries], Generator[Arms]]) -> None:
        plans.append(Plan(name, against, arrange=contextmanager(arrange), **fields))

    return register


def each_once(
    libraries: Libraries,
    ours: Callable[[Any], Any],
    theirs: Callable[[Any], Any],
    **others: Any,
) -> Generator[Arms]:
    """Give each side torch streams that no library has seen."""
    device, from_handle = libraries.device, libraries.torch.cuda.get_stream_from_external
    handles: list[int] = []

    def fresh(count: int) -> list[Any]:
        made = [driver.create_stream(device, nonblocking=True, priority=0) for _ in range(count)]
        handles.extend(made)
        return [from_handle(handle, device) for handle in made]

    def clear() -> None:
        gc.collect()  # a library may hold its view in a cycle, and the handle must outlive the view
        while handles:
            driver.destroy_stream(handles.pop())

    try:
        yield Arms(
            held_calls(ours), held_calls(theirs), fresh, fresh, clear=clear, one_turn=TURN, **others
        )
    finally:
        clear()


class Held:
    """Holds a stream during a turn: ``Arms`` take ``hold`` as before, and ``end`` as after."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream.cuda_stream
        self._gate: Any = None

    def hold(self) -> None:
        """Hold what is submitted from now on."""
        self._gate = _gate.Gate()
        self._gate.hold(self._stream)

    def open(self) -> None:
        """Let it run."""
        self._gate.open()

    def end(self) -> None:
        """Let it run, and take the gate away."""
        self._gate.__exit__()


# -- calls that an operation has to make -------------------------------------------------------

Calls = list["Callable[[], object]"]


def edge(event: int, source: Any, target: Any) -> Calls:
    """Return what makes one stream wait for another, by the driver alone."""
    cu = loader.cu
    mark, first, later = (
        cu.CUevent(event),
        cu.CUstream(source.cuda_stream),
        cu.CUstream(target.cuda_stream),
    )
    return [partial(cu.cuEventRecord, mark, first), partial(cu.cuStreamWaitEvent, later, mark, 0)]


def ask(stream: Any) -> None:
    """Ask the driver once all that has to be known of a torch stream that is new."""
    cu = loader.cu
    queue = cu.CUstream(stream.cuda_stream)
    cu.cuStreamIsCapturing(queue)
    cu.cuStreamGetId(queue)
    cu.cuStreamGetCtx(queue)
    cu.cuStreamGetFlags(queue)


def looks(libraries: Libraries) -> Calls:
    """Return what tells which streams are current in torch, CuPy and Warp, and which context."""
    torch, cuda, device = libraries.torch, libraries.cupy.cuda, libraries.device
    return [
        partial(torch._C._cuda_getCurrentRawStream, device),
        cuda.get_current_stream,
        partial(getattr, libraries.warp.get_cuda_device(device), "stream"),
        cuda.driver.ctxGetCurrent,
    ]


def moves(libraries: Libraries, s: Any, names: tuple[str, ...]) -> Calls:
    """Return what moves the libraries to the stream and back, by their own quickest calls."""
    from streamkit.backends._warp.current_stream import _arguments, _native_set

    torch = libraries.torch
    in_torch, in_cupy, in_warp = (s.to(name) for name in ("torch", "cupy", "warp"))

    def to(stream: Any) -> Callable[[], object]:
        device = {"device_index": stream.device_index, "device_type": stream.device_type}
        return partial(torch._C._cuda_setStream, stream_id=stream.stream_id, **device)

    calls_of: dict[str, Calls] = {
        "torch": [to(in_torch), to(torch.cuda.current_stream(libraries.device))],
        "cupy": [in_cupy.__enter__, in_cupy.__exit__],
        "warp": [partial(_native_set(), *_arguments(w)) for w in (in_warp, in_warp.device.stream)],
    }
    return [call for name in names for call in calls_of[name]]
