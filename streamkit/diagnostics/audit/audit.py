"""``audit``, which records the work of a block with the queues that it really ran on."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._cuda import driver, loader
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support.messages import at_end, describe
from streamkit._support.refusals import block
from streamkit.diagnostics.pictures import page, terminal, timeline
from streamkit.diagnostics.recording.driver_recorder import DriverRecording, operations
from streamkit.diagnostics.recording.host_recorder import HostRecorder
from streamkit.diagnostics.recording.operations import (
    LAST,
    AuditedQueue,
    Given,
    Operation,
    Operations,
    Order,
    listed,
)
from streamkit.diagnostics.recording.recorder import NoCallbacksError, RefusedError
from streamkit.errors import BackendNotInstalledError, OneQueueError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from os import PathLike

    from streamkit.diagnostics.recording.driver_recorder import DriverQueues
    from streamkit.diagnostics.recording.steps import CudaStep
    from streamkit.protocols import StreamLike


@block("streamkit.audit() as report")
def audit() -> Generator[AuditReport]:
    """Record every operation in the block, of any library and thread, with its real queue.

    On the GPU these are kernels, copies, fills, waits, and where the host waited; on host streams,
    submitted functions and the bodies of scopes. The functions of ``then`` run on no queue, and are
    left out. CUPTI shows each call of the driver when it is made to a recorder in C, so the report
    knows the order in which the queues were given their work, and not when that ran. A CUDA graph
    is one operation of the queue that launches it. The block's end does not wait for the GPU, a
    stream may capture meanwhile, and nothing is left behind.

    The report is made when the block ends, which waits until host streams have run; if the block
    raises, it holds what had run by then. Inside a scope of a host stream it does not wait for that
    stream. What waits for it, for a future, or for a scope of another thread, gets one second
    together; ``unfinished`` counts the rest. Audits nest. In a forked child host streams alone are
    recorded.

    Raises:
        BackendNotInstalledError: There is a GPU but no CUPTI, or no recorder. The error says how to
            install it.
        ScopeError: torch's profiler or another tool has CUPTI, which serves one at a time.
        ForkedProcessError: The block ends in a child that was forked inside it.
    """
    return _record(driver.is_available)


@block("program_audit() as report")
def program_audit() -> Generator[AuditReport]:
    """Record as ``audit``, around a program that has still to initialise CUDA, and may fork."""
    return _record(lambda: bool(loader.driver_version()))


def _record(uses_cuda: Callable[[], bool]) -> Generator[AuditReport]:
    report, cuda = AuditReport(), CallbackRecorder(uses_cuda)
    host = HostRecorder(cuda.count)

    def complete() -> None:
        on_host, unfinished = host.operations(cuda.queue_of)
        given = Order([*cuda.operations(), *on_host])
        report.complete(given.operations(), unfinished=unfinished)

    with ExitStack() as completing, ExitStack() as finishing:
        for recorder in (cuda, host):
            finishing.push(at_end(recorder.stop))
            recorder.start()
        completing.push(at_end(complete))  # all have begun: after all have stopped
        yield report
        host.sync()


class CallbackRecorder(DriverRecording):
    """Records what all threads give to the GPU, from ``start`` to ``stop``, if there is one."""

    def __init__(self, uses_cuda: Callable[[], bool]) -> None:
        super().__init__()
        self._uses_cuda = uses_cuda
        self._program: list[CudaStep] = []
        self._queues: DriverQueues | None = None

    def start(self) -> None:
        """Begin. BackendNotInstalledError without CUPTI, ScopeError if another tool has CUPTI."""
        if not self._uses_cuda():
            return
        try:
            super().start()
        except RefusedError as error:
            raise ScopeError(f"an audit cannot begin here: {error}.") from error
        except NoCallbacksError as error:
            message = f"an audit of CUDA streams needs CUPTI and the recorder: {error}."
            raise BackendNotInstalledError(message, name="cupti") from error

    def stop(self) -> None:
        """End the recording, and leave nothing behind."""
        if self._listener is not None:
            super().stop()
            if not loader.is_forked:
                self._program = self.steps()
                self._queues = self.queues(self._program)

    def operations(self) -> list[Given]:
        """Return the operations, in the order in which they were given."""
        if self._queues is None:
            return []
        found = [*operations(self._program, self._queues.named, "wait for a value", "free")]
        if self.lost:  # such calls can have been work, on any queue
            name = f"calls of the driver that could not be read: {self.lost}"
            found.append(Given(Operation("function", name, None), (LAST, LAST), (LAST, LAST)))
        return found

    def queue_of(self, stream: Any) -> AuditedQueue | None:
        """Return this audit's name for the queue of a StreamKit stream, or of a stream's id."""
        if self._queues is None:
            return None
        if not isinstance(stream, int):
            with suppress(Exception):  # closed, or another thread's
                return self._queues.of_record(stream._live())
            stream = stream.id
        return self._queues.with_id(stream)


class AuditReport(Operations):
    """The work of a block of ``streamkit.audit``; made when the block ends."""

    def off_queue(self, stream: StreamLike | AuditedQueue) -> list[Operation]:
        """Return the work that ran elsewhere than on a stream.

        Args:
            stream: A stream of any library, or one of ``queues``.
        """
        wanted = _known(stream)
        if isinstance(wanted, AuditedQueue):
            return [one for one in self.work if one.queue != wanted]
        there = wanted.device, wanted.id
        here = [one for one in self.queues if (one.device, one.id) == there]
        return [one for one in self.work if one.queue not in here]

    def assert_one_queue(self, stream: StreamLike | AuditedQueue | None = None) -> None:
        """Check that all work ran on one stream.

        Args:
            stream: A stream of any library, or one of ``queues``. None: the queue with most work.

        Raises:
            OneQueueError: Some work ran elsewhere, and the error lists it; or there was no work,
                which would prove nothing.
        """
        work = self.work
        if not work:
            raise OneQueueError(
                "nothing ran in the audit, so nothing is known of "
                f"{'its queues' if stream is None else describe(_known(stream))}. Put the work "
                "inside its block."
            )
        wanted = stream
        if stream is None:
            queues = Counter(one.queue for one in work)
            wanted = max(self.queues, key=queues.__getitem__, default=None)
        strays = work if wanted is None else self.off_queue(wanted)
        if strays:
            lines = "\n".join(listed(strays))
            where = "a queue that is known" if wanted is None else describe(_known(wanted))
            where = str(wanted) if isinstance(wanted, AuditedQueue) else where
            raise OneQueueError(
                f"{len(strays)} of {len(work)} operations did not run on {where}:\n{lines}\n"
                "Put the work inside 'with streamkit.use(stream):', after every import."
            )

    # -- to look at ---------------------------------------------------------------------------

    def show(self) -> None:
        """Print the work of each queue, and the calls that held the host."""
        terminal.show(str(self))

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write a page to zoom into, filter and search; return its path.

        The page shows the order in which all work was given, and needs no network.

        Args:
            path: The file to write.
        """
        Path(path).write_text(page.of_block(self), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str | None:
        """Show the page in a notebook; where scripts are not trusted, its first sentence."""
        return None if self._operations is None else page.as_cell(self)

    # -- as data ------------------------------------------------------------------------------

    def as_data(self) -> dict[str, Any]:
        """Return the report in JSON's types, the queues listed once.

        ``format`` is the number of this layout, which changes when a key changes its meaning.
        """
        places = (queue for one in self.operations for queue in (one.queue, one.after))
        queues = dict.fromkeys(queue for queue in places if queue is not None)
        number: dict[AuditedQueue | None, int] = {one: place for place, one in enumerate(queues)}
        operations = [
            {**vars(one), "queue": number.get(one.queue), "after": number.get(one.after)}
            for one in self.operations
        ]
        return {
            "format": 1,
            "queues": [asdict(queue) for queue in queues],
            "operations": operations,
            "unfinished": self.unfinished,
        }

    def __str__(self) -> str:
        return timeline.text(self)

    def __repr__(self) -> str:
        if self._operations is None:
            return "<streamkit audit report, not over>"
        return f"<streamkit audit report: {timeline.title(self)}>"


def _known(stream: StreamLike | AuditedQueue) -> Any:
    """Return a stream of ours, closed ones included, or a queue of a report."""
    is_ours = isinstance(stream, (AuditedQueue, CudaStream, HostStream))
    return stream if is_ours else wrap(stream)
