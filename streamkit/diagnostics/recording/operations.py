"""What an audit saw: each operation, and the queue on which it really ran."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from streamkit.diagnostics.recording.kernel_names import in_one_line
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

Kind = Literal[
    "kernel", "copy", "fill", "graph", "function", "scope", "record", "wait", "synchronisation"
]
When = tuple[int, int]
"""When something was given: the number of the driver's call, and that of a host stream's step."""
WORK = ("kernel", "copy", "fill", "graph", "function", "scope")
"""What a queue does; the other kinds order it, or hold the host up."""
LAST = 1 << 62  # the call of the driver comes after the steps that were given before it
_LINE = 100
_LINES = 12


@dataclass(frozen=True)
class AuditedQueue:
    """One queue, as an audit knows it."""

    device: str
    name: str
    id: int | None
    """What ``Stream.id`` says; None for a queue that StreamKit never met."""
    is_legacy: bool = False
    key: tuple[int, int] = (0, 0)
    """What identifies the queue for the recorder: CUPTI's ids of its context and stream."""

    def __str__(self) -> str:
        return f"{in_one_line(self.name)} ({self.device})"


@dataclass(frozen=True)
class Operation:
    """One thing that was done on a queue, or for which the host waited.

    Times are nanoseconds since the block began. In a report without times they are places in the
    order in which work was given: its n-th piece is from n - 1 to n milliseconds. A wait begins
    when the other queue got to the awaited point, and ends when its own queue went on.
    """

    kind: Kind
    name: str
    queue: AuditedQueue | None
    """None for what waits for a whole device, or for an event whose queue is not known."""
    start_ns: int
    end_ns: int
    library: str | None = None
    """The library whose kernel it is, if its name tells; else None."""
    graph: int | None = None
    """CUPTI's id of the CUDA graph it belongs to."""
    after: AuditedQueue | None = None
    """The queue that a wait waited for, if that recorded its event in the block."""
    blocks_host: bool = False
    """Whether the calling thread could not go on before it was done."""
    file: str | None = None
    """For what blocked the host, the file of the user's line, where that is known."""
    line: int = 0
    """0 where no line is known."""
    remedy: str = ""
    """Why it blocked the host and what to do, where that is known."""

    @property
    def is_work(self) -> bool:
        """Whether a queue does something, rather than wait."""
        return self.kind in WORK

    def __str__(self) -> str:
        name = in_one_line(self.name)
        name = name if len(name) <= _LINE else f"{name[: _LINE - 3]}..."
        whose = f" [{self.library or 'library unknown'}]" if self.kind == "kernel" else ""
        where = f", {self.file}:{self.line}" if self.file else ""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{name}{whose} on {self.queue or 'a whole device'}{where}{remedy}"


class Given(NamedTuple):
    """An operation, and when it was given."""

    operation: Operation
    when: When
    since: When
    """For a wait, when what it waits for was recorded; else the same."""


def given_to_cuda(operation: Operation) -> Given:
    """Return an operation of CUDA's, whose times are the numbers of calls of the driver."""
    return Given(operation, (operation.end_ns, LAST), (operation.start_ns, LAST))


def listed(operations: Iterable[Operation]) -> list[str]:
    """Return a line for each that is different, and how many more there are."""
    counts = Counter(map(str, operations))
    lines = [f"  {line}" + (f" ({n} times)" if n > 1 else "") for line, n in counts.items()]
    more = len(lines) - _LINES
    return lines if more <= 0 else [*lines[:_LINES], f"  and {more} more"]


