"""The scope: one stream current in every loaded library, exactly restored.

It adds no wait unless it is ordered. It is entered in inner loops, so what it calls is prepared
once for a stream, and calls are saved where that keeps it readable.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit import errors
from streamkit._base import messages
from streamkit._cuda import driver, loader
from streamkit._queues import ordering as ordering_module
from streamkit._scopes import loaded_libraries
from streamkit._scopes.open_scopes import leave, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from streamkit._base.queue import Queue

Libraries: TypeAlias = "frozenset[str] | None"  # those to move; None for all


class Plan:
    """The ways of one stream in and out of the chosen libraries."""

    def __init__(self, view: Callable[[str], Any], context: int, libraries: Libraries) -> None:
        """``view`` gives a library's own object on the stream, whose context is ``context``."""
        self.context = context
        self.known = loaded_libraries.movers()
        self.movers = [m for m in self.known if libraries is None or m.name in libraries]
        ways = [mover.bind(view(mover.name)) for mover in self.movers]
        self.enters = [way.enter for way in ways]
        self.leaves = [way.leave for way in reversed(ways)]
        self.count = len(ways)
        self.keeps_device = all(way.keeps_device for way in ways)
        # the cheapest question for the current context, and its answer while it is this one
        told = [mover.context for mover in self.known if mover.context is not None]
        self.where: Callable[[], object] = told[0] if told else loader.cu.cuCtxGetCurrent
        self.here: object = context if told else driver.context_answer(context)
        self.is_there = _all([way.is_current for way in ways], self.where, self.here)
        """Whether every library, and the context, is where a scope puts it."""
        self._back = [way.set_current for way in ways]

    def stay(self) -> list[str]:
        """Put every library, and the context, back there; name what could not."""
        lost: list[str] = []
        try:
            driver.set_context(self.context)
        except Exception as error:  # noqa: BLE001 - the libraries must be restored all the same
            lost.append(f"the device ({error})")
        for mover, set_current in zip(self.movers, self._back, strict=True):
            try:
                set_current()
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{mover.name} ({type(error).__name__}: {error})")
        return lost


def _all(
    looks: Sequence[Callable[[], bool]], where: Callable[[], object], here: object
) -> Callable[[], bool]:
    """Return what asks all of them; three are written out, for a loop costs as much as they do."""
    one, two, three, *others = (*looks, _yes, _yes, _yes)
    if len(looks) > 3:  # noqa: PLR2004 - those written out
        three = _all(others[:-3], three, True)  # noqa: FBT003 - what ``three`` answers

    def are_there() -> bool:
        try:
            return not loader.is_forked and one() and two() and three() and where() == here
        except Exception:  # noqa: BLE001 - a library's own: it cannot tell
            return False

    return are_there


def _yes() -> bool:
    return True


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
                and outer.plan.known is (loaded_libraries.settled or loaded_libraries.movers())
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
        if loader.is_forked:
            raise messages.forked()
        plan = self._plans.get(libraries)  # none while the stream is closed
        if plan is None or plan.known is not (
            loaded_libraries.settled or loaded_libraries.movers()
        ):
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
        scope.previous = plan.context if is_here else driver.current_context()
        tokens = scope.tokens = []
        try:
            if not is_here:
                driver.set_context(plan.context)
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
            is_there = not loader.is_forked and plan.where() == plan.here
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
            driver.set_context(self.plan.context)
        except errors.StreamKitError as error:
            lost.append(f"the device of {self.stream!r} ({error})")

    def _restore_context(self, lost: list[str]) -> None:
        try:
            driver.set_context(self.previous or driver.default_context())
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
        found = loaded_libraries.others(queue, self.plan.movers)
        for previous in loaded_libraries.to_wait_for(queue, found):
            ordering_module.wait_queue(queue, previous)
            self._before.append(previous)

    def leave(self) -> list[str]:
        """Let those streams wait for the queue, and put everything back."""
        lost: list[str] = []
        for other in self._before:
            try:
                if loaded_libraries.is_to_wait(other, self._queue):
                    ordering_module.wait_queue(other, self._queue)
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
