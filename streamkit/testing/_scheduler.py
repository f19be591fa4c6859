"""Host streams in an adversarial order, so that a missing wait fails a test on a laptop.

Worker threads nearly always run unordered work in the order of its submission, so a program works
even without the wait that it needs for that order. Here the work is held back until a thread waits,
and a seeded generator chooses what runs next among all that may.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._queues import open_scopes
from streamkit._streams import host_queue
from streamkit._streams.host_queue import Engine, Function, QueueEnd, Turn, Wait
from streamkit._streams.host_stream import HostStream
from streamkit._support import messages, refusals, reports
from streamkit.protocols.queues import here

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from streamkit._streams.host_queue import Item, WorkQueue
    from streamkit._support.locks import Latch

# How probable it is at each step that the streams' priorities are drawn again; each seed takes one
# of these. With 0 one stream runs ahead of another as far as it can, which finds work that nothing
# orders with the end of a long queue. With 1 each step is drawn by itself, which reaches every
# order there is.
_REDRAW = (0.0, 0.125, 1.0)
_LOOK = 5e-3  # seconds between two looks whether a future is done


@contextmanager
def adversarial(seed: int) -> Generator[None]:
    """Run the host streams' work in an order that the seed chooses among all that are allowed.

    In the block submitted functions run only when a thread waits: in ``sync`` of a stream or an
    event, on entering a scope, in a ``wait`` inside one, when ``done`` is read (which runs a few,
    perhaps none) and at the end of the block, which waits for everything. They run in the thread
    that waits, one after the other. Each stream's order, waits and records hold as always;
    everything else may run in any order.

    Leaving the block raises the first error of a function that no ``sync`` has raised. Any error
    that leaves the block names the seed in a note. Blocks nest: the inner seed has its turn when
    the outer block's work has run.

    It does not find: an order that is wrong inside one function or one scope's body; a function
    that was submitted too early, because none runs before the next wait; what only happens with
    values or streams that the program did not use; anything on CUDA streams. A function that waits
    for the thread that submitted it, other than through streams and events, hangs.

    Args:
        seed: It chooses the order. In a single thread, the same seed gives the same order.

    Raises:
        ScopeError: The block is entered inside a scope of a host stream; or work waits for itself,
            which would hang otherwise.

    >>> from streamkit.testing import adversarial
    >>> def first_of_two(seed):
    ...     log = []
    ...     with adversarial(seed):
    ...         sk.new_stream("cpu").submit(log.append, "one")
    ...         sk.new_stream("cpu").submit(log.append, "two")
    ...     return log[0]
    >>> sorted({first_of_two(seed) for seed in range(10)})
    ['one', 'two']
    """
    with scheduled(seed):
        yield


@contextmanager
def scheduled(seed: int) -> Generator[_Scheduler]:
    """Do what ``adversarial`` does; give the scheduler."""
    if any(isinstance(scope.stream, HostStream) for scope in open_scopes.of_thread()):
        raise errors.ScopeError(
            f"adversarial({seed}) was entered inside a scope of a host stream, whose body it "
            "cannot interleave. Enter it first."
        )
    host_queue.drain()
    scheduler = _Scheduler(seed)
    previous = host_queue.exchange(scheduler)
    try:
        try:
            yield scheduler
        except BaseException:
            with suppress(errors.ScopeError):  # the error of the block explains this one
                scheduler.finish()
            raise
        scheduler.finish()
        for queue in scheduler.failed:  # raise the first error that no wait has raised
            queue.raise_error()
    except BaseException as error:
        error.add_note(f"in streamkit.testing.adversarial({seed}): the same seed repeats it")
        raise
    finally:
        host_queue.exchange(previous)


def for_seeds(program: Callable[[], object], seeds: int | Iterable[int] = 100) -> None:
    """Call a program under each seed; a note on the error of the first that fails names the seed.

    Args:
        program: A function that makes its own streams and data.
        seeds: How many seeds, counted from 0, or which ones.

    Raises:
        ValueError: There is no seed; or the program gave host streams no work, so that every seed
            ran it in one order.
    """
    if not callable(program):
        raise TypeError(
            f"for_seeds needs a function, and was given {messages.describe(program)}: pass the "
            "program itself, as in for_seeds(program), and not what it returns."
        )
    schedulers = []
    kind = refusals.kind_of(program)
    if kind is not None:
        raise TypeError(
            f"for_seeds cannot call {refusals.name_of(program)}, which is {kind.name}: a call of "
            "it runs nothing. Give a function that runs the program, as by asyncio.run(main())."
        )
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        with scheduled(seed) as scheduler:
            program()
        schedulers.append(scheduler)
    if not schedulers:
        raise ValueError(
            f"for_seeds was given no seed, {messages.describe(seeds)}, so that "
            f"{refusals.name_of(program)} did not run: give 1 or more."
        )
    max(schedulers, key=lambda one: one.had_work).assert_had_work(refusals.name_of(program))


class _QueueState:
    """The items of one queue that have not run, and the item that runs."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.running: Item | None = None
        self.thread = 0  # the thread that runs it