class Operations:
    """All operations of a block, and those of one sort; known when the block has ended."""

    def __init__(self) -> None:
        self._operations: tuple[Operation, ...] | None = None
        self._key_of: Callable[[Any], tuple[int, int]] | None = None
        self.has_times: bool = True
        """Whether it is known when each operation ran."""
        self.unfinished: int = 0
        """Host functions submitted in the block that had not run when it ended."""

    def complete(
        self,
        operations: Iterable[Operation],
        *,
        unfinished: int = 0,
        key_of: Callable[[Any], tuple[int, int]] | None = None,
        has_times: bool = True,
    ) -> None:
        """Take the operations of the block.

        Args:
            operations: In any order; without times in that of the report.
            unfinished: How many host functions had not run when it ended.
            key_of: Finds the queue of a CUDA stream.
            has_times: Whether their times tell when each ran, and not only the order.
        """
        found = list(operations)
        if has_times:
            found.sort(key=lambda one: one.start_ns)
        self.has_times = has_times
        queues = {queue for one in found for queue in (one.queue, one.after)} - {None}
        names = distinct_names(cast("set[AuditedQueue]", queues))
        if names:
            found = [
                replace(
                    one,
                    queue=names.get(one.queue, one.queue),
                    after=names.get(one.after, one.after),
                )
                for one in found
            ]
        self._operations = tuple(found)
        self.unfinished, self._key_of = unfinished, key_of

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Everything, in the order in which it began. Inside the block this raises ScopeError.

        Without times it is in the order in which it was given.
        """
        if self._operations is None:
            raise ScopeError(
                "the report is made when the block ends. Read it after 'with ... as report:'"
            )
        return self._operations

    @property
    def work(self) -> list[Operation]:
        """Kernels, copies, fills; on host streams functions and the bodies of scopes."""
        return [one for one in self.operations if one.is_work]

    @property
    def queues(self) -> list[AuditedQueue]:
        """The queues that worked, in the order in which they began."""
        return list(dict.fromkeys(one.queue for one in self.work if one.queue is not None))

    @property
    def waits(self) -> list[Operation]:
        """Where a queue began to wait for another."""
        return [one for one in self.operations if one.kind == "wait"]

    @property
    def synchronisations(self) -> list[Operation]:
        """Where the host waited: for a stream, an event, a device, or a blocking copy."""
        return [one for one in self.operations if one.blocks_host]

    @property
    def legacy_work(self) -> list[Operation]:
        """Work on the legacy default stream, which every blocking stream waits for."""
        return [one for one in self.work if one.queue is not None and one.queue.is_legacy]


def distinct_names(queues: AbstractSet[AuditedQueue]) -> dict[AuditedQueue | None, AuditedQueue]:
    """Return what to call each queue that has the name of another: its id is added."""
    count = Counter(map(str, queues))
    return {
        queue: replace(queue, name=f"{queue.name} id={queue.id}")
        for queue in queues
        if count[str(queue)] > 1 and queue.id is not None
    }


class WaitTimes:
    """When waits began and ended: no record says it, so it is read from the work around them.

    That is the work of each queue, in the order in which it was given.
    """

    def __init__(self, work: Iterable[tuple[AuditedQueue, int, int, int]]) -> None:
        """Take each piece of work: its queue, its place in the order, its start and its end."""
        self._work: defaultdict[AuditedQueue, list[tuple[int, int, int]]] = defaultdict(list)
        for queue, order, start_ns, end_ns in sorted(work, key=itemgetter(1)):
            found = self._work[queue]
            all_done_ns = max(end_ns, found[-1][2]) if found else end_ns
            found.append((order, start_ns, all_done_ns))

    def got_to(self, queue: AuditedQueue, order: int, given_ns: int) -> int:
        """Return when work given to a queue before this order was done, at least ``given_ns``."""
        work = self._work[queue]
        before = bisect_left(work, order, key=itemgetter(0))
        return max(given_ns, work[before - 1][2]) if before else given_ns

    def went_on(self, queue: AuditedQueue, order: int, free_ns: int) -> int:
        """Return when the next work after this order began, at least ``free_ns``."""
        work = self._work[queue]
        after = bisect_right(work, order, key=itemgetter(0))
        return max(free_ns, work[after][1]) if after < len(work) else free_ns
