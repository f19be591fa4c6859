"""A report without times: each piece of work takes a place in the order in which all was given."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

from streamkit.diagnostics.recording.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkit.diagnostics.recording.operations import Given, Operation, When

_PLACE_NS = 10**6  # a page counts milliseconds


class InOrder:
    """The operations of a block, drawn by the places that they take."""

    def __init__(self, given: Iterable[Given]) -> None:
        in_order = sorted(given, key=lambda one: one.when)
        self._taken = [one.when for one in in_order if one.operation.kind not in ("record", "wait")]
        self.operations = Operations()
        self.operations.complete(map(self._placed, in_order), has_times=False)

    def before(self, when: When) -> int:
        """Return where the place of what was given then begins."""
        return bisect_left(self._taken, when) * _PLACE_NS

    def after(self, when: When) -> int:
        """Return where it ends."""
        return bisect_right(self._taken, when) * _PLACE_NS

    def _placed(self, one: Given) -> Operation:
        start, end = self.before(one.when), self.after(one.when)
        if one.operation.kind == "wait":
            start, end = self.after(one.since), start
        return replace(one.operation, start_ns=start, end_ns=end)
