"""Events, and functions that the driver calls: how it tells that a stream has come to a point."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMING, _NO_TIMING = 0, 2
_EXTERNAL = 1


def create_event(context: int, *, timing: bool) -> int:
    """Create an event in a context: it can be recorded only on streams of that context."""
    flags = _TIMING if timing else _NO_TIMING
    return driver.create_in(context, functools.partial(ask, "cuEventCreate", flags), destroy_event)


def destroy_event(event: int) -> None:
    """Destroy an event; waits already queued on it still hold."""
    ask("cuEventDestroy", event)


def record_event(event: int, stream: int, *, external: bool = False) -> None:
    """Mark the present end of the stream; ``external`` makes it a node of the captured graph."""
    if external:
        ask("cuEventRecordWithFlags", event, stream, _EXTERNAL)
    else:
        ask("cuEventRecord", event, stream)


def wait_event(stream: int, event: int, *, external: bool = False) -> None:
    """Hold later work of the stream until the event's last record was reached."""
    ask("cuStreamWaitEvent", stream, event, _EXTERNAL if external else 0)


def event_done(event: int) -> bool:
    """Return whether the event's last record was reached; an error on its stream raises."""
    with driver.beside_captures():
        return event_reached(event)


def event_reached(event: int) -> bool:
    """Return the same in a thread that is ``beside_captures`` already."""
    return driver.is_done("cuEventQuery", event)


def elapsed_ms(start: int, end: int) -> float:
    """Return the milliseconds between two reached events made with timing."""
    return float(ask("cuEventElapsedTime", start, end))


def call_host(stream: int, function: int, argument: int) -> None:
    """Call a C function, which must not be Python, when the stream gets there without an error."""
    code = _launch_host()(stream, function, argument)
    if code:
        raise driver.error("cuLaunchHostFunc", loader.cu.CUresult(code))


@functools.cache
def _launch_host() -> Callable[[int, int, int], int]:
    # not the bindings' function: some of them (13.3) take the GIL in the driver's thread
    import ctypes  # noqa: PLC0415 - slow to import, and not needed until somebody waits

    address, _ = ask("cuGetProcAddress", b"cuLaunchHostFunc", 10000, 0)
    return ctypes.CFUNCTYPE(ctypes.c_int, *3 * [ctypes.c_void_p])(address)  # releases the GIL
