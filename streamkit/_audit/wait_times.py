"""When a wait began and ended: no record says it, so it is read from the work around it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkit._audit.operations import AuditedQueue


class WaitTimes:
    """The work of each queue, in the order of its submission."""

    def __init__(self, work: Iterable[tuple[AuditedQueue, int, int, int]]) -> None:
        """Take each piece of work: its queue, its place in the order, its start and its end."""
        self._work: defaultdict[AuditedQueue, list[tuple[int, int, int]]] = defaultdict(list)
        for queue, order, start_ns, end_ns in sorted(work, key=itemgetter(1)):
            found = self._work[queue]
            all_done_ns = max(end_ns, found[-1][2]) if found else end_ns
            found.append((order, start_ns, all_done_ns))

    def got_to(self, queue: AuditedQueue, order: int, given_ns: int) -> int:
        """Return when the work given to a queue before this order was done, if later than given."""
        work = self._work[queue]
        before = bisect_left(work, order, key=itemgetter(0))
        return max(given_ns, work[before - 1][2]) if before else given_ns

    def went_on(self, queue: AuditedQueue, order: int, free_ns: int) -> int:
        """Return when the next work after this order began; ``free_ns`` if none, or if later."""
        work = self._work[queue]
        after = bisect_right(work, order, key=itemgetter(0))
        return max(free_ns, work[after][1]) if after < len(work) else free_ns
