"""When a wait began and ended: no record says it, so it is read from the work around it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkit._audit.operations import AuditedQueue


class Point(NamedTuple):
    """One piece of work: its place in the order of submission, and its times."""

    queue: AuditedQueue
    order: int
    start_ns: int
    end_ns: int


class WaitTimes:
    """The work of each queue, in the order of its submission."""

    def __init__(self, points: Iterable[Point]) -> None:
        work: defaultdict[AuditedQueue, list[Point]] = defaultdict(list)
        for point in points:
            work[point.queue].append(point)
        self._orders: dict[AuditedQueue, list[int]] = {}
        self._starts: dict[AuditedQueue, list[int]] = {}
        self._ends: dict[AuditedQueue, list[int]] = {}
        for queue, found in work.items():
            found.sort(key=lambda point: point.order)
            self._orders[queue] = [point.order for point in found]
            self._starts[queue] = [point.start_ns for point in found]
            self._ends[queue] = list(accumulate((point.end_ns for point in found), max))

    def got_to(self, queue: AuditedQueue, order: int, given_ns: int) -> int:
        """Return when the work given to a queue before this order was done, if later than given."""
        before = bisect_left(self._orders.get(queue, []), order)
        return max(given_ns, self._ends[queue][before - 1]) if before else given_ns

    def went_on(self, queue: AuditedQueue, order: int, free_ns: int) -> int:
        """Return when the next work after this order began; ``free_ns`` if none, or if later."""
        orders = self._orders.get(queue, [])
        after = bisect_right(orders, order)
        return max(free_ns, self._starts[queue][after]) if after < len(orders) else free_ns
