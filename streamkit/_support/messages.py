"""Errors that several modules raise: each says what happened, to which object, and what to do."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from streamkit._support import futures
from streamkit.errors import (
    BackendNotInstalledError,
    CaptureError,
    DeviceMismatchError,
    ForkedProcessError,
    NoDeviceError,
    ScopeError,
    StreamClosedError,
    UnsupportedStreamError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DISTRIBUTION = "streamkit-cuda"
_LONGEST = threading.TIMEOUT_MAX / 2  # seconds: well below what a lock can wait for


def describe(obj: object) -> str:
    """Name an object for a message.

    Foreign objects are named by their type, because the ``repr`` of a CUDA array waits for the
    device.
    """
    kind = type(obj)
    if isinstance(obj, ModuleType):
        text = f"the module {obj.__name__}"
    elif isinstance(obj, type):
        text = f"the class {obj.__module__}.{obj.__qualname__}"
    elif isinstance(obj, (tuple, list)) and kind in _PAIRS:
        text = _PAIRS[kind].format(", ".join(describe(item) for item in obj[:_ITEMS]))
    elif kind in _PLAIN or str(kind.__module__).partition(".")[0] == "streamkit":
        text = repr(obj)
    else:
        return in_one_line(f"<{kind.__module__}.{kind.__qualname__} object at {id(obj):#x}>")
    text = in_one_line(text)
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."


def in_one_line(text: str) -> str:
    """Return a text, which may come from anywhere, with unprintable characters written out."""
    return text if text.isprintable() else repr(text)[1:-1]


_PLAIN = (str, bytes, int, float, bool, type(None))
_PAIRS: dict[type, str] = {tuple: "({})", list: "[{}]"}
_ITEMS = 4
_LINE = 120


def not_a_stream(obj: object) -> UnsupportedStreamError:
    """Return the error for an object that no adapter knows."""
    if isinstance(obj, int) and not isinstance(obj, bool):
        return UnsupportedStreamError(
            f"cannot wrap {obj!r}: a bare integer names no device and no owner. "
            "If it is a cudaStream_t, use streamkit.from_handle(handle, owner=...)."
        )
    if obj is None:
        return UnsupportedStreamError(
            "cannot wrap None. For a default stream, use streamkit.default_stream(). For the "
            "current stream of a library, use streamkit.current_stream(library)."
        )
    if isinstance(obj, str):
        return UnsupportedStreamError(
            f"cannot wrap {describe(obj)}, which is a name and no stream. "
            "streamkit.new_stream(device) makes a stream of a device, and "
            "streamkit.current_stream(library) gives that of a library."
        )
    if futures.is_future(obj):
        return UnsupportedStreamError(
            f"cannot wrap {describe(obj)}: a future has no place on a CUDA stream, which never "
            "waits for the host. Give the stream its work when the future is done, as in "
            "future.add_done_callback(launch), or wait for it on a host stream."
        )
    if isinstance(obj, type):
        return UnsupportedStreamError(f"cannot wrap {describe(obj)}: pass an instance of it.")
    why = (
        "it is not a stream of a library that StreamKit knows, and has no __cuda_stream__() method"
    )
    if is_array(obj):
        why = (
            "it is an array. streamkit.current_stream(of=x) gives the stream of its library, and "
            "an array comes before its stream in streamkit.handoff(x, stream)"
        )
    return UnsupportedStreamError(f"cannot wrap {describe(obj)}: {why}.")


def library_cannot_take(library: str, what: str, instead: str) -> UnsupportedStreamError:
    """Return the error for a queue that a library cannot represent."""
    return UnsupportedStreamError(f"{library} cannot take {what}: {instead}")


def not_installed(library: str, install: str, cause: object) -> BackendNotInstalledError:
    """Return the error for a library that cannot be imported.

    ``install`` is empty if nothing installs it on this system.
    """
    if not install:
        return BackendNotInstalledError(
            f"{library} cannot be imported ({cause}), and there is none for this system: {NO_CUDA}",
            name=library,
        )
    return BackendNotInstalledError(
        f"{library} cannot be imported ({cause}). Install it with: {install}", name=library
    )


NO_CUDA = "CUDA does not exist on macOS."


def no_device(what: str) -> NoDeviceError:
    """Return the error for a machine without CUDA."""
    is_mac = sys.platform == "darwin"
    why = NO_CUDA if is_mac else f"{what}. The command 'streamkit doctor' looks for the cause."
    return NoDeviceError(
        f"no CUDA device: {why} Without a GPU, streamkit.new_stream(device='cpu') gives the "
        "same interface on the host."
    )


def forked() -> ForkedProcessError:
    """Return the error for the use of CUDA in a forked child."""
    return ForkedProcessError(
        "this process was forked after CUDA was initialised, and CUDA does not survive a fork. "
        "Start workers with multiprocessing's 'spawn' or 'forkserver' method."
    )


def of_parent(obj: object) -> ForkedProcessError:
    """Return the error for the use of a host object of the parent in a forked child."""
    return ForkedProcessError(
        f"{describe(obj)} belongs to the process from which this one was forked, whose threads run "
        "its work. Make a new one here, or start workers with multiprocessing's 'spawn' or "
        "'forkserver' method."
    )


def closed(obj: object) -> StreamClosedError:
    """Return the error for the use of a closed object."""
    return StreamClosedError(f"{describe(obj)} is closed. Make a new one.")


def gone(token: object, process: str) -> StreamClosedError:
    """Return the error for a token of something that no longer exists where the token was made."""
    folder, _, _ = process.rpartition("/")
    return StreamClosedError(
        f"what {describe(token)} opens is gone: it was closed, or the process that made it has "
        "ended. Send a new token. Both processes need the folder "
        f"{folder}, also in containers: STREAMKIT_RUNTIME_DIR can name "
        "one that both have."
    )


def illegal_in_capture(operation: str, obj: object, instead: str) -> CaptureError:
    """Return the error for an operation that would invalidate the capture on this stream."""
    return CaptureError(
        f"{operation} of {describe(obj)} while it captures would invalidate the capture, so it "
        f"was not tried: {instead}"
    )


def kept_in_capture(stream: object) -> CaptureError:
    """Return the error for keeping something for work that a capture only records."""
    return CaptureError(
        f"{describe(stream)} captures. Its work runs again at each launch, so what the work uses "
        "must live as long as the graph. Keep the objects beside the graph."
    )


def device_mismatch(first: object, second: object, instead: str) -> DeviceMismatchError:
    """Return the error for two objects of different devices in one operation."""
    return DeviceMismatchError(
        f"{describe(first)} and {describe(second)} are on different devices: {instead}"
    )


def records_no_stream(stream: object, other: object) -> UnsupportedStreamError:
    """Return the error for a stream in the place of the event to record."""
    return UnsupportedStreamError(
        f"record of {describe(stream)} takes an event, not {describe(other)}. To let one stream "
        "wait for another, write t.wait(s)."
    )


def not_copied(obj: object) -> TypeError:
    """Return the error for the copy or pickle of something that exists once, in this process."""
    return TypeError(
        f"{describe(obj)} cannot be copied or pickled, because it belongs to this process. Make "
        "one in each process. Within one process, share this object."
    )


def wrong_thread(what: object, home: object, here: object) -> ScopeError:
    """Return the error for a per-thread default stream used in another thread."""
    return ScopeError(
        f"{describe(what)} is the per-thread default stream of thread {home}; thread {here} has "
        "another one. Call streamkit.default_stream(per_thread=True) in the thread that uses it, "
        "or share a streamkit.new_stream()."
    )


def is_array(obj: object) -> bool:
    """Whether the object's class is one of arrays, also of a library without an adapter."""
    return any(hasattr(type(obj), name) for name in ("__dlpack__", "__cuda_array_interface__"))


