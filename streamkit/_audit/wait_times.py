"""When a wait began and ended: no record says it, so it is read from the work around it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkit._audit.operations import AuditedQueue


class WaitTimes:
    """The work of each queue, in the order of its submission."""

    def __init__(self, work: Iterable[tuple[AuditedQueue, int, int, int]]) -> None:
        """Take each piece of work: its queue, its place in the order, its start and its end."""
        self._orders: defaultdict[AuditedQueue, list[int]] = defaultdict(list)
        self._starts: defaultdict[AuditedQueue, list[int]] = defaultdict(list)
        self._ends: defaultdict[AuditedQueue, list[int]] = defaultdict(list)
        for queue, order, start_ns, end_ns in sorted(work, key=lambda one: one[1]):
            ends = self._ends[queue]
            self._orders[queue].append(order)
            self._starts[queue].append(start_ns)
            ends.append(max([end_ns, *ends[-1:]]))  # of all so far

    def got_to(self, queue: AuditedQueue, order: int, given_ns: int) -> int:
        """Return when the work given to a queue before this order was done, if later than given."""
        before = bisect_left(self._orders[queue], order)
        return max(given_ns, self._ends[queue][before - 1]) if before else given_ns

    def went_on(self, queue: AuditedQueue, order: int, free_ns: int) -> int:
        """Return when the next work after this order began; ``free_ns`` if none, or if later."""
        orders = self._orders[queue]
        after = bisect_right(orders, order)
        return max(free_ns, self._starts[queue][after]) if after < len(orders) else free_ns
