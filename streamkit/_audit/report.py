"""What an audit saw: every operation, and the queue on which it really ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from streamkit._audit.timeline import counted, in_one_line
from streamkit._base import messages
from streamkit._host.stream import HostStream
from streamkit._streams.stream import CudaStream
from streamkit._streams.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

Kind = Literal["kernel", "copy", "fill", "function", "scope", "record", "wait", "synchronisation"]
WORK = ("kernel", "copy", "fill", "function", "scope")
"""What a queue does; the other kinds order it, or hold the host up."""
_LINE = 100


@dataclass(frozen=True)
class AuditedQueue:
    """One queue, as an audit knows it."""

    device: str
    name: str
    id: int | None
    """What ``Stream.id`` says; None for a queue that StreamKit never met."""
    is_legacy: bool = False
    key: tuple[int, int] = (0, 0)
    """Whose queue for the recorder: CUPTI's ids of context and stream."""

    def __str__(self) -> str:
        return f"{in_one_line(self.name)} ({self.device})"


@dataclass(frozen=True)
class Operation:
    """One thing that was done on a queue, or for which the host waited.

    Times are nanoseconds since the block began. A wait begins when the other queue got to the
    awaited point, and ends when its own queue went on.
    """

    kind: Kind
    name: str
    queue: AuditedQueue | None
    """None for what waits for a whole device, or for an event whose queue is not known."""
    start_ns: int
    end_ns: int
    library: str | None = None
    """Whose kernel it is, where its name tells; else None."""
    graph: int | None = None
    """CUPTI's id of the CUDA graph it belongs to."""
    after: AuditedQueue | None = None
    """The queue that a wait waited for, if that recorded its event in the block."""
    blocks_host: bool = False
    """Whether the calling thread could not go on before it was done."""

    @property
    def is_work(self) -> bool:
        """Whether a queue does something, rather than wait."""
        return self.kind in WORK

    def __str__(self) -> str:
        name = in_one_line(self.name)
        name = name if len(name) <= _LINE else f"{name[: _LINE - 3]}..."
        whose = f" [{self.library or 'library unknown'}]" if self.kind == "kernel" else ""
        return f"{name}{whose} on {self.queue or 'a whole device'}"


