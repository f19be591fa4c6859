"""Operations that are wrong in one thing when a call fails: the fault suite has to find each."""

from __future__ import annotations

import streamkit as sk
from support.emulated.operations import THREAD_LOCAL, Operation, foreign
from support.emulated.operations.libraries import warp
from support.emulated.state_snapshot import RELAXED
from support.gpu.raw import driver


def ask(function, *arguments):
    code, *answers = getattr(driver, function)(*arguments)
    if code:
        raise sk.errors.DriverError(function, code.name, int(code))
    return answers[0] if answers else None


def sound(undo):
    raw = foreign(undo).handle

    def call():
        event = ask("cuEventCreate", 2)
        try:
            ask("cuEventRecord", event, raw)
        finally:
            ask("cuEventDestroy", event)

    return call


def forgets_an_event(undo):
    raw = foreign(undo).handle

    def call():
        event = ask("cuEventCreate", 2)
        ask("cuEventRecord", event, raw)
        ask("cuEventDestroy", event)

    return call


def swallows_the_code(undo):
    raw = foreign(undo).handle
    return lambda: driver.cuStreamQuery(raw)


def tells_another_code(undo):
    raw = foreign(undo).handle

    def call():
        if driver.cuStreamQuery(raw)[0]:
            raise sk.errors.DriverError("cuStreamQuery", "CUDA_ERROR_UNKNOWN", 999)

    return call


def tells_another_call(undo):
    raw = foreign(undo).handle

    def call():
        (code,) = driver.cuStreamQuery(raw)
        if code:
            raise sk.errors.DriverError("cuStreamSynchronize", code.name, int(code))

    return call


def raises_an_error_of_its_own(undo):
    raw = foreign(undo).handle

    def call():
        (code,) = driver.cuStreamQuery(raw)
        if code:
            raise RuntimeError(code.name)

    return call


def stays_in_the_context(undo):
    raw, context = foreign(undo).handle, driver.cuCtxGetCurrent()[1]

    def call():
        ask("cuCtxPushCurrent", context)
        ask("cuStreamQuery", raw)
        ask("cuCtxPopCurrent")

    return call


def stays_relaxed(undo):
    raw = foreign(undo).handle

    def call():
        mode = ask("cuThreadExchangeStreamCaptureMode", RELAXED)
        ask("cuStreamQuery", raw)
        ask("cuThreadExchangeStreamCaptureMode", mode)

    return call


def leaves_warp_elsewhere(undo):
    raw, library = foreign(undo).handle, warp()
    device = library.get_cuda_device(0)

    def call():
        before = device.stream
        library.set_stream(device.null_stream, device)
        ask("cuStreamQuery", raw)
        library.set_stream(before, device)

    return call


def leaves_a_stream_capturing(undo):
    raw = foreign(undo).handle

    def call():
        ask("cuStreamBeginCapture", raw, THREAD_LOCAL)
        ask("cuStreamIsCapturing", raw)
        ask("cuGraphDestroy", ask("cuStreamEndCapture", raw))

    return call


def works_no_more(undo):
    raw, failed = foreign(undo).handle, []

    def call():
        if failed:
            raise failed[0]
        try:
            ask("cuStreamQuery", raw)
        except sk.errors.DriverError as error:
            failed.append(error)
            raise

    return call


def fails_in_a_destructor(undo):
    raw = foreign(undo).handle

    class Guard:
        failed = False

        def __del__(self):
            if self.failed:
                raise ValueError

    def call():
        guard = Guard()
        guard.failed = True
        ask("cuStreamQuery", raw)
        guard.failed = False

    return call


FAULTY = {
    forgets_an_event: "left alive: {'events': 1}",
    swallows_the_code: "succeeded all the same",
    tells_another_code: "raised DriverError('cuStreamQuery', 'CUDA_ERROR_UNKNOWN', 999)",
    tells_another_call: "raised DriverError('cuStreamSynchronize'",
    raises_an_error_of_its_own: "raised RuntimeError(",
    stays_in_the_context: "the contexts: ",
    stays_relaxed: "the capture mode: ",
    leaves_warp_elsewhere: "Warp: ",
    leaves_a_stream_capturing: "then, on the same objects, ",
    works_no_more: "then, on the same objects, ",
    fails_in_a_destructor: "unraisable: ValueError()",
}
SOUND = Operation(sound, ends=False)
