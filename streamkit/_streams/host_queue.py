"""The queue behind a host stream: a worker thread runs the items, and ends soon after the last one.

An engine can run the items of all queues instead, as that of ``streamkit.testing.adversarial``
does. In a forked child nothing runs the queues of the parent, whose threads go on with the items.

Threads that wait for one another in a circle would hang, which CUDA streams never do. If all these
threads wait here and without a timeout, one thread gets ScopeError instead.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from streamkit._queues import waits
from streamkit._streams.host_worker import Worker
from streamkit._support import locks, reports
from streamkit._support.locks import Latch, new_lock
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from streamkit._support.reports import Failure, Submitted

    Item = Callable[[], None]


class Engine(Protocol):
    """A runner of all queues' items in the place of worker threads; any thread calls it."""

    @abstractmethod
    def put(self, queue: WorkQueue, item: Item) -> None:
        """Take a queue's next item, without running it."""

    @abstractmethod
    def ended(self, queue: WorkQueue) -> None:
        """Note that the queue's running item has ended."""

    @abstractmethod
    def wait(self, event: Latch, timeout: float | None) -> bool:
        """Run items until the event is set; False after ``timeout`` seconds."""

    @abstractmethod
    def held(self, waiter: object) -> Any:
        """Return ``waiter`` if all wait for futures, True if so for scopes or this thread."""

    @abstractmethod
    def polled(self) -> None:
        """Note that a caller asks, without waiting, whether something is done."""

    @abstractmethod
    def finish(self) -> None:
        """Run all items there are."""


_engine: Engine | None = None
_working: set[WorkQueue] = set()  # the queues with items for a worker
_late: set[object] = set()  # what the queues waited for that the end of the program has given up
_forks = 0  # between the process that imported this module and the present one


def exchange(engine: Engine | None) -> Engine | None:
    """Let an engine, or worker threads for None, run all items; return the former engine."""
    global _engine
    previous, _engine = _engine, engine
    return previous


def drain() -> None:
    """Wait until everything queued so far, on any queue of a host stream, has run."""
    if _engine is not None:
        _engine.finish()
    for queue in _working.copy():
        if not queue.is_cuda:
            mark = QueueEnd(queue)
            queue.put(mark)
            mark.wait()


class _Blocked:
    """A thread that waits for a point of a queue."""

    __slots__ = ("error", "event", "queue", "timeout")

    def __init__(self, event: Latch, queue: WorkQueue, timeout: float | None) -> None:
        self.event, self.queue, self.timeout = event, queue, timeout
        self.error: ScopeError | None = None


_blocked: dict[int, _Blocked] = {}
_circles = new_lock()


def _wait(
    event: Latch, queue: WorkQueue, timeout: float | None = None, *, spin: bool = False
) -> bool:
    """Block this thread until the queue sets the event; False after ``timeout`` seconds.

    ScopeError if the thread would wait for itself, by way of other threads.
    """
    thread = threading.get_ident()
    blocked = _Blocked(event, queue, timeout)
    try:
        with _circles:
            _blocked[thread] = blocked
            _refuse(_circle(thread))
        ask = functools.partial(_is_set, event)
        reached = waits.ask(ask, timeout) if spin else event.wait(timeout)
    finally:
        _blocked.pop(thread, None)
    if blocked.error is not None:
        raise blocked.error
    return reached


# sleep(0) sleeps for 50 us on Linux
_free_gil: Callable[[], object] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))


def _is_set(event: Latch) -> bool:
    """Whether the event is set; if not, let the queue's worker have the GIL for a moment."""
    if event.is_set():
        return True
    _free_gil()
    return False


def _circle(thread: int) -> list[_Blocked]:
    """Return a circle of endless waits by which a thread waits for itself; [] if there is none."""
    circle: list[_Blocked] = []
    blocked = _blocked.get(thread)
    while blocked is not None and not blocked.event.is_set() and len(circle) < len(_blocked):
        if blocked.timeout is not None:
            return []
        circle.append(blocked)
        if blocked.queue.thread == thread:
            return circle
        blocked = _blocked.get(blocked.queue.thread)
    return []


