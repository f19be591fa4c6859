"""The operations that an audit saw, each with the queue that was given it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from streamkit._support.messages import in_one_line
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

Kind = Literal[
    "kernel", "copy", "fill", "graph", "function", "scope", "record", "wait", "synchronisation"
]
When = tuple[int, int]
"""When something was given: the number of the driver's call, and that of a host stream's step."""
WORK = ("kernel", "copy", "fill", "graph", "function", "scope")
"""The kinds of work; the other kinds order work, or hold the host up."""
LAST = 1 << 62  # the call of the driver comes after the steps that were given before it
_LINE = 100
_LINES = 12


@dataclass(frozen=True)
class AuditedQueue:
    """A queue, as an audit knows it."""

    device: str
    name: str
    id: int | None
    """The ``id`` of a stream on it; None for a queue that StreamKit never met."""
    is_legacy: bool = False
    key: tuple[int, int] = (0, 0)
    """Tells apart queues of which no id is known."""

    def __str__(self) -> str:
        return f"{in_one_line(self.name)} ({self.device})"


@dataclass(frozen=True)
class Operation:
    """A piece of work or an order that a queue was given, or a wait of the host."""

    kind: Kind
    name: str
    queue: AuditedQueue | None
    """None for a wait for a whole device, or for an event whose queue is not known."""
    library: str | None = None
    """The library of a kernel, if its name tells; else None."""
    after: AuditedQueue | None = None
    """The queue that a wait waited for, if the event was recorded in the block."""
    blocks_host: bool = False
    """Whether the calling thread could not go on before the operation was done."""
    file: str | None = None
    """The file of the user's line, where that is known, if the operation blocked the host."""
    line: int = 0
    """0 where no line is known."""
    remedy: str = ""
    """The reason why the operation blocked the host, and the remedy, where they are known."""
    place: int = 0
    """The number of pieces of work, and of waits of the host, that were given before."""
    since: int = 0
    """For a wait between queues, the place at which the awaited event was recorded."""

    @property
    def is_work(self) -> bool:
        """Whether this is work of a queue, and not an order or a wait."""
        return self.kind in WORK

    def __str__(self) -> str:
        name = in_one_line(self.name)
        name = name if len(name) <= _LINE else f"{name[: _LINE - 3]}..."
        whose = f" [{self.library or 'library unknown'}]" if self.kind == "kernel" else ""
        where = f", {in_one_line(self.file)}:{self.line}" if self.file else ""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{name}{whose} on {self.queue or 'a whole device'}{where}{remedy}"


class Given(NamedTuple):
    """An operation, and when it was given."""

    operation: Operation
    when: When
    since: When
    """For a wait, when the awaited event was recorded; else the same as ``when``."""


class Order:
    """The order in which things were given, and the place of each in it."""

    def __init__(self, given: Iterable[Given]) -> None:
        self._given = sorted(given, key=lambda one: one.when)
        taken = (one for one in self._given if one.operation.kind not in ("record", "wait"))
        self._taken = [one.when for one in taken]

    def before(self, when: When) -> int:
        """Return the place of an operation that was given then."""
        return bisect_left(self._taken, when)

    def after(self, when: When) -> int:
        """Return the place after an operation that was given then."""
        return bisect_right(self._taken, when)

    def operations(self) -> Iterator[Operation]:
        """Yield the operations, each with its place."""
        for one in self._given:
            since = self.after(one.since) if one.operation.kind == "wait" else 0
            yield replace(one.operation, place=self.before(one.when), since=since)


def listed(operations: Iterable[Operation]) -> list[str]:
    """Return a line for each different operation, with its count; a long list is cut."""
    counts = Counter(map(str, operations))
    lines = [f"  {line}" + (f" ({n} times)" if n > 1 else "") for line, n in counts.items()]
    more = len(lines) - _LINES
    return lines if more <= 0 else [*lines[:_LINES], f"  and {more} more"]


class Operations:
    """The operations of a block, all or by kinds; known when the block has ended."""

    def __init__(self) -> None:
        self._operations: tuple[Operation, ...] | None = None
        self.unfinished: int = 0
        """Host functions submitted in the block that had not run when it ended."""

    def complete(self, operations: Iterable[Operation], *, unfinished: int = 0) -> None:
        """Take the operations of the block.

        Args:
            operations: In the order in which they were given.
            unfinished: How many host functions had not run when it ended.
        """
        found = list(operations)
        queues = {queue for one in found for queue in (one.queue, one.after)} - {None}
        names = distinct_names(cast("set[AuditedQueue]", queues))
        if names:
            new = {one: names.get(one, one) for one in (*queues, None)}
            found = [replace(one, queue=new[one.queue], after=new[one.after]) for one in found]
        self._operations = tuple(found)
        self.unfinished = unfinished

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations, in the order in which they were given. Inside the block: ScopeError."""
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
        """The queues that worked, in the order in which they were first given work."""
        return list(dict.fromkeys(one.queue for one in self.work if one.queue is not None))

    @property
    def waits(self) -> list[Operation]:
        """The waits of a queue for another."""
        return [one for one in self.operations if one.kind == "wait"]

    @property
    def synchronisations(self) -> list[Operation]:
        """The waits of the host: for a stream, an event, a device, or a blocking copy."""
        return [one for one in self.operations if one.blocks_host]

    @property
    def legacy_work(self) -> list[Operation]:
        """Work on the legacy default stream, which every blocking stream waits for."""
        return [one for one in self.work if one.queue is not None and one.queue.is_legacy]


def distinct_names(queues: AbstractSet[AuditedQueue]) -> dict[AuditedQueue | None, AuditedQueue]:
    """Return new names, with their ids, for queues that share one name."""
    count = Counter(map(str, queues))
    return {
        queue: replace(queue, name=f"{queue.name} id={queue.id}")
        for queue in queues
        if count[str(queue)] > 1 and queue.id is not None
    }
