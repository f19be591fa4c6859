"""The recorder of the GPU: callbacks show it each call of the driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from streamkit._cuda import loader
from streamkit._support import messages
from streamkit.diagnostics.recording import places
from streamkit.diagnostics.recording.callbacks import NoCallbacksError, RefusedError
from streamkit.diagnostics.recording.driver_recorder import DriverRecording, operations
from streamkit.diagnostics.recording.operations import LAST, Given, Operation
from streamkit.errors import BackendNotInstalledError, ScopeError

if TYPE_CHECKING:
    from streamkit.diagnostics.recording.driver_recorder import DriverQueues
    from streamkit.diagnostics.recording.operations import AuditedQueue
    from streamkit.diagnostics.recording.steps import CudaStep

_NOT_KNOWN = LAST, LAST
"""When it was given: what is known comes before."""


class CallbackRecorder:
    """Records what all threads give to the GPU, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._calls: DriverRecording | None = None
        self._steps: list[CudaStep] = []
        self._queues: DriverQueues | None = None

    def start(self) -> None:
        """Begin. BackendNotInstalledError without CUPTI, ScopeError if another tool has it."""
        calls = DriverRecording(places.line_of_user, of_launches=False)
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

    def count(self) -> int:
        """Return how many calls of the driver were noted so far."""
        return 0 if self._calls is None else self._calls.count()

    def operations(self) -> list[Given]:
        """Return what was given, in that order."""
        if self._queues is None or self._calls is None:
            return []
        found = list(operations(self._steps, self._queues.named))
        if self._calls.lost:  # they can have been work, on any queue
            name = f"calls of the driver that could not be read: {self._calls.lost}"
            found.append(Given(Operation("function", name, None), _NOT_KNOWN, _NOT_KNOWN))
        return found

    def queue_of(self, stream: Any) -> AuditedQueue | None:
        """Return what this audit calls the queue of a StreamKit stream, or of one with this id."""
        if self._queues is None:
            return None
        if not isinstance(stream, int):
            with contextlib.suppress(Exception):  # closed, or another thread's
                return self._queues.of_record(stream._live())
            stream = stream.id
        return self._queues.with_id(stream)