def _refuse(circle: list[_Blocked]) -> None:
    """Let one of the waits of a circle end with an error."""
    if not circle:
        return
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    text = "; ".join(
        f"{blocked.queue.title} runs in the thread {names.get(blocked.queue.thread)!r}"
        for blocked in circle
    )
    # The thread that holds a queue waits for the thread of the next queue. The user sees the error
    # where the former runs a function, a body, or a destructor between two items. A worker that
    # obeys ``a.wait(b)`` has no caller, and what follows the wait would run too early.
    waiting = next(
        later
        for earlier, later in zip([circle[-1], *circle], circle, strict=False)
        if not isinstance(earlier.queue.function, Wait)
    )
    waiting.error = ScopeError(
        f"functions or scopes of streams wait for one another, and none could end: {text}. "
        "Order the streams with a.wait(b), outside of the functions and scopes."
    )
    waiting.event.set()


class FirstError:
    """The first error of a queue's items. Once it is raised, the queue gets a new object."""

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: Failure | None = None


def is_parents(one: QueueEnd | WorkQueue) -> bool:
    """Whether this is a forked child, and the object is older than the fork."""
    return one.forks != _forks


class QueueEnd:
    """A point of a queue: reached when everything queued before it has run."""

    __slots__ = ("_failed", "_queue", "_tells", "first", "forks", "reached", "time_ns")

    def __init__(self, queue: WorkQueue) -> None:
        self.first = queue.first  # later the queue may have another one
        self._queue: WorkQueue | None = queue  # until the point is reached
        self._failed = False
        self.reached = Latch()
        self.time_ns: int = 0
        self._tells: list[Callable[[], object]] = []
        self.forks = _forks

    def __call__(self) -> None:
        """Mark the point as reached, as an item of the queue."""
        self.time_ns = time.perf_counter_ns()
        self._failed = self.first.failure is not None
        self._queue = None
        self.reached.set()
        self._tell()

    def tell(self, call: Callable[[], object]) -> Callable[[], None]:
        """Let the thread that reaches the mark call ``call``; return a function that cancels that.

        At a mark that is reached already, ``call`` is called at once. It must not block.
        """
        self._tells.append(call)
        if self.is_reached:
            self._tell()

        def forget() -> None:
            with suppress(ValueError):  # ``call`` was called already
                self._tells.remove(call)

        return forget

    def _tell(self) -> None:
        with suppress(IndexError):  # another thread took the last call
            while self._tells:
                call = self._tells.pop(0)
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - the other calls have to follow
                    reports.report(error, "a callback for when a host stream has run")

    @property
    def failure(self) -> Failure | None:
        """The first error before the point that no wait had raised; None until it is reached."""
        return self.first.failure if self._failed else None

    def raise_error(self) -> None:
        """Raise the error of ``failure``, if there is one, each time."""
        failure = self.failure
        if failure is not None:
            raise failure.tell()

    @property
    def engine(self) -> Engine | None:
        """The engine that runs the items before the point; None if a worker runs them."""
        return _engine if self._queue is None else self._queue.engine

    @property
    def is_reached(self) -> bool:
        """Whether all items before the point have run."""
        return self.reached.is_set()

    @property
    def done(self) -> bool:
        """``is_reached`` for a caller that polls, as an engine has to know."""
        if _engine is not None:
            _engine.polled()
        return self.is_reached

    def wait(self, timeout: float | None = None, *, spin: bool = False) -> bool:
        """Block until the point is reached; False after ``timeout`` seconds."""
        queue = self._queue
        if self.is_reached or queue is None:
            return True
        engine = queue.engine
        if engine is not None:
            return engine.wait(self.reached, timeout)
        event = Latch()
        forget = self.tell(event.set)
        try:
            return _wait(event, queue, timeout, spin=spin)
        finally:
            forget()

    def __await__(self) -> Generator[Any, Any, None]:
        """Suspend the task until the point is reached."""
        engine = self.engine
        if engine is not None:
            yield  # other tasks run once, so that work they submit now takes part
            while not (self.is_reached or engine.wait(self.reached, 0)):
                if engine.held(self) is not self:
                    break
                yield  # a task of this loop may have to finish a future
            self.wait()
        elif not self.is_reached:
            yield from waits.told(
                lambda loop, waiter: self.tell(functools.partial(loop.tell, [(waiter, None)]))
            )


class Wait:
    """An item that ends when a mark, of any queue, is reached.

    An error before the mark becomes an error of the waiting ``queue``.
    """

    __slots__ = ("_queue", "mark")

    def __init__(self, mark: QueueEnd, queue: WorkQueue | None = None) -> None:
        self.mark = mark
        self._queue = queue

    def __call__(self) -> None:
        """Block until the mark is reached."""
        self.mark.wait()
        failure = self.mark.failure
        if failure is not None and self._queue is not None:
            self._queue.fail(failure)