class _Scheduler(Engine):
    """The engine behind ``adversarial``. Functions run outside its lock, in threads that wait."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # An odd seed prefers the item that the even seed before puts last, so that the two try both
        # orders at the first choice.
        self._random = random.Random(seed // 2)  # noqa: S311 - it has to be repeatable, not secret
        self._preferred = max if seed % 2 else min
        self._redraw = self._random.choice(_REDRAW)
        self._priorities: dict[WorkQueue, float] = {}
        self._busy: dict[WorkQueue, _QueueState] = {}  # the queues with items that have not ended
        self.failed: dict[WorkQueue, None] = {}  # in the order of their first errors
        self.had_work = False
        """Whether any item could have run in another order."""
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stuck_since = math.inf
        self._resting: set[int] = set()  # threads that found nothing to run since the last change

    def assert_had_work(self, name: str) -> None:
        if not self.had_work:
            raise ValueError(
                f"{name} gave host streams no work to reorder, so that no seed can show a missing "
                "wait: the body of 'with s:' runs in the thread that enters it, in the order of "
                "that thread. Give the work by s.submit(fn, ...) to host streams."
            )

    def put(self, queue: WorkQueue, item: Item) -> None:
        with self._lock:
            # the bodies of the scopes of one thread have the order of that thread
            is_own_body = isinstance(item, Turn) and item.thread == self._thread
            self.had_work |= not (is_own_body or isinstance(item, (QueueEnd, Wait)))
            self._busy.setdefault(queue, _QueueState()).items.append(item)
            self._notify()

    def ended(self, queue: WorkQueue) -> None:
        with self._lock:
            state = self._busy.get(queue)
            if state is not None:
                if isinstance(state.running, Turn) and state.running.over:
                    state.running = None
                if state.running is None and not state.items:
                    del self._busy[queue]
            if queue.first.failure is not None:
                self.failed[queue] = None
            self._notify()

    def wait(self, event: Latch, timeout: float | None) -> bool:
        return self._run_until(event.is_set, timeout)

    def held(self, waiter: object) -> object:
        here = threading.get_ident()
        with self._lock:
            if self._ready() or self._waiting_for_futures():
                return None if self._ready() else waiter
            running = [state for state in self._busy.values() if state.running is not None]
            return all(one.thread == here or isinstance(one.running, Turn) for one in running)

    def polled(self) -> None:
        while self._random.random() < 1 / 2 and self._step():
            pass

    def finish(self) -> None:
        self._run_until(lambda: not self._busy or self._gives_up())
        if self._busy:
            names = ", ".join(queue.name for queue in self._waiting_for_futures())
            raise errors.ScopeError(
                f"host work waits for a future that is not done, in adversarial({self._seed}): "
                f"nothing on {names} can run. Finish the future before the block ends."
            )

    def _notify(self) -> None:
        self._resting.clear()
        self._changed.notify_all()

    # -- what runs next -----------------------------------------------------------------------

    def _run_until(self, enough: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                self._pass_points()
                if enough():
                    break
                begun = self._begin()
                if begun is None:
                    if not self._rest(deadline):
                        return False
                    continue
            self._run(*begun)
        self.polled()  # else nothing could run between this and the caller's next wait
        return True

    def _step(self) -> bool:
        with self._lock:
            self._pass_points()
            begun = self._begin()
        if begun is not None:
            self._run(*begun)
        return begun is not None

    def _pass_points(self) -> None:
        """Pass every mark whose turn it is, and the waits for such marks."""
        passed = True
        while passed:  # because each passed mark can let others pass
            passed = False
            for queue, state in list(self._busy.items()):
                while state.running is None and state.items and _is_point(state.items[0]):
                    passed = True
                    item = state.items.popleft()
                    if isinstance(item, Turn):  # ended before it began
                        self.ended(queue)
                        continue
                    if isinstance(item, Wait):
                        item()
                    queue.end_item(item)  # before another thread can see that the mark is reached
                    if isinstance(item, QueueEnd):
                        item()

    def _ready(self) -> list[WorkQueue]:
        """Return the queues of which an item may run."""
        found = [(q, item) for q, item in self._next() if not isinstance(item, Wait)]
        return [q for q, item in found if not _needs_a_future(item)]

    def _waiting_for_futures(self) -> list[WorkQueue]:
        """Return the queues that go on once a future is done."""
        return [q for q, item in self._next() if _needs_a_future(item)]

    def _next(self) -> list[tuple[WorkQueue, Item]]:
        """Return the first items of the queues of which none runs."""
        return [(q, state.items[0]) for q, state in self._busy.items() if state.running is None]

    def _gives_up(self) -> bool:
        """Whether all items have waited for futures too long, of which none has ended."""
        is_running = any(state.running is not None for state in self._busy.values())
        if is_running or self._ready() or not self._waiting_for_futures():
            self._stuck_since = math.inf
        else:
            self._stuck_since = min(self._stuck_since, monotonic())
        return monotonic() - self._stuck_since > reports.PATIENCE

    def _begin(self) -> tuple[WorkQueue, Item] | None:
        """Choose an item among those that may run, and let it begin; None without such an item."""
        ready = self._ready()
        if not ready:
            return None
        if self._random.random() < self._redraw:
            self._priorities.clear()
        for queue in ready:
            self._priorities.setdefault(queue, self._random.random())
        queue = self._preferred(ready, key=self._priorities.__getitem__)
        state = self._busy[queue]
        state.running = item = state.items.popleft()
        state.thread = threading.get_ident()
        if isinstance(item, Turn):
            state.thread = item.thread
            item.begun.set()
            self._notify()
        return queue, item

    def _run(self, queue: WorkQueue, item: Item) -> None:
        if isinstance(item, Turn):  # another thread runs the body
            return
        try:
            with _outside_scopes():
                item()
        finally:
            with self._lock:
                self._busy[queue].running = None
                queue.end_item(item)

    def _rest(self, deadline: float | None) -> bool:
        """Wait for another thread to change something; False when the time is over."""
        if self._waiting_for_futures():  # futures do not tell their ends
            left = math.inf if deadline is None else deadline - monotonic()
            self._changed.wait(max(0.0, min(left, _LOOK)))
            return left > 0
        if deadline is not None:
            return self._changed.wait(deadline - monotonic())
        self._resting.add(threading.get_ident())
        running = {q.name: state for q, state in self._busy.items() if state.running is not None}
        if all(state.thread in self._resting for state in running.values()):
            raise errors.ScopeError(
                f"the host work waits for itself, in adversarial({self._seed}): what runs on "
                f"{', '.join(running)} waits for its own end, perhaps through other streams. "
                "Wait outside of it."
            )
        return self._changed.wait()


def _needs_a_future(item: Item) -> bool:
    """Whether an item waits for a future that is not done; to run it would block the thread."""
    return isinstance(item, Function) and not item.is_ready


def _is_point(item: Item) -> bool:
    """Whether an item at the head of a queue takes no time."""
    if isinstance(item, Wait):
        return item.mark.reached.is_set()
    return isinstance(item, QueueEnd) or (isinstance(item, Turn) and item.over)


@contextmanager
def _outside_scopes() -> Generator[None]:
    """Hide the thread's open scopes in the block, because a function in a worker has none."""
    scopes = here.scopes
    own, scopes.innermost = scopes.innermost, None
    try:
        yield
    finally:
        scopes.innermost = own
