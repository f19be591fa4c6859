"""Ordering through cuda.core's objects, at half the cost of the bindings' functions.

An ordering edge is a record and a wait, and most of what StreamKit costs in a loop.
"""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from streamkit import errors
from streamkit._base import messages
from streamkit._base.locks import new_lock
from streamkit._cuda import driver, driver_events, loader

_lock = new_lock()


@functools.cache
def _core() -> Any:
    with _lock:  # a second thread would be given a module that is still being imported
        try:
            return importlib.import_module("cuda.core")
        except ImportError as error:
            raise messages.not_installed("cuda.core", ("cuda12", "cuda13"), error) from error


def stream(handle: int) -> Any:
    """Return the cuda.core object through which a stream records and waits."""
    core = _core()
    try:
        return core.Stream.from_handle(handle)
    except Exception as error:
        raise failed("cuStreamGetCtx", error) from error


def create_event(context: int, *, timing: bool) -> tuple[int, Any]:
    """Create an event in a context; return its handle, and cuda.core's object that destroys it.

    It can be recorded on streams of that context only (or, of a primary one, its green ones).
    cuda.core makes events in primary contexts; in another, or where it fails, which it does without
    a reason, there is no object, and the caller destroys the event.
    """
    device = driver.primary_device(context)
    event = None if device is None else _core_event(context, device, timing=timing)
    if event is None:
        return driver_events.create_event(context, timing=timing), None
    return int(event.handle), event


def _core_event(context: int, device: int, *, timing: bool) -> Any:
    core = _core()
    with driver.in_context(context):
        try:
            maker = core.Device(device)
            maker.set_current()  # it asks for that, once in each thread
        except Exception as error:
            raise failed("cuCtxSetCurrent", error) from error
        try:
            return maker.create_event(core.EventOptions(timing_enabled=timing))
        except Exception:  # noqa: BLE001 - the driver is asked next, and says why
            return None


def record(event: Any, stream: Any) -> None:
    """Record the event on the stream."""
    if loader.is_forked:
        raise messages.forked()
    try:
        stream.record(event)
    except Exception as error:
        raise failed("cuEventRecord", error) from error


def event_passed(event: Any) -> bool:
    """Whether the event's last record was reached; False if that cannot be told.

    To be asked inside ``beside_captures``, as often as needed.
    """
    try:
        return bool(event.is_done)
    except Exception:  # noqa: BLE001 - who waits for it is told by every other call
        return False


def edge(event: Any, source: Any, target: Any) -> None:
    """Record the event on one stream and hold another's later work until then."""
    if loader.is_forked:
        raise messages.forked()
    try:
        source.record(event)
        target.wait(event)
    except Exception as error:
        raise failed("cuEventRecord or cuStreamWaitEvent", error) from error


def failed(call: str, error: Exception) -> Exception:
    """Word an error of cuda.core, which begins with CUDA's name for it; another is itself."""
    found = re.search(r"CUDA_ERROR_\w+", str(error))
    if found is None:
        return error
    return errors.DriverError(call, found[0], int(getattr(loader.cu.CUresult, found[0])))