def not_an_array(obj: object) -> TypeError:
    """Return the error for the handoff of something that no library can lend as an array."""
    return TypeError(
        f"{describe(obj)} is not an array that can be handed over. To order two streams, use "
        "s.wait(stream). To keep an object alive until submitted work has run, use s.keep(obj)."
    )


def cannot_lend(array: object, why: str) -> TypeError:
    """Return the error for an array whose memory no second array can use."""
    return TypeError(
        f"{describe(array)} cannot be handed over: {why}. Order the streams with s.wait(stream), "
        "and keep it with s.keep(array) after its last use."
    )


def needs_gradient(array: object) -> ValueError:
    """Return the error for an array whose gradient a graph would not record."""
    return ValueError(
        f"{describe(array)} requires a gradient, which a launch of a graph does not record. Pass "
        "array.detach(), or call the function itself."
    )


def no_memory_of_its_own(array: object) -> TypeError:
    """Return the error for an array of a class whose instances only hold others."""
    return TypeError(
        f"{describe(array)} has no memory of its own, so a graph cannot recognise it. Pass the "
        "arrays that it holds, and make it of them in the function."
    )


def cannot_watch() -> RuntimeError:
    """Return the error for an ``await`` or ``then`` without a thread that waits for the queue."""
    return RuntimeError(
        "cannot start the thread that waits for the queue: the interpreter is ending, there are "
        "too many threads, or this is that thread, running a destructor. Call sync() instead."
    )


def waits_in_dispatcher(future: object) -> RuntimeError:
    """Return the error for a destructor that would wait in the very thread that ends its wait."""
    return RuntimeError(
        f"a destructor that the thread 'streamkit-dispatcher' runs waits for {describe(future)}, "
        "which that thread has to learn of, and so it would never end. Sync the stream instead, or "
        "give the rest to its then()."
    )


def raise_timeout(what: object, timeout: float) -> NoReturn:
    """Raise the built-in TimeoutError for work that is still pending after so many seconds."""
    message = f"{describe(what)} is still busy after {timeout} s. Its work goes on."
    raise TimeoutError(message)


def raise_or_note(failure: Exception, error: BaseException | None) -> None:
    """Raise the failure of a block's end, unless the block itself ends with an exception.

    The block's exception then passes, with the failure as a note. GeneratorExit does not count:
    ``close`` of the generator would swallow it, and the note with it.
    """
    if error is None or isinstance(error, GeneratorExit):
        raise failure
    error.add_note(f"and after that: {type(failure).__name__}: {failure}")


def at_end(call: Callable[[], object]) -> Callable[[object, BaseException | None, object], None]:
    """Return an ``__exit__`` that makes a call, and hands an error of it to ``raise_or_note``."""

    def end(_kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            call()
        except Exception as failure:  # noqa: BLE001 - any error of the call
            raise_or_note(failure, error)

    return end


def in_seconds(timeout: Any, what: object) -> float | None:
    """Return a timeout of ``what`` as a float of Python's own; None waits without an end.

    TypeError or ValueError unless it is None or a number of seconds from 0, of any library.
    """
    if timeout is None:
        return None
    is_number = isinstance(timeout, (int, float)) or hasattr(timeout, "__float__")
    is_number = is_number and not isinstance(timeout, bool)
    with contextlib.suppress(ArithmeticError):  # of decimal's nan
        if is_number and timeout >= 0:  # nan is not
            return float(min(timeout, _LONGEST))
    raise (ValueError if is_number else TypeError)(
        f"{describe(what)} cannot wait for {describe(timeout)}: a timeout is a number of seconds, "
        "0 or more; None waits as long as it takes."
    )
