"""The scope: one stream current in every loaded library, exactly restored.

It adds no wait unless it is ordered. It is entered in inner loops, so what it calls is prepared
once for a stream, and calls are saved where that keeps it readable.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from streamkit import _current_queues, _driver, _library, _movers, _order, _refusals, errors
from streamkit._open_scopes import leave, stack
from streamkit._plan import Libraries, Plan

if TYPE_CHECKING:
    from typing import Self

    from streamkit._queue import Queue


class Scoped:
    """A CUDA stream as something to enter."""

    _queue: Queue | None
    _views: dict[str, Any]  # the libraries' objects that the stream holds
    _plans: dict[Libraries, Plan]  # replaced, never changed, as those

    @abstractmethod
    def _live(self) -> Queue:
        """Return its queue; raises if it is closed, or another thread's."""

    @abstractmethod
    def to(self, library: str) -> Any:
        """Return the library's own object on it."""

    def _new_plan(self, libraries: Libraries) -> Plan:
        queue = self._live()
        plan = Plan(self.to, queue.context, libraries)
        # a view that the stream may not hold is made anew for each scope, and so is the plan; one
        # of a per-thread stream, whose thread is checked here
        if queue.thread is None and all(mover.name in self._views for mover in plan.movers):
            self._plans = {**self._plans, libraries: plan}
        return plan

    def __enter__(self) -> Self:
        """Make this the current stream of every loaded library, as ``streamkit.use``.

        If a library refuses the stream, everything is put back and its error raised.
        """
        scopes = stack.scopes
        if scopes:
            outer = scopes[-1]
            if (
                outer.key is self
                and self._queue is not None
                and outer.plan.known is (_movers.settled or _movers.movers())
                and outer.plan.is_there()
            ):
                outer.again += 1
                return self
        self._enter(scopes, self, None)
        return self

    def _enter(
        self,
        scopes: list[Any],
        key: object,
        libraries: Libraries,
        ordered: bool = False,  # noqa: FBT001, FBT002 - by position, which costs less
    ) -> None:
        """Open a scope on this thread's stack, to be left under ``key``."""
        if _library.is_forked:
            raise _refusals.forked()
        plan = self._plans.get(libraries)  # none while the stream is closed
        if plan is None or plan.known is not (_movers.settled or _movers.movers()):
            plan = self._new_plan(libraries)
        if scopes and scopes[-1].plan is plan and plan.is_there():
            scopes.append(NestedScope(self, key, plan))
            return
        ordering = OrderedScope(self._live()) if ordered else None
        scope = ordering or CudaScope()
        scope.stream = self
        scope.key = key
        scope.plan = plan
        scope.again = 0
        try:
            is_here = plan.where() == plan.here
        except Exception:  # noqa: BLE001 - a library's own: then the driver is asked
            is_here = False
        scope.previous = plan.context if is_here else _driver.current_context()
        tokens = scope.tokens = []
        try:
            if not is_here:
                _driver.set_context(plan.context)
            if ordering is not None:
                ordering.order()
            if plan.count == 3:  # noqa: PLR2004 - written out, for a loop costs as much as a call
                one, two, three = plan.enters
                tokens.append(one())
                tokens.append(two())
                tokens.append(three())
            else:
                for enter in plan.enters:
                    tokens.append(enter())  # noqa: PERF401 - known one by one, should the next fail
            scopes.append(scope)
        except BaseException as error:
            _undo(scope, error)
            raise

    __exit__ = leave  # the scope that was entered under this key


def _undo(scope: CudaScope, error: BaseException) -> None:
    """Put back what a scope that could not be entered has moved so far."""
    if scope in stack.scopes:
        stack.scopes.remove(scope)
    for lost in scope.leave() or ():
        error.add_note(f"and what could not be restored after that: {lost}")


class CudaScope:
    """One stream made current in the loaded libraries of this thread."""

    __slots__ = ("again", "key", "plan", "previous", "stream", "tokens")

    stream: Scoped
    key: object
    plan: Plan
    again: int
    previous: int  # the context
    tokens: list[Any]  # what undoes each library's move

    def leave(self) -> list[str]:
        """Put the libraries, then the context, back, in reverse order; name what could not be."""
        plan = self.plan
        tokens = self.tokens
        lost: list[str] = []
        interrupt: BaseException | None = None
        try:
            is_there = not _library.is_forked and plan.where() == plan.here
        except Exception:  # noqa: BLE001 - a library's own: it cannot tell
            is_there = False
        if not is_there:  # the body may have changed the device
            self._return_to_context(lost)
        if len(tokens) == plan.count:
            try:
                if plan.count == 3:  # noqa: PLR2004 - written out, as on the way in
                    three, two, one = plan.leaves
                    three(tokens.pop())
                    two(tokens.pop())
                    one(tokens.pop())
                else:
                    for leave in plan.leaves:
                        leave(tokens.pop())
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = self._note(error, lost)
        if tokens:  # one of them failed, or the scope was entered in part
            interrupt = self._leave_rest(lost) or interrupt
        if self.previous is not plan.context or not plan.keeps_device:
            self._restore_context(lost)
        if interrupt is not None:
            raise interrupt
        return lost

    def _leave_rest(self, lost: list[str]) -> BaseException | None:
        """Restore those that are left; return what interrupted that."""
        interrupt: BaseException | None = None
        while self.tokens:
            leave = self.plan.leaves[-len(self.tokens)]
            try:
                leave(self.tokens.pop())
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = self._note(error, lost) or interrupt
        return interrupt

    def _return_to_context(self, lost: list[str]) -> None:
        try:
            _driver.set_context(self.plan.context)
        except errors.StreamKitError as error:
            lost.append(f"the device of {self.stream!r} ({error})")

    def _restore_context(self, lost: list[str]) -> None:
        try:
            _driver.set_context(self.previous or _driver.default_context())
        except errors.StreamKitError as error:
            lost.append(f"the device before {self.stream!r} ({error})")

    def _note(self, error: BaseException, lost: list[str]) -> BaseException | None:
        """Name the library that failed, the next in order; return the error if it interrupts."""
        name = self.plan.movers[len(self.tokens)].name
        lost.append(f"{name} ({type(error).__name__}: {error})")
        return None if isinstance(error, Exception) else error


class OrderedScope(CudaScope):
    """A scope after what the libraries were given before, and before what they are given after."""

    __slots__ = ("_before", "_queue")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._before: list[Queue] = []  # those it waits for, and that wait for it at the end

    def order(self) -> None:
        """Let the queue wait for each library's previous stream, as far as a capture allows."""
        queue = self._queue
        found = _current_queues.others(queue, self.plan.movers)
        for previous in _current_queues.to_wait_for(queue, found):
            _order.wait_queue(queue, previous)
            self._before.append(previous)

    def leave(self) -> list[str]:
        """Let those streams wait for the queue, and put everything back."""
        lost: list[str] = []
        for other in self._before:
            try:
                if _current_queues.is_to_wait(other, self._queue):
                    _order.wait_queue(other, self._queue)
            except Exception as error:  # noqa: BLE001 - the others must wait all the same
                lost.append(f"the order after {self.stream!r} ({error})")
        return lost + super().leave()


class NestedScope:
    """A scope inside one of the same stream: everything stands there already."""

    __slots__ = ("again", "key", "plan", "stream")

    def __init__(self, stream: Scoped, key: object, plan: Plan) -> None:
        self.stream = stream
        self.key = key
        self.plan = plan
        self.again = 0

    def leave(self) -> list[str]:
        """Put back what the body moved: to this very stream, where the outer scope has it."""
        return [] if self.plan.is_there() else self.plan.stay()
