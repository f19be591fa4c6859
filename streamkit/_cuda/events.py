"""Events, by which the driver tells that a stream has come to a point.

The functions on handles call the driver through its bindings. The functions named after cuda.core
take its objects instead, which record and wait at half that cost, and so serve inner loops.
"""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask
from streamkit._support import messages
from streamkit._support.locks import new_lock

_TIMING, _NO_TIMING, _INTERPROCESS = 0, 2, 4
_NOT_READY = 600
_EXTERNAL = 1

_lock = new_lock()


# -- on handles -------------------------------------------------------------------------------


def create(context: int, *, timing: bool, interprocess: bool = False) -> int:
    """Create an event in a context, on whose streams alone the event can be recorded.

    An event that other processes can open has no timing.
    """
    flags = _TIMING if timing else _NO_TIMING | _INTERPROCESS * interprocess
    return driver.create_in(context, functools.partial(ask, "cuEventCreate", flags), destroy)


def destroy(event: int) -> None:
    """Destroy an event; waits that are queued already still hold."""
    ask("cuEventDestroy", event)


def exported(context: int, event: int) -> bytes:
    """Return the bytes that open an event elsewhere; DriverError if it was not made for that."""
    # any context of the device will do, but without a current one the call fails
    return driver.handle_bytes(driver.call_in(context, ask, "cuIpcGetEventHandle", event))


def record(event: int, stream: int, *, external: bool = False) -> None:
    """Mark the stream's present end; ``external`` makes the record a node of the captured graph."""
    if external:
        ask("cuEventRecordWithFlags", event, stream, _EXTERNAL)
        return
    (code,) = loader.cu.cuEventRecord(event, stream)  # not by ``ask``: for each ``then``
    if code:
        raise driver.error("cuEventRecord", code)


def wait(stream: int, event: int, *, external: bool = False) -> None:
    """Hold later work of the stream until the event's last record was reached."""
    ask("cuStreamWaitEvent", stream, event, _EXTERNAL if external else 0)


def is_done(event: int) -> bool:
    """Whether the event's last record was reached; an error on its stream raises."""
    return driver.call_beside_captures(query, event)


def query(event: int) -> bool:
    """Return the answer of ``is_done``; the thread must be inside ``beside_captures``."""
    (code,) = loader.cu.cuEventQuery(event)
    if code and code != _NOT_READY:
        raise driver.error("cuEventQuery", code)
    return not code


# -- on cuda.core's objects -------------------------------------------------------------------


@functools.cache
def _core() -> Any:
    with _lock:  # else a second thread could get a module that is still being imported
        try:
            return importlib.import_module("cuda.core")
        except ImportError as error:
            raise loader.not_installed("cuda.core", error) from error


def core_stream(handle: int) -> Any:
    """Return the cuda.core object through which a stream records and waits."""
    core = _core()
    try:
        return core.Stream.from_handle(handle)
    except Exception as error:
        raise core_error("cuStreamGetCtx", error) from error


def create_core(context: int, *, timing: bool) -> tuple[int, Any]:
    """Create an event in a context; return its handle, and cuda.core's object that destroys it.

    The event can be recorded only on streams of that context, or of a green one of its device.
    cuda.core makes events in primary contexts. In another context, while cuda.core is being
    imported, or if it fails without a reason, there is no object: the caller destroys the event.
    """
    device = driver.device_of.get(context)
    core: Any = None if device is None else _core()
    event = None
    # a garbage collection inside the import of cuda.core finds a part of that module
    if hasattr(core, "Device") and hasattr(core, "EventOptions"):
        with driver.in_context(context):
            try:
                maker = core.Device(device)
                maker.set_current()  # cuda.core asks for this, once in each thread
            except Exception as error:
                raise core_error("cuCtxSetCurrent", error) from error
            try:
                event = maker.create_event(core.EventOptions(timing_enabled=timing))
            except Exception:  # noqa: BLE001 - the driver's own call below says why
                event = None
    # cuda.core's event has no handle at the interpreter's end, when a destructor may record
    handle = None if event is None else event.handle
    if handle is None:
        return create(context, timing=timing), None
    return int(handle), event


def record_and_wait(event: Any, source: Any, target: Any) -> None:
    """Record the event on one stream and hold another's later work until then."""
    if loader.is_forked:
        raise messages.forked()
    try:
        source.record(event)
        target.wait(event)
    except Exception as error:
        raise core_error("cuEventRecord or cuStreamWaitEvent", error) from error


def is_done_core(event: Any) -> bool:
    """Return whether the event's last record was reached; False if the driver cannot say.

    The thread must be inside ``beside_captures``.
    """
    try:
        return bool(event.is_done)
    except Exception:  # noqa: BLE001 - every call that waits for the event raises this error
        return False


def core_error(call: str, error: Exception) -> Exception:
    """Return DriverError for an error that has CUDA's name for one in its text, else the error."""
    found = re.search(r"CUDA_ERROR_\w+", str(error))
    if found is None:
        return error
    return errors.DriverError(call, found[0], int(getattr(loader.cu.CUresult, found[0])))