class Turn:
    """An item whose work another thread does, from when the queue reaches the item."""

    def __init__(self, queue: WorkQueue) -> None:
        self.thread = threading.get_ident()
        self.over = False
        self.begun, self._release = Latch(), Latch()
        self._queue = queue

    def begin(self) -> None:
        """Join the queue, and wait until the queue reaches this item."""
        self._queue.put(self)
        if _engine is not None:
            _engine.wait(self.begun, None)
        else:
            _wait(self.begun, self._queue)

    def __call__(self) -> None:
        """Let the other thread run, until it ends the turn."""
        with _circles:  # or that thread could seem to wait for itself
            if self.over:  # an interrupt ended the wait for the queue
                return
            self._queue.thread, self._queue.turn = self.thread, self
            self.begun.set()
        self._release.wait()

    def end(self) -> None:
        """Let the queue go on; after an interrupt, a second call does the rest."""
        with _circles:  # so that the turn does not begin meanwhile
            self.over = True
            if self._queue.turn is self:
                self._queue.thread, self._queue.turn = 0, None
        self._queue.end_item(self)
        self._release.set()


class Function:
    """A submitted function as an item; subclasses call the function."""

    __slots__ = ("what",)

    def __init__(self, what: Submitted) -> None:
        self.what = what

    @abstractmethod
    def __call__(self) -> None: ...

    @property
    def is_ready(self) -> bool:
        """Whether the function can run without a wait for anything outside of all queues."""
        return True

    def drop(self) -> bool:
        """Give the function up; return whether the program's end has to report that."""
        return True


class WorkQueue:
    """Runs items one after the other, in a thread that starts with the first."""

    worker: Worker | None = None
    is_cuda = False  # whether the functions are a CUDA stream's, which no engine runs

    def __init__(self, name: str, title: str) -> None:
        self.name = name  # of its threads
        self.title = title  # in messages
        self.first = FirstError()  # that no wait for the queue has raised
        self._items: deque[Item] = deque()
        self._lock = new_lock()  # a destructor that submits may run inside it
        self.function: Any = None  # the function that runs, or the wait
        self.turn: Turn | None = None  # the turn that another thread has
        self.thread = 0  # the thread that runs an item
        self._pending: dict[Item, None] = {}  # items that have not ended, in their order
        self.forks = _forks

    @property
    def engine(self) -> Engine | None:
        """The engine that runs the items; None if a worker runs them."""
        return None if self.is_cuda else _engine

    @property
    def idle(self) -> bool:
        """Whether every item has ended."""
        return not self._pending

    @property
    def is_here(self) -> bool:
        """Whether this thread is its worker, which cannot wait for itself."""
        worker = self.worker
        return worker is not None and worker.ident == threading.get_ident()

    def polled(self) -> bool:
        """``idle`` for a caller that polls, as an engine has to know."""
        if _engine is not None:
            _engine.polled()
        return self.idle

    def put(self, *items: Item) -> None:
        """Queue items; RuntimeError if no thread can be started."""
        engine = self.engine
        if engine is not None:
            for item in items:
                self._pending[item] = None
                engine.put(self, item)
            return
        with self._lock:
            _working.add(self)
            is_first = not self._items
            self._items.extend(items)
            self._pending.update(dict.fromkeys(items))
            # daemon threads stop at the end of the interpreter
            if self.worker is not None and not sys.is_finalizing():
                if is_first:  # else the worker finds the items, or will
                    self.worker.bell.ring()
                return
            worker = Worker(self.name, weakref.WeakMethod(self.work))
            try:
                worker.start()
            except RuntimeError:  # take the items back, as they would never run
                for item in items:
                    self._items.remove(item)
                    self._pending.pop(item, None)
                if not self._pending:
                    _working.discard(self)
                raise
            # a destructor that submits may have started one meanwhile: of the two one works
            self.worker = self.worker or worker

    def work(self, worker: Worker, *, ends: bool) -> bool:
        """Run all items in the worker's thread; return whether the worker waits for more items.

        False if the worker ``ends`` and finds no item, or if the queue has another worker.
        """
        thread = threading.get_ident()
        with self._lock:
            self.worker = self.worker or worker  # unset if an interrupt came after its start
        while self.worker is worker and not is_parents(self):  # in a child that an item forked
            with self._lock:
                self.thread = thread  # also between two items, where a destructor may wait
                if not self._items:
                    self.function = None
                    if ends:
                        self.worker, self.thread = None, 0
                    if not self._pending:
                        _working.discard(self)
                    break
                ends = False
                item = self._items.popleft()
                self.function = item if isinstance(item, (Function, Wait)) else None
            try:
                if isinstance(item, QueueEnd):  # before another thread can see that it is reached
                    self.end_item(item)
                item()
            except BaseException as error:  # noqa: BLE001 - later items have to run all the same
                reports.report(error, f"an item of {self.title}")
            if not isinstance(item, (QueueEnd, Turn)):  # a turn notes its end in its own thread
                self.end_item(item)
        stays = self.worker is worker and not is_parents(self)
        # the frames of an error hold this frame
        item = None  # type: ignore[assignment]
        del self
        return stays

    def __del__(self) -> None:
        if self.worker:
            self.worker.bell.ring()

    def end_item(self, item: Item) -> None:
        """Note that an item has ended."""
        self._pending.pop(item, None)
        if _engine is not None:
            _engine.ended(self)

    def fail(self, failure: Failure) -> None:
        """Note an error, unless the queue has one: no wait raises a later error."""
        with self._lock:  # or a wait could raise the first error meanwhile
            first = self.first
            if first.failure is None:
                first.failure = failure
            elif first.failure.error is failure.error:
                failure.is_told = True  # each error is reported once

    def raise_error(self, mark: QueueEnd | None = None) -> None:
        """Raise the first error of the queue that no wait has raised, or the error of a mark."""
        with self._lock:
            first = self.first if mark is None else mark.first
            failure = first.failure if mark is None else mark.failure
            if failure is not None and first is self.first:
                self.first = FirstError()
        if failure is not None:
            raise failure.tell()

    def give_up(self) -> None:
        """Report the queue's error once all has run, as no wait can begin any more."""
        if _engine is not None or is_parents(self):  # an engine raises the errors itself
            return
        mark = QueueEnd(self)
        mark.tell(self._forget_error)
        with suppress(RuntimeError):  # no thread can be started: the program's end reports it
            self.put(mark)

    def _forget_error(self) -> None:
        self.first = FirstError()

    # -- the end of the program ---------------------------------------------------------------

    def ends_here(self) -> bool:
        """End the body that this thread did not leave; False if another's has nothing behind it."""
        turn = self.turn
        if turn is not None and turn.thread == threading.get_ident():
            turn.end()
        return self.turn is None or len(self._items) > 0

    def held(self) -> bool:
        """Whether this queue may wait without end, perhaps through other queues.

        So it does for this thread, for one that holds a queue and waits for none, and for a future.
        """
        if _engine is not None:
            return bool(_engine.held(self))
        queue, here = self, threading.get_ident()
        for _ in range(len(_blocked) + 1):
            blocked = _blocked.get(queue.thread)
            if blocked is None:
                is_ready = getattr(queue.function, "is_ready", True)
                return not is_ready or queue.turn is not None or queue.thread == here
            queue = blocked.queue
        return True  # a circle

    def drop(self) -> None:
        """Report the functions that have not ended, and forget them."""
        with self._lock:
            items, self._pending = list(self._pending), {}
            self._items.clear()
        dropped = [item for item in items if isinstance(item, Function) and item.drop()]
        reports.report_dropped([item.what for item in dropped])


