"""One driver call fails: what an operation then raises, what it leaves behind, what works after."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import emulator
import streamkit as sk
from support.emulated.state_snapshot import StateSnapshot, alive
from support.gpu.raw import driver
from support.libraries import version_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

CODES = driver.CUresult
EVERYWHERE = (CODES.CUDA_ERROR_DEINITIALIZED, CODES.CUDA_ERROR_ILLEGAL_ADDRESS)
WHERE_NAMED = {  # what else a function with this in its name can fail with
    "Create": (CODES.CUDA_ERROR_OUT_OF_MEMORY,),
    "cuInit": (
        CODES.CUDA_ERROR_NO_DEVICE,
        CODES.CUDA_ERROR_STUB_LIBRARY,
        CODES.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CODES.CUDA_ERROR_UNKNOWN,
    ),
    "GetCount": (CODES.CUDA_ERROR_NO_DEVICE,),
    "Retain": (CODES.CUDA_ERROR_OUT_OF_MEMORY, CODES.CUDA_ERROR_DEVICE_UNAVAILABLE),
    "Device": (CODES.CUDA_ERROR_NOT_INITIALIZED,),
    "Ctx": (CODES.CUDA_ERROR_INVALID_CONTEXT, CODES.CUDA_ERROR_CONTEXT_IS_DESTROYED),
    "Stream": (
        CODES.CUDA_ERROR_INVALID_HANDLE,
        CODES.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CODES.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CODES.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        CODES.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
    ),
    "Event": (
        CODES.CUDA_ERROR_INVALID_HANDLE,
        CODES.CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        CODES.CUDA_ERROR_CAPTURED_EVENT,
    ),
    "Synchronize": (CODES.CUDA_ERROR_LAUNCH_FAILED,),
    "Query": (CODES.CUDA_ERROR_LAUNCH_FAILED,),
}


class Fault(NamedTuple):
    function: str
    nth: int
    code: Any

    def __str__(self) -> str:
        return f"{self.function} ({self.nth}): {self.code.name}"


# -- what may be otherwise, and why -----------------------------------------------------------


class Accepted(NamedTuple):
    """An outcome that is no DriverError with the code, in the functions of some operations."""

    operations: str  # a pattern
    functions: str  # the same
    reason: str
    raises: type[Exception] | None = None  # None: it succeeds all the same
    code: Any = None  # None: any, and the error has its name

    def covers(self, operation: str, fault: Fault, error: Exception | None) -> bool:
        here = re.fullmatch(self.operations, operation)
        return bool(
            here
            and re.fullmatch(self.functions, fault.function)
            and self.code in (None, fault.code)
            and (type(error) is self.raises if self.raises else error is None)
            and (error is None or self.code is not None or fault.code.name in str(error))
        )


ACCEPTED = [
    Accepted(
        ".*",
        "cuStreamDestroy|cuEventDestroy",
        "a destructor has nobody to tell, and what breaks it breaks every other call",
    ),
    Accepted(
        "drop_a_stream_that_warp_has_seen|close_a_stream_that_is_parked",
        "cuStreamIsCapturing",
        "the end of a stream has nobody to tell either",
    ),
    Accepted(
        "(enter|use|leave|submit|capture|launch_outside).*",
        "cuCtxGetCurrent",
        "a context that cannot be read is taken for another one, and set",
    ),
    Accepted(
        "(to_warp|enter|submit).*|the_per_thread_stream_to_each_library",
        "cuCtxGetCurrent|cuEventCreate",
        "Warp calls these itself when it meets a stream, prints what failed, and goes on",
    ),
    Accepted(
        "(?!record_in_another_context).*",  # there StreamKit makes the event itself
        "cuEventCreate",
        "cuda.core does not say why it has no event, so the driver is asked for one, and gives it",
    ),
    Accepted(
        "keep.*|drop_an_array.*|hand.*",
        "cuEventQuery|cuThreadExchangeStreamCaptureMode",
        "what cannot be asked is kept until it can",
    ),
    Accepted(
        "event_close_in_another_context",
        "cuCtxGetCurrent|cuCtxGetDevice",
        "an event whose context cannot be asked about goes with that",
    ),
    Accepted(
        "drop_an_array.*",
        ".*",
        "the end of an array has nobody to tell, and what it was lent for is told the next time",
    ),
    Accepted(
        "(leave|submit|capture|launch_outside).*",
        ".*",
        "the rest of the scope is left first",
        sk.errors.ScopeError,
    ),
    Accepted(
        "capture.*",
        "cuGraphInstantiateWithFlags",
        "the bindings call it cuGraphInstantiate",
        sk.errors.DriverError,
    ),
    Accepted(
        "capture_in_vain|capture_a_loose_end",
        "cuEventRecord",
        "what the end of the block's scope could not restore is a note on the error of the block",
    ),
    Accepted(
        "capture_in_vain",
        "cuCtxSetCurrent|cuStreamQuery|cuStreamGetCaptureInfo",
        "a queue that cannot be asked is not among those that the error calls busy",
    ),
    Accepted(
        "capture_in_vain|capture_a_loose_end",
        "cuStreamEndCapture|cuStreamIsCapturing",
        "after an error of the block what fails is tried again, and only then a note on that error",
    ),
    Accepted(
        "(capture|launch|close).*",
        "cuGraphDestroy|cuGraphExecDestroy|cuEventQuery|cuThreadExchangeStreamCaptureMode",
        "a graph that could not be destroyed is tried again with the next",
    ),
    Accepted(
        "capture_and_drop|capture_a_section|close_after_a_launch",
        "cuCtxGetCurrent|cuCtxSetCurrent|cuCtxGetDevice|cuStreamIsCapturing",
        "nor is it destroyed while it cannot be told whether a library captures here",
    ),
    Accepted(
        "capture.*",
        ".*",
        "an error of the capture itself is told as one, with the driver's words",
        sk.errors.CaptureError,
    ),
    Accepted(
        ".*default_stream.*",
        "cuStreamIsCapturing",
        "so the driver says that a blocking stream captures",
        sk.errors.CaptureError,
        CODES.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    ),
    Accepted(
        "event_elapsed",
        "cuEventElapsedTime",
        "so the driver says that an event was not recorded with timing",
        ValueError,
        CODES.CUDA_ERROR_INVALID_HANDLE,
    ),
]
STAYS = [  # where the call that failed is the one that would have put this back
    ("the contexts", lambda _, fault: fault.function == "cuCtxPopCurrent"),  # a library's own
    (
        "the contexts",
        lambda name, fault: (
            fault.function == "cuCtxSetCurrent" and name.startswith(("leave", "submit"))
        ),
    ),
    (
        "the contexts",
        lambda name, fault: (
            fault.function == "cuCtxPushCurrent"
            and name.startswith("drop_an_array")
            and version_of("warp-lang") < (1, 15)  # pops what it could not push, for each array
        ),
    ),
    (
        "the capture mode",
        lambda _, fault: (
            fault.function == "cuThreadExchangeStreamCaptureMode" and fault.nth % 2 == 0
        ),
    ),
]
needed: set[Accepted] = set()
KEPT = {
    "cuStreamDestroy": "streams",
    "cuEventDestroy": "events",
    "cuGraphDestroy": "graphs",
}  # by a destroy that fails


# -- a trial ----------------------------------------------------------------------------------


class Undo(contextlib.ExitStack):
    """What an operation needs undone, and how everything has to be if it fails."""

    expected: StateSnapshot | None = None

    def expect_what_is_now(self) -> None:
        self.expected = StateSnapshot()


def try_all(name: str, operation: Any) -> list[str]:
    """Let each driver call of the operation fail with each code; return all that is wrong."""
    calls = {}
    for _ in range(3):  # what is made once for the process is then there
        gc.collect()  # or what others have left would be asked, or end, among these calls
        calls = try_whole(operation)
    gc.collect()
    # one by one; and as after a kernel's error, when whatever is tried next fails
    broken = tuple(Fault(function, 1, CODES.CUDA_ERROR_ILLEGAL_ADDRESS) for function in calls)
    return [
        f"{', '.join(map(str, trial))}: {problem}"
        for trial in [*((fault,) for fault in faults(calls)), *([broken] if broken else [])]
        for problem in [*try_one(name, operation, *trial), *try_again(operation)]
    ]


def faults(calls: dict[str, int]) -> Iterator[Fault]:
    for function, count in sorted(calls.items()):
        named = [codes for part, codes in WHERE_NAMED.items() if part in function]
        for code in dict.fromkeys([*EVERYWHERE, *(code for codes in named for code in codes)]):
            for nth in range(1, count + 1):
                yield Fault(function, nth, code)


def try_whole(operation: Any) -> dict[str, int]:
    """Try it with nothing failing; return the driver calls it makes, with how often."""
    with Undo() as undo:
        call = operation.prepare(undo)
        emulator.reset_calls()
        result = call()
        calls = emulator.all_calls()
        if not operation.ends:
            call()
        del call, result
    return calls


def try_one(name: str, operation: Any, *trial: Fault) -> list[str]:
    """Try it with these calls failing, then once more on the same objects; say what is wrong."""
    problems: list[str] = []
    may_stay = {what for what, where in STAYS if any(where(name, fault) for fault in trial)}
    before, live = StateSnapshot(), alive()
    with unraisable(problems), Undo() as undo:
        call = operation.prepare(undo)
        expected = undo.expected or StateSnapshot()
        for fault in trial:
            emulator.fail(fault.function, fault.code, nth=fault.nth)
        error = error_of(call)
        if emulator.clear_faults() == len(trial):
            problems.append("none of the calls was made")
        problems += wrong_outcome(name, trial, error)
        if error is not None or operation.ends:
            problems += moved(expected, may_stay)
        if not operation.ends and (error := error_of(call)):
            problems.append(f"then, on the same objects, {error!r}")
        del call, error
        undo.expected = expected = None  # it holds streams
    problems += moved(before, may_stay)
    problems += leaked(live, [KEPT[fault.function] for fault in trial if fault.function in KEPT])
    return problems


def try_again(operation: Any) -> list[str]:
    """Try it with nothing failing, after something did."""
    problems: list[str] = []
    before, live = StateSnapshot(), alive()
    with unraisable(problems):
        if error := error_of(lambda: try_whole(operation)):
            problems.append(f"then, on new objects, {error!r}")
    return problems + moved(before) + leaked(live)


def error_of(call: Any) -> Exception | None:
    """What it raises, holding none of its frames."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, is judged
        return error.with_traceback(None)
    return None


