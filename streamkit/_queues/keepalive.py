"""Objects that must outlive the work of a queue, each with the point that has to pass first.

The objects are let go at the next ``keep`` on the queue, in a few other calls of StreamKit, at a
garbage collection, or at the end of the interpreter. Each call does a bounded part of that.

Destructors call this module too, at any moment and in any thread, so it takes no lock: each step is
one operation of a dict or a deque.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import itertools
import math
import sys
import warnings
from abc import abstractmethod
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit import errors
from streamkit._cuda import driver, events, loader
from streamkit._queues import identity, ordering
from streamkit._queues.lifetime import give_back, take_event
from streamkit._support import garbage, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Sized

    from streamkit._queues.lifetime import OwnedEvent
    from streamkit.protocols.queues import QueueRecord


class KeepAlive:
    """Some objects, and the point of a queue that has to pass before they may go."""

    __slots__ = ("objects",)

    def __init__(self, objects: Sequence[object]) -> None:
        self.objects = objects

    @abstractmethod
    def has_passed(self) -> bool:
        """Whether the point is known to have passed; raises nothing."""

    def calls(self) -> int:
        """Return how many calls of ``keep`` have given the objects."""
        return 1

    def end(self) -> None:
        """Give back the event or whatever else marked the point; no other thread does."""


class KeepAliveList:
    """The entries that are kept for one queue, newest first."""

    __slots__ = ("ask_at", "entries")

    def __init__(self) -> None:
        self.entries: deque[KeepAlive] = deque()
        self.ask_at = 0.0  # when the next call of ``keep`` asks again, by ``monotonic``

    def add(self, entry: KeepAlive) -> None:
        """Keep the objects, also beyond the end of the queue."""
        _prepare()
        self.entries.appendleft(entry)
        _busy[self] = None

    def end(self, entry: KeepAlive) -> bool:
        """Take the entry out; False if it was taken before."""
        try:
            self.entries.remove(entry)  # pop could take an entry that was not asked
        except ValueError:
            return False
        entry.end()
        return True

    def let_go(self, limit: float) -> float:
        """Drop the entries that have passed; return the rest of the limit, a number of calls."""
        entries = self.entries
        while entries:
            if limit <= 0:
                return 0
            try:
                oldest = entries[-1]
            except IndexError:  # another thread was here
                break
            if not oldest.has_passed():
                return limit
            entries.rotate()  # to where ``remove`` looks first
            if self.end(oldest):
                limit -= oldest.calls()
            else:
                entries.rotate(-1)
        try:
            _busy.pop(self, None)
        finally:
            if entries:  # added since
                _busy[self] = None
        return limit


_busy: dict[KeepAliveList, None] = {}  # the lists with entries
_waiting: dict[_EndedLoan, None] = {}  # the loans that have ended and are in no list yet
_held: dict[_HeldMemory, None] = {}  # memory that arrays hold, and a queue uses
_lost: dict[_EndedLoan, None] = {}  # the loans whose end nothing can tell, never freed


@functools.cache
def _prepare() -> None:
    """Have garbage collections and the end of the interpreter drop the entries that have passed.

    The other entries stay in the tables, which are never freed, beyond that end.
    """
    garbage.keep_forever(_busy, _waiting, _held, _lost)
    gc.callbacks.append(_collected)
    atexit.register(_drain_all)


def _collected(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"]:
        _drain_all()


_sweeps: list[tuple[Sized, Callable[[], None]]] = []


def add_sweep(waiting: Sized, sweep: Callable[[], None]) -> None:
    """Have each ``drain`` call ``sweep`` too if anything is waiting."""
    _sweeps.append((waiting, sweep))


# The most that one call of StreamKit does: the calls whose objects it drops, the queues it asks.
_MOST_CALLS, _MOST_ASKED = 10_000, 64

_KeyT = TypeVar("_KeyT")


def _drain_all() -> None:
    drain(math.inf, None)


def drain(calls: float = _MOST_CALLS, asked: int | None = _MOST_ASKED) -> None:
    """Drop the entries of any queue that have passed; if they are many, the next calls go on.

    Never blocks, and raises nothing.
    """
    for waiting, sweep in _sweeps:
        if waiting:
            sweep()
    for memory in _next(_held, asked) if _held else ():
        if not memory.is_held(memory.array):
            _waiting[memory] = None
            _held.pop(memory, None)
    if _waiting:
        _keep_lent(_next(_waiting, asked))
    if _busy:
        let_go(_next(_busy, asked), calls)


def _next(table: dict[_KeyT, None], count: int | None) -> list[_KeyT]:
    """Return so many entries of a table; if it has more, these come last from now on."""
    if count is None or len(table) <= count:
        return list(table)
    try:
        found = list(itertools.islice(table, count))
    except RuntimeError:  # another thread, or a destructor, has changed it
        return []
    for one in found:
        try:
            table.pop(one, None)
        finally:
            table[one] = None
    return found


def let_go(
    lists: Iterable[KeepAliveList],
    calls: float = _MOST_CALLS,
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    """Drop the entries of these lists that have passed; none in a forked child or at the end.

    The objects' own ends run here, allowed to free memory while this thread captures.
    """
    if is_finalizing() or loader.is_forked:
        return
    try:
        if driver.is_usable():
            driver.call_beside_captures(_let_go, lists, calls)
        else:
            _let_go(lists, calls)
    except errors.DriverError:
        pass  # without an answer the objects are kept


def _let_go(lists: Iterable[KeepAliveList], calls: float) -> None:
    for kept in lists:
        calls = kept.let_go(calls)


# -- on a CUDA queue --------------------------------------------------------------------------


class _UntilEvent(KeepAlive):
    """The objects of some calls, and an event that was recorded after each call.

    Entries share their list of objects, to which a call adds its own, with an entry of its own. So
    an entry that is taken out takes nothing from the others, whatever other threads do.
    """

    __slots__ = ("_event", "_spare")

    def __init__(
        self, objects: list[tuple[object, ...]], event: OwnedEvent, spare: list[OwnedEvent]
    ) -> None:
        self.objects, self._event, self._spare = objects, event, spare

    def calls(self) -> int:
        return len(self.objects)

    def has_passed(self) -> bool:
        core = self._event.core
        if core is not None:
            return events.is_done_core(core)
        try:
            return self._event.exists() and events.is_done(self._event.handle)
        except errors.DriverError:  # the driver cannot be asked now
            return False

    def end(self) -> None:
        give_back(self._event, self._spare)


# In seconds. To ask costs as much as the rest of a ``keep``, so of calls in quick succession not
# each one asks.
_ASKED_EVERY = 50e-6


def keep(queue: QueueRecord, what: object, objects: tuple[object, ...]) -> None:
    """Keep the objects alive until all that the queue was given so far has run.

    CaptureError, naming ``what``, while it captures.
    """
    if queue.thread is not None:
        ordering.check_thread(queue, what)
    kept: KeepAliveList | None = queue.keepalive
    if kept is None:
        kept = queue.keepalive = KeepAliveList()
    elif kept.entries and (not objects or monotonic() >= kept.ask_at):
        let_go((kept,))
        kept.ask_at = monotonic() + _ASKED_EVERY
    if not objects:
        return
    joined = _open(kept.entries)  # before the record, which so comes after their calls too
    event = take_event(queue)
    if not ordering.mark_outside_capture(event, queue):
        raise messages.kept_in_capture(what)
    calls = joined[0].objects if joined else []
    calls.append(objects)
    kept.add(_UntilEvent(calls, event, queue.wait_events))  # there since an event was taken
    for entry in joined:
        kept.end(entry)


_CALLS_OF_AN_EVENT = 1_000


def _open(entries: deque[Any]) -> Sequence[Any]:
    """Return the newest entries, one or two of one list, which the next call's entry replaces.

    Never the oldest, which so passes at its time, also on a queue that is never idle. There are two
    if threads have added at the same time.
    """
    try:
        newest, second, oldest = entries[0], entries[1], entries[-1]
    except IndexError:
        return ()
    if len(newest.objects) >= _CALLS_OF_AN_EVENT:
        return ()
    is_one_list = second is not oldest and second.objects is newest.objects
    return (newest, second) if is_one_list else (newest,)


# -- lent to a CUDA queue ---------------------------------------------------------------------


class ArrayLoan:
    """Holds an array that a queue uses; once it ends, until the queue's work so far has run."""

    _ended: _EndedLoan | None = None  # until it has one: an error can leave it half made

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
        waiting[self._ended] = None  # first, as the next lines can be refused
        if not is_finalizing() and driver.is_usable():
            _keep_lent([self._ended])


