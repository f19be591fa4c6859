"""``audit``: what really ran in a block, and on which queue; and its report."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkit._cuda import driver, loader
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support.messages import at_end, describe
from streamkit._support.refusals import block
from streamkit.diagnostics.audit.callback_recorder import CallbackRecorder
from streamkit.diagnostics.pictures import page, terminal, timeline
from streamkit.diagnostics.recording.host_recorder import HostRecorder
from streamkit.diagnostics.recording.operations import (
    AuditedQueue,
    Operation,
    Operations,
    Order,
    listed,
)
from streamkit.errors import OneQueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from os import PathLike

    from streamkit.protocols import StreamLike


@block("streamkit.audit() as report")
def audit() -> Generator[AuditReport]:
    """Record every operation in the block, of any library and thread, with its real queue.

    On the GPU these are kernels, copies, fills, waits, and where the host waited; on host streams,
    submitted functions and the bodies of scopes. Callbacks of CUPTI show each call of the driver
    when it is made, so the report knows the order in which the queues were given their work, and
    not when that ran. A CUDA graph is one operation of the queue that launches it. The block's end
    does not wait for the GPU, a stream may capture meanwhile, and nothing is left behind.

    The report is made when the block ends, which waits until host streams have run; if the block
    raises, it holds what had run by then. Inside a scope of a host stream it does not wait for that
    stream. Audits nest. In a forked child host streams alone are recorded.

    Raises:
        BackendNotInstalledError: There is a GPU but no CUPTI. The error says how to install it.
        ScopeError: torch's profiler or another tool has CUPTI, which serves one at a time.
        ForkedProcessError: The block ends in a child that was forked inside it.
    """
    return _record(driver.is_available)


@block("program_audit() as report")
def program_audit() -> Generator[AuditReport]:
    """Record as ``audit``, around a program that has still to initialise CUDA, and may fork."""
    return _record(lambda: bool(loader.driver_version()), is_end=True)


def _record(uses_cuda: Callable[[], bool], *, is_end: bool = False) -> Generator[AuditReport]:
    report = AuditReport()
    cuda = CallbackRecorder() if uses_cuda() else None
    host = HostRecorder(int if cuda is None else cuda.count)
    recorders = (host,) if cuda is None else (cuda, host)

    def complete() -> None:
        on_host, unfinished = host.operations(None if cuda is None else cuda.queue_of)
        on_cuda = [] if cuda is None else cuda.operations()
        report.complete(Order([*on_cuda, *on_host]).operations(), unfinished=unfinished)

    with ExitStack() as completing, ExitStack() as finishing:
        for recorder in recorders:
            finishing.push(at_end(recorder.stop))
            recorder.start()
        completing.push(at_end(complete))  # all have begun: after all have stopped
        yield report
        if cuda is not None:
            cuda.sync()
        host.sync(is_end=is_end)


class AuditReport(Operations):
    """What ran in the block of ``streamkit.audit``; made when the block ends."""

    def off_queue(self, stream: StreamLike | AuditedQueue) -> list[Operation]:
        """Return the work that ran elsewhere than on a stream.

        Args:
            stream: Any library's, or one of ``queues``.
        """
        is_there = self._finder(stream)
        return [one for one in self.work if one.queue is None or not is_there(one.queue)]

    def assert_one_queue(self, stream: StreamLike | AuditedQueue | None = None) -> None:
        """Check that all work ran on one stream.

        Args:
            stream: Any library's, or one of ``queues``. None: whichever had the most work.

        Raises:
            OneQueueError: Some ran elsewhere, which is listed; or there was none, which would prove
                nothing.
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

    def _finder(self, stream: StreamLike | AuditedQueue) -> Callable[[AuditedQueue], bool]:
        wanted = _known(stream)
        if isinstance(wanted, AuditedQueue):
            return lambda queue: queue == wanted
        return lambda queue: (queue.device, queue.id) == (wanted.device, wanted.id)

    # -- to look at ---------------------------------------------------------------------------

    def show(self) -> None:
        """Print what each queue was given, and what held the host."""
        terminal.show(str(self))

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write a page to zoom into, filter and search; return its path. It needs no network.

        It shows the order in which all was given.

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
        """Return the report in JSON's types, the queues listed once."""
        places = (queue for one in self.operations for queue in (one.queue, one.after))
        queues = dict.fromkeys(queue for queue in places if queue is not None)
        number: dict[AuditedQueue | None, int] = {one: place for place, one in enumerate(queues)}
        operations = [
            {**vars(one), "queue": number.get(one.queue), "after": number.get(one.after)}
            for one in self.operations
        ]
        return {
            "queues": [asdict(queue) for queue in queues],
            "operations": operations,
            "unfinished": self.unfinished,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> AuditReport:
        """Return the report that ``as_data`` gave.

        Args:
            data: What it gave, also by way of JSON.
        """
        queue_of: dict[int | None, Any] = {}
        for place, found in enumerate(data["queues"]):
            queue_of[place] = AuditedQueue(**(found | {"key": tuple(found["key"])}))
        report = cls()
        report.complete(
            (
                Operation(**(one | {key: queue_of.get(one[key]) for key in ("queue", "after")}))
                for one in data["operations"]
            ),
            unfinished=data["unfinished"],
        )
        return report

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