def wrong_outcome(
    name: str,
    trial: tuple[Fault, ...],
    error: Exception | None,
    excepted: list[Accepted] = ACCEPTED,
) -> list[str]:
    for fault in trial:
        if isinstance(error, sk.errors.DriverError) and fault.function in error.call:
            if (error.name, error.code) == (fault.code.name, int(fault.code)):
                return []
        else:
            for accepted in excepted:
                if accepted.covers(name, fault, error):
                    needed.add(accepted)
                    return []
    return [f"raised {error!r}" if error else "succeeded all the same"]


def moved(before: StateSnapshot, may_stay: Container[str] = ()) -> list[str]:
    """What differs from before; it is put back."""
    differences = before.differences()
    before.restore()
    return [text for what, text in differences.items() if what not in may_stay]


def leaked(before: dict[str, int], may_live: Sequence[str] = ()) -> list[str]:
    gc.collect()
    now = alive()
    grown = {kind: now[kind] - before[kind] for kind in now if now[kind] != before[kind]}
    for kind in may_live:
        if grown.get(kind) == 1:
            del grown[kind]
    return [f"left alive: {grown}"] if grown else []


@contextlib.contextmanager
def unraisable(problems: list[str]) -> Iterator[None]:
    """Note what destructors and callbacks could not raise."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda args: problems.append(f"unraisable: {args.exc_value!r}")
    try:
        yield
    finally:
        sys.unraisablehook = hook