class Report:
    """What ran in the block of ``streamkit.audit``; made when the block ends."""

    def __init__(self) -> None:
        self._operations: tuple[Operation, ...] | None = None
        self._key_of: Callable[[Any], tuple[int, int]] | None = None
        self.unfinished: int = 0
        """Host functions submitted in the block that had not run when it ended."""

    def complete(
        self,
        operations: Iterable[Operation],
        *,
        unfinished: int = 0,
        key_of: Callable[[Any], tuple[int, int]] | None = None,
    ) -> None:
        """Fill the report in; ``key_of`` finds the queue of a CUDA stream."""
        self._operations = tuple(_told_apart(sorted(operations, key=lambda one: one.start_ns)))
        self.unfinished = unfinished
        self._key_of = key_of

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Everything, by the time it began. ScopeError inside the block."""
        if self._operations is None:
            raise messages.audit_not_over()
        return self._operations

    @property
    def work(self) -> list[Operation]:
        """Kernels, copies, fills; on host queues functions and the bodies of scopes."""
        return [one for one in self.operations if one.is_work]

    @property
    def queues(self) -> list[AuditedQueue]:
        """The queues that worked, in the order in which they began."""
        return list(dict.fromkeys(one.queue for one in self.work if one.queue is not None))

    @property
    def waits(self) -> list[Operation]:
        """Where a queue was told to wait for another."""
        return [one for one in self.operations if one.kind == "wait"]

    @property
    def synchronisations(self) -> list[Operation]:
        """Where the host waited: for a stream, an event, a device, or a blocking copy."""
        return [one for one in self.operations if one.blocks_host]

    @property
    def legacy_work(self) -> list[Operation]:
        """Work on the legacy default stream, which every blocking stream waits for."""
        return [one for one in self.work if one.queue is not None and one.queue.is_legacy]

    def off_queue(self, stream: object) -> list[Operation]:
        """Return the work that did not run on ``stream``, anybody's."""
        is_there = self._finder(stream)
        return [one for one in self.work if one.queue is None or not is_there(one.queue)]

    def assert_one_queue(self, stream: object) -> None:
        """Raise OneQueueError, listing what ran elsewhere, unless all work ran on ``stream``.

        And if there was none: that nothing ran elsewhere would prove nothing.
        """
        work, strays = self.work, self.off_queue(stream)
        if strays or not work:
            raise messages.ran_elsewhere(_known(stream), strays, len(work))

    def _finder(self, stream: object) -> Callable[[AuditedQueue], bool]:
        wanted = _known(stream)
        if isinstance(wanted, AuditedQueue):
            return lambda queue: queue == wanted
        if self._key_of is None or wanted.device == "cpu" or wanted.closed:
            return lambda queue: (queue.device, queue.id) == (wanted.device, wanted.id)
        key = self._key_of(wanted)
        return lambda queue: queue.device != "cpu" and queue.key == key

    # -- to look at ---------------------------------------------------------------------------

    def show(self) -> None:
        """Print one lane for each queue; BackendNotInstalledError without rich."""
        from streamkit._audit import terminal  # noqa: PLC0415 - needs rich

        terminal.show(self)

    def to_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open."""
        from streamkit._audit import chrome_trace  # noqa: PLC0415 - few programs come here

        chrome_trace.write(self, path)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write a page to zoom into, which needs no network.

        BackendNotInstalledError without plotly.
        """
        from streamkit._audit import page  # noqa: PLC0415 - needs plotly

        page.write(self, path)

    # -- as data ------------------------------------------------------------------------------

    def as_data(self) -> dict[str, Any]:
        """Return the report in JSON's types, the queues listed once."""
        queues: dict[AuditedQueue, int] = {}

        def number(queue: AuditedQueue | None) -> int | None:
            return None if queue is None else queues.setdefault(queue, len(queues))

        operations = [
            {**vars(one), "queue": number(one.queue), "after": number(one.after)}
            for one in self.operations
        ]
        return {
            "queues": [asdict(queue) for queue in queues],
            "operations": operations,
            "unfinished": self.unfinished,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Report:
        """Return the report that ``as_data`` gave."""
        queues = [_queue_of(queue) for queue in data["queues"]]

        def operation(one: dict[str, Any]) -> Operation:
            places: dict[str, Any] = {
                place: None if one[place] is None else queues[one[place]]
                for place in ("queue", "after")
            }
            return Operation(**{**one, **places})

        report = cls()
        report.complete(map(operation, data["operations"]), unfinished=data["unfinished"])
        return report

    def __repr__(self) -> str:
        if self._operations is None:
            return "<streamkit audit report, not over>"
        work, queues = counted(len(self.work), "operation"), counted(len(self.queues), "queue")
        return f"<streamkit audit report: {work}, {queues}>"


def _known(stream: object) -> Any:
    """Return a stream of ours, closed ones included, or a queue of a report."""
    is_ours = isinstance(stream, (AuditedQueue, CudaStream, HostStream))
    return stream if is_ours else wrap(stream)


def _told_apart(operations: list[Operation]) -> list[Operation]:
    """Add its id to the name of each queue that has the name of another."""
    queues = {queue for one in operations for queue in (one.queue, one.after) if queue is not None}
    count = Counter(map(str, queues))
    names: dict[AuditedQueue | None, AuditedQueue] = {
        queue: replace(queue, name=f"{queue.name} id={queue.id}")
        for queue in queues
        if count[str(queue)] > 1 and queue.id is not None
    }
    if not names:
        return operations
    return [
        replace(one, queue=names.get(one.queue, one.queue), after=names.get(one.after, one.after))
        for one in operations
    ]


def _queue_of(data: dict[str, Any]) -> AuditedQueue:
    context, stream = data["key"]
    return AuditedQueue(
        data["device"], data["name"], data["id"], data["is_legacy"], (context, stream)
    )
