"""``HostStream.keep``: objects that live until a host queue gets there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit import _keep
from streamkit._host_queue import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit._host_queue import WorkQueue


class KeptOnHost(_keep.Kept):
    """Objects kept until a mark is reached."""

    __slots__ = ("_mark",)

    def __init__(self, objects: tuple[object, ...], mark: Mark) -> None:
        super().__init__(objects)
        self._mark = mark

    def has_passed(self) -> bool:
        """Whether the mark is reached, without letting an engine run anything."""
        return self._mark.reached.is_set()


class HostKeeper:
    """A host stream as something that keeps objects alive."""

    _ledger: _keep.Ledger
    _queue: WorkQueue
    _check_open: Callable[[], None]
    _put: Callable[[Callable[[], None]], None]

    @property
    def dlpack_stream(self) -> None:
        """None, as DLPack has it for memory of the host."""
        return

    def keep(self, *objects: object) -> None:
        """Keep the objects alive until all work submitted so far has run; never blocks.

        A later call of StreamKit, or a garbage collection, lets them go.
        """
        self._check_open()
        mark = Mark(self._queue)
        self._put(mark)
        self._ledger.add(KeptOnHost(objects, mark))
        _keep.let_go((self._ledger,))
