"""What must outlive the work of a queue: objects, each with the point that has to pass first.

They are let go at the next ``keep`` on the queue, in a few other calls of StreamKit, at a garbage
collection, or at the end of the interpreter. Destructors call this module too, at any moment and
in any thread, so it takes no lock: each step is one operation of a dict or a deque.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import sys
from abc import abstractmethod
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._base import garbage, messages
from streamkit._cuda import driver, events, loader
from streamkit._queues import identity, ordering
from streamkit._queues.lifetime import OwnedEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamkit._base.queue import QueueRecord


class KeepAlive:
    """Some objects, and the point of a queue that has to pass before they may go."""

    __slots__ = ("objects",)

    def __init__(self, objects: tuple[object, ...]) -> None:
        self.objects = objects

    @abstractmethod
    def has_passed(self) -> bool:
        """Whether the point is known to have passed; raises nothing."""

    def end(self) -> None:
        """Free what told that the point has passed; no other thread does."""


class KeepAliveList:
    """What is kept for one queue, oldest first."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[KeepAlive] = deque()

    def add(self, entry: KeepAlive) -> None:
        """Keep the objects, also beyond the end of the queue."""
        _prepare()
        self._entries.append(entry)
        _busy[self] = None

    def let_go(self) -> None:
        """Drop what has passed."""
        entries = self._entries
        while entries:
            try:
                oldest = entries[0]
            except IndexError:  # another thread was here
                break
            if not oldest.has_passed():
                return
            try:
                entries.remove(oldest)  # popleft could take an entry that was not asked
            except ValueError:  # another thread has taken it
                continue
            oldest.end()
        try:
            _busy.pop(self, None)
        finally:
            if entries:  # added since
                _busy[self] = None


_NOTHING = contextlib.nullcontext()
_busy: dict[KeepAliveList, None] = {}  # those with entries
_waiting: dict[_EndedLoan, None] = {}  # the loans that have ended and are in no list yet


@functools.cache
def _prepare() -> None:
    """Have garbage collections, and the end of the interpreter, drop what has passed.

    The rest stays in the tables, which are never freed, beyond that end.
    """
    garbage.keep_forever(_busy, _waiting)
    gc.callbacks.append(_collected)
    atexit.register(drain)


def _collected(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"]:
        drain()


_sweeps: list[Callable[[], None]] = []


def add_sweep(sweep: Callable[[], None]) -> None:
    """Have each ``drain`` call ``sweep`` too, which is quick if it has nothing to drop."""
    _sweeps.append(sweep)


def drain() -> None:
    """Drop what has passed, on any queue. Never blocks, and raises nothing."""
    for sweep in _sweeps:
        sweep()
    if _waiting:
        _keep_lent(list(_waiting))
    if _busy:
        let_go(list(_busy))


def let_go(
    lists: Iterable[KeepAliveList], is_finalizing: Callable[[], bool] = sys.is_finalizing
) -> None:
    """Drop what has passed in these lists; nothing in a forked child or at the end.

    The objects' own ends run here, allowed to free memory while this thread captures.
    """
    if is_finalizing() or loader.is_forked:
        return
    try:
        with driver.beside_captures() if driver.is_usable() else _NOTHING:
            for kept in lists:
                kept.let_go()
    except errors.DriverError:
        pass  # what cannot be asked is kept


# -- on a CUDA queue --------------------------------------------------------------------------

_SPARE_EVENTS = 64
_spare: defaultdict[int, list[OwnedEvent]] = defaultdict(list)  # by context


class _UntilEvent(KeepAlive):
    __slots__ = ("_event",)

    def __init__(self, objects: tuple[object, ...], event: OwnedEvent) -> None:
        self.objects, self._event = objects, event

    def has_passed(self) -> bool:
        core = self._event.core
        if core is not None:
            return events.is_done_core(core)
        try:
            return events.is_done(self._event.handle)
        except errors.DriverError:  # it cannot be asked now
            return False

    def end(self) -> None:
        context = self._event.serves  # 0 for one of a context that may come to an end
        if context and len(_spare[context]) < _SPARE_EVENTS:
            _spare[context].append(self._event)


def keep(queue: QueueRecord, what: object, objects: tuple[object, ...]) -> None:
    """Keep the objects alive until all that the queue was given so far has run.

    CaptureError, naming ``what``, while it captures.
    """
    if queue.thread is not None:
        ordering.check_thread(queue, what)
    _check_capture(queue, what)
    try:
        event = _spare[queue.context].pop()
    except IndexError:
        event = OwnedEvent(queue.context)
    ordering.mark(event, queue)
    _check_capture(queue, what)  # another thread may have begun one with the event
    kept: KeepAliveList | None = queue.keepalive
    if kept is None:
        kept = queue.keepalive = KeepAliveList()
    kept.add(_UntilEvent(objects, event))
    let_go((kept,))


def _check_capture(queue: QueueRecord, what: object) -> None:
    if ordering.capture_of(queue) is not None:
        raise messages.kept_in_capture(what)


# -- lent to a CUDA queue ---------------------------------------------------------------------


class ArrayLoan:
    """Holds an array that a queue uses; once it ends, until the queue's work so far has run."""

    _ended: _EndedLoan | None = None  # until it has one: an interrupt can leave it half made

    def __init__(self, array: object, queue: QueueRecord) -> None:
        _prepare()
        self.array = array
        self._ended = _EndedLoan(array, queue)

    def __del__(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        waiting: dict[_EndedLoan, None] = _waiting,
    ) -> None:
        if self._ended is None:
            return
        waiting[self._ended] = None  # first, for what follows can be interrupted, or refused
        if not is_finalizing():
            _keep_lent([self._ended])


class _EndedLoan:
    """What a loan held."""

    __slots__ = ("array", "owners", "queue")

    def __init__(self, array: object, queue: QueueRecord) -> None:
        self.array, self.queue = array, queue
        owners = identity.owners_of(queue) or ()
        self.owners = [owner for owner in owners if identity.owns(owner, queue)]


def _keep_lent(loans: list[_EndedLoan]) -> None:
    """Keep what was lent until its queue's work so far has run, where that can be done now."""
    for loan in loans:
        # if its queue captures, is another thread's, or cannot be asked, the next call tries again
        with contextlib.suppress(errors.StreamKitError):
            # else its handle is gone, and nobody can be asked when that queue's work is done
            if all(identity.owns(owner, loan.queue) for owner in loan.owners):
                keep(loan.queue, loan.queue, (loan.array,))
                _waiting.pop(loan, None)