def wait_for_all(queues: Iterable[WorkQueue], late: set[object]) -> set[WorkQueue]:
    """Wait until queues have run; return those that PATIENCE brings no further, nor has before."""
    marks = {}
    for queue in queues:
        with suppress(RuntimeError):  # no thread can be started, so the queue has run
            queue.put(mark := QueueEnd(queue))
            marks[queue] = mark
    while left := {queue for queue, mark in marks.items() if not mark.is_reached}:
        free = next((queue for queue in left if not queue.held()), None)
        stuck = {(queue, queue.is_cuda or queue.function) for queue in left}
        if free is None and stuck <= late:
            break
        if not marks[free or next(iter(left))].wait(reports.PATIENCE) and free is None:
            late.update(stuck)
    return left


def _finish_all() -> bool:
    queues = [queue for queue in _working.copy() if _engine is None and queue.ends_here()]
    return len(wait_for_all(queues, _late)) < len(queues)


def drop_all(kind: type[WorkQueue] = WorkQueue) -> None:
    """Report and forget the functions that queues of this kind can run no more."""
    for queue in _working.copy():
        if isinstance(queue, kind):
            queue.drop()


reports.finishes.append(_finish_all)
reports.drops.append(drop_all)


def _begin_anew() -> None:
    global _engine, _forks  # noqa: PLW0603 - one of each for the process
    _engine = None  # the engine has the items of the parent
    _forks += 1
    _working.clear()
    _blocked.clear()


locks.in_child(_begin_anew)