class _EndedLoan:
    """The array of a loan that has ended, and whatever keeps the queue's handle valid."""

    __slots__ = ("array", "owners", "queue")

    def __init__(self, array: object, queue: QueueRecord) -> None:
        self.array, self.queue = array, queue
        owners = identity.owners_of(queue) or ()
        self.owners = [owner for owner in owners if identity.owns(owner, queue)]

    def handle_is_gone(self) -> bool:
        """Whether the queue's owner or thread has ended, so that no event can be recorded on it.

        Work that is queued there runs all the same.
        """
        thread = self.queue.thread
        if thread is not None and not thread.is_alive:
            return True
        return not all(identity.owns(owner, self.queue) for owner in self.owners)


def _keep_lent(loans: list[_EndedLoan]) -> None:
    """Keep each lent array until its queue's work so far has run, where that can be done now."""
    for loan in loans:
        # a queue that captures, or is another thread's, is tried again by the next call
        with contextlib.suppress(errors.StreamKitError):
            queue = loan.queue
            if loan.handle_is_gone():
                if queue.nonblocking is not False or not queue.primary:
                    _lost[loan] = None
                    _waiting.pop(loan, None)
                    with contextlib.suppress(RuntimeWarning):  # an error, if the program says so
                        _warn_of_lost()
                    continue
                # the legacy stream's present end comes after the work of all blocking streams
                queue = identity.legacy(queue.device)
            keep(queue, loan.queue, (loan.array,))
            _waiting.pop(loan, None)


@functools.cache
def _warn_of_lost() -> None:
    warnings.warn(
        "a non-blocking stream was closed by its owner while an array that was handed to it was "
        "still in use, so that StreamKit cannot find out when the work on it is done and keeps the "
        "array for ever. Drop the array first, or use a stream of streamkit.new_stream().",
        RuntimeWarning,
        stacklevel=2,
    )


# -- in use by arrays, and by a CUDA queue ----------------------------------------------------


def keep_while_held(memory: object, is_held: Callable[[Any], bool], queue: QueueRecord) -> None:
    """Keep the memory while anything else holds it, and then until the queue's work so far has run.

    The queue's owner lives until then.
    """
    _prepare()
    _held[_HeldMemory(memory, is_held, queue)] = None


class _HeldMemory(_EndedLoan):
    """A loan that ends when nothing else holds the memory; equal to another of the same two."""

    __slots__ = ("is_held", "key")

    def __init__(self, memory: object, is_held: Callable[[Any], bool], queue: QueueRecord) -> None:
        super().__init__(memory, queue)
        self.is_held, self.key = is_held, (id(memory), id(queue))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HeldMemory) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)
