"""The queue behind a host stream: items in order, on one worker thread while it has some.

An engine can run the items of all queues instead of worker threads: that of
``streamkit.testing.adversarial``. In a forked child all queues begin empty: what they had runs in
the parent, which has the threads.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from abc import abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from streamkit._waiting import waits

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Item = Callable[[], None]


class Engine(Protocol):
    """What runs the items of all queues instead of worker threads. Called from any thread."""

    @abstractmethod
    def put(self, queue: WorkQueue, item: Item) -> None:
        """Take a queue's next item. Never runs it."""

    @abstractmethod
    def ended(self, queue: WorkQueue) -> None:
        """Note that the queue's running item has ended."""

    @abstractmethod
    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Run items until one of them sets the event; False after ``timeout`` seconds."""

    @abstractmethod
    def polled(self) -> None:
        """Note that a caller asks, without waiting, whether something is done."""

    @abstractmethod
    def finish(self) -> None:
        """Run all items there are."""


_engine: Engine | None = None
_working: set[WorkQueue] = set()  # those with a worker thread
_queues: WeakSet[WorkQueue] = WeakSet()
_forks = 0  # between the process that imported this and the present one


def exchange(engine: Engine | None) -> Engine | None:
    """Let the engine run all items from now on, None for worker threads; return the one before."""
    global _engine
    previous, _engine = _engine, engine
    return previous


def has_engine() -> bool:
    """Whether an engine runs the items, which it does only while a caller waits."""
    return _engine is not None


def drain() -> None:
    """Wait until everything queued so far, on any queue, has run."""
    if _engine is not None:
        _engine.finish()
    for queue in _working.copy():
        mark = Mark(queue)
        queue.put(mark)
        mark.wait()


_LONGEST = threading.TIMEOUT_MAX / 2  # seconds: well below what a lock can wait for


def _wait(event: threading.Event, timeout: float | None = None) -> bool:
    if timeout is not None:
        timeout = min(timeout, _LONGEST)
    return event.wait(timeout) if _engine is None else _engine.wait(event, timeout)


class FirstError:
    """The first error of a queue's items, until the stream raises it and begins another of these.

    One thread at a time sets it: the one that runs the queue's item.
    """

    __slots__ = ("_trace", "error")

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def set(self, error: BaseException) -> None:
        """Note an error; nothing if there is one already."""
        if self.error is None:
            self._trace = error.__traceback__
            self.error = error

    def again(self) -> BaseException | None:
        """Return the error as it was raised: each ``raise`` adds to the traceback it finds."""
        return None if self.error is None else self.error.with_traceback(self._trace)


class Mark:
    """A point of a queue: reached when everything queued before it has run."""

    __slots__ = ("_failed", "_forks", "_tells", "first", "reached", "time_ns")

    def __init__(self, queue: WorkQueue) -> None:
        self.first = queue.first  # the queue may have another one when this is reached
        self._failed = False
        self.reached: threading.Event = threading.Event()
        self.time_ns: int = 0
        self._tells: list[Callable[[], object]] = []
        self._forks = _forks

    def __call__(self) -> None:
        """Be reached, as an item of the queue."""
        self.time_ns = time.perf_counter_ns()
        self._failed = self.first.error is not None
        self.reached.set()
        self._tell()

    def tell(self, call: Callable[[], object]) -> Callable[[], None]:
        """Have ``call`` called by the thread that reaches the mark; return what cancels that.

        It is called at once if the mark is reached already, and must not block.
        """
        self._tells.append(call)
        if self.is_reached:
            self._tell()

        def forget() -> None:
            with suppress(ValueError):  # it was called
                self._tells.remove(call)

        return forget

    def _tell(self) -> None:
        while self._tells:
            try:
                call = self._tells.pop(0)
            except IndexError:  # another thread took it
                return
            call()

    @property
    def error(self) -> BaseException | None:
        """The first error before it, if no wait has raised it by then; None until reached."""
        return self.first.again() if self._failed else None

    def raise_error(self) -> None:
        """Raise ``error``, if there is one, each time."""
        error = self.error
        if error is not None:
            raise error

    @property
    def is_reached(self) -> bool:
        """Whether all before it has run; in a forked child, True for the marks of the parent."""
        return self.reached.is_set() or self._forks != _forks

    @property
    def done(self) -> bool:
        """``is_reached``, for a caller that polls: an engine is told."""
        if _engine is not None:
            _engine.polled()
        return self.is_reached

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is reached; False after ``timeout`` seconds."""
        return self.is_reached or _wait(self.reached, timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        """Suspend the task until it is reached."""
        if _engine is not None:
            yield  # other tasks run once: what they submit now takes part
            self.wait()
        elif not self.is_reached:
            yield from waits.told(lambda tell: self.tell(functools.partial(tell, None)))


class Wait:
    """An item that ends when a mark, of any queue, is reached."""

    __slots__ = ("mark",)

    def __init__(self, mark: Mark) -> None:
        self.mark = mark

    def __call__(self) -> None:
        """Block until the mark is reached."""
        self.mark.wait()


class Turn:
    """An item whose work another thread does, from when the queue reaches it until ``end``."""

    def __init__(self, queue: WorkQueue) -> None:
        self.thread = threading.get_ident()
        self.over = False
        self.begun, self._release = threading.Event(), threading.Event()
        self._queue, self._forks = queue, _forks

    def begin(self) -> None:
        """Join the queue, and wait until the queue reaches this item."""
        self._queue.put(self)
        _wait(self.begun)

    def __call__(self) -> None:
        """Let the other thread run, until it ends the turn."""
        self.begun.set()
        self._release.wait()

    def end(self) -> None:
        """Let the queue go on; after an interrupt, a second call does the rest."""
        if not self._release.is_set():
            self.over = True
            self._queue.end_item(self, self._forks)
            self._release.set()


class WorkQueue:
    """Items run one after the other, by a thread that starts with the first and ends when idle."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first = FirstError()  # the one that no wait for the queue has raised
        self.begin()
        _queues.add(self)

    def begin(self) -> None:
        """Begin with no items and no worker: as a new queue, or in a forked child."""
        self._items: deque[Item] = deque()
        self._lock = threading.RLock()  # a destructor that submits may run inside it
        self._working = False  # whether there is a worker
        self._pending: set[Item] = set()  # items that have not ended

    @property
    def idle(self) -> bool:
        """Whether every item has ended."""
        return not self._pending

    def polled(self) -> bool:
        """``idle``, for a caller that polls: an engine is told."""
        if _engine is not None:
            _engine.polled()
        return self.idle

    def put(self, item: Item) -> None:
        """Queue an item; RuntimeError if no thread can be started."""
        engine = _engine
        if engine is not None:
            self._pending.add(item)
            engine.put(self, item)
            return
        try:
            with self._lock:
                _working.add(self)
                self._items.append(item)
                self._pending.add(item)
            self._have_worker(item)
        except BaseException:  # after an interrupt, what is queued has to run
            if self._items:
                self._have_worker(item)
            raise

    def _have_worker(self, item: Item) -> None:
        """Start a worker unless there is one; of two that start at once, one works."""
        if self._working:
            return
        try:
            threading.Thread(target=self._work, name=self.name, daemon=True).start()
        except RuntimeError:  # the item would never run: take it back
            with self._lock:
                if self._working or item not in self._items:  # another thread has started one
                    return
                self._items.remove(item)
                self._pending.discard(item)
                if not self._items:
                    _working.discard(self)
            raise

    def _work(self) -> None:
        forks = _forks
        with self._lock:
            if self._working:
                return
            self._working = True
        while forks == _forks:  # the item may have forked, and this be the child
            with self._lock:
                if not self._items:
                    self._working = False
                    _working.discard(self)
                    return
                item = self._items.popleft()
            if isinstance(item, Turn):  # it ends itself, before its thread goes on
                item()
            elif isinstance(item, Mark):  # before another thread can see that it is reached
                self.end_item(item, forks)
                item()
            else:
                item()
                self.end_item(item, forks)

    def end_item(self, item: Item, forks: int | None = None) -> None:
        """Note that an item has ended; nothing in a child forked after it was queued."""
        if forks not in (None, _forks):
            return
        self._pending.discard(item)
        if _engine is not None:
            _engine.ended(self)

    def raise_error(self, mark: Mark | None = None) -> None:
        """Raise the first error that no wait has raised; with a mark, the error of the mark."""
        with self._lock:
            first = self.first if mark is None else mark.first
            error = first.again() if mark is None else mark.error
            if error is not None and first is self.first:
                self.first = FirstError()
        if error is not None:
            raise error


def _begin_anew() -> None:
    global _forks  # noqa: PLW0603 - one count for the process
    if _engine is None:  # an engine runs items in the thread that waits, which the child has
        _forks += 1
        _working.clear()
        for queue in list(_queues):
            queue.begin()


os.register_at_fork(after_in_child=_begin_anew)
