"""The recorder of the GPU without times: callbacks show it each call of the driver."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamkit._audit.driver_recording import ELEMENTS, WORK, DriverRecording
from streamkit._audit.operations import AuditedQueue, Operation
from streamkit._base import messages
from streamkit._cuda import driver, loader
from streamkit._cuda.driver_callbacks import Kernel, NoCallbacksError, RefusedError
from streamkit._pictures.kernel_names import library_of_kernel, readable
from streamkit.errors import BackendNotInstalledError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamkit._audit.driver_recording import CudaQueue, CudaStep, DriverQueues
    from streamkit._audit.operations import Kind

_NO_OPERATIONS = ("free", "wait for a value")
_COPIES = {"HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device",
           "Peer": "device to another"}  # fmt: skip
_OTHERS: dict[str, tuple[Kind, str]] = {
    "cuGraphLaunch": ("graph", "CUDA graph"),
    "cuLaunchHostFunc": ("function", "host function"),
    "cuStreamAddCallback": ("function", "host function"),
}


class CallbackRecorder:
    """Records what all threads give to the GPU, from ``start`` to ``stop``, without times."""

    def __init__(self) -> None:
        self._calls: DriverRecording | None = None
        self._steps: list[CudaStep] = []
        self._queues: DriverQueues | None = None

    def start(self) -> None:
        """Begin. BackendNotInstalledError without CUPTI, ScopeError if another tool has it."""
        calls = DriverRecording()
        try:
            calls.start()
        except RefusedError as error:
            raise ScopeError(f"an audit cannot begin here: {error}.") from error
        except NoCallbacksError as error:
            message = f"an audit of CUDA streams needs CUPTI: {error}."
            raise BackendNotInstalledError(message, name="cupti") from error
        self._calls = calls

    def sync(self) -> None:
        """Wait for nothing, because the callbacks have already noted what was given."""
        if loader.is_forked:
            raise messages.forked()

    def stop(self) -> None:
        """End. Nothing is left behind."""
        if self._calls is not None:
            self._calls.stop()
            if not loader.is_forked:
                self._steps = self._calls.steps()
                self._queues = self._calls.queues(self._steps)

    def operations(self) -> list[Operation]:
        """Return what was given, in that order."""
        if self._queues is None:
            return []
        return list(operations(self._steps, self._queues.named))

    def queue_of(self, stream: Any) -> AuditedQueue | None:
        """Return what this audit calls the queue of a StreamKit stream, or of one with this id."""
        if self._queues is None:
            return None
        if not isinstance(stream, int):
            with contextlib.suppress(Exception):  # closed, or another thread's
                return self._queues.of_record(stream._live())
            stream = stream.id
        return self._queues.with_id(stream)


def operations(
    steps: Iterable[CudaStep], named: Callable[[CudaQueue], AuditedQueue]
) -> Iterator[Operation]:
    """Yield the operations of a block, without those of private streams.

    Their times are the numbers of their steps; a wait begins with that of the awaited point.
    """
    private = {handle for _, handle in driver.private_streams}
    recorded: dict[int, CudaStep] = {}  # by events

    def queue_of(step: CudaStep | None) -> AuditedQueue | None:
        return None if step is None or step.queue is None else named(step.queue)

    for step in steps:
        queue, begun, found = queue_of(step), step, None
        if step.kind in WORK:
            found = None if step.kind in _NO_OPERATIONS else _work(step, queue)
        elif step.kind == "record":
            recorded[step.fields[0]] = step
            found = Operation("record", "record", queue, 0, 0)
        elif step.kind == "wait":
            awaited = recorded.get(step.fields[1])
            begun = awaited or step
            found = Operation("wait", step.call.name, queue, 0, 0, after=queue_of(awaited))
        elif step.kind == "done" and "Synchronize" in step.call.name:
            if step.call.kind == "event done":
                queue = queue_of(recorded.get(step.fields[0]))
            found = Operation("synchronisation", step.call.name, queue, 0, 0, blocks_host=True)
        if found is not None and not (step.queue and step.queue.handle in private):
            yield replace(found, start_ns=int(begun.number), end_ns=int(step.number))


def _work(step: CudaStep, queue: AuditedQueue | None) -> Operation:
    call = step.call
    if isinstance(step.fact.more, tuple):
        name = readable(Kernel(*step.fact.more).symbol)
        return Operation("kernel", name, queue, 0, 0, library_of_kernel(name))
    if step.kind in ELEMENTS:
        size = step.fields[1] * ELEMENTS[step.kind]
        return Operation("fill", f"fill, {size} bytes", queue, 0, 0)
    if call.name in _OTHERS:
        return Operation(*_OTHERS[call.name], queue, 0, 0)
    if "Memset" in call.name:
        return Operation("fill", "fill", queue, 0, 0)
    which = next((text for mark, text in _COPIES.items() if mark in call.name), "of an array")
    size_known = f", {step.fields[2]} bytes" if step.kind in ("copy", "copy and wait") else ""
    # a call without a stream waits, but for copies inside devices
    blocks = call.stream is None and which not in ("device to device", "device to another")
    return Operation("copy", f"copy {which}{size_known}", queue, 0, 0, blocks_host=blocks)
