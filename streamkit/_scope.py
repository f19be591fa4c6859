"""The scope: one stream current in every loaded library, exactly restored.

It adds no wait unless it is ordered. It is entered in inner loops, so what it calls is prepared
once for a stream, and calls are saved where that keeps it readable.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit import _driver, _identity, _library, _movers, _order, _refusals, _registry, errors
from streamkit._open_scopes import leave_innermost, leave_out_of_order, stack

if TYPE_CHECKING:
    from typing import Self

    from streamkit._queue import Queue

Libraries: TypeAlias = "frozenset[str] | None"  # those to move; None for all


class Plan:
    """What a scope of one stream calls, prepared once: each library's ways in and out."""

    def __init__(self, target: Scoped, context: int, libraries: Libraries) -> None:
        self.context = context
        self.known = _movers.movers()
        self.here = _driver.context_answer(context)
        self.movers = [m for m in self.known if libraries is None or m.name in libraries]
        ways = [mover.bind(target.to(mover.name)) for mover in self.movers]
        self.enters = [way.enter for way in ways]
        self.leaves = [way.leave for way in reversed(ways)]
        self.looks = [way.is_current or _never for way in ways]
        self.back = [way.set_current for way in ways]
        self.keeps_device = all(way.keeps_device for way in ways)

    def is_there(self) -> bool:
        """Whether every library, and the context, is where a scope puts it."""
        for look in self.looks:
            if not look():
                return False
        return bool(_library.cu.cuCtxGetCurrent() == self.here)

    def stay(self) -> list[str]:
        """Put every library, and the context, back there if they are not; name what could not."""
        lost: list[str] = []
        try:
            if self.is_there():
                return lost
            _driver.set_context(self.context)
        except errors.StreamKitError as error:
            lost.append(f"the device ({error})")
        for mover, set_current in zip(self.movers, self.back, strict=True):
            try:
                assert set_current is not None  # noqa: S101 - there is no scope inside otherwise
                set_current()
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{mover.name} ({type(error).__name__}: {error})")
        return lost


def _never() -> bool:
    return False


class Scoped:
    """A CUDA stream as something to enter."""

    _queue: Queue | None
    _views: dict[str, Any]  # the libraries' objects that the stream holds
    _plans: dict[Libraries, Plan] = {}  # noqa: RUF012 - replaced, never changed

    @abstractmethod
    def _live(self) -> Queue:
        """Return its queue; raises if it is closed, or another thread's."""

    @abstractmethod
    def to(self, library: str) -> Any:
        """Return the library's own object on it."""

    def _new_plan(self, libraries: Libraries) -> Plan:
        plan = Plan(self, self._live().context, libraries)
        # a view that the stream may not hold is made anew for each scope, and so is the plan
        if all(mover.name in self._views for mover in plan.movers):
            self._plans = {**self._plans, libraries: plan}
        return plan

    def __enter__(
        self,
        key: object = None,
        libraries: Libraries = None,
        ordered: bool = False,  # noqa: FBT001, FBT002 - a special method takes no names
    ) -> Self:
        """Make this the current stream of every loaded library, as ``streamkit.use``.

        ``use`` enters it under a key of its own. If a library refuses the stream, everything is
        put back and its error raised.
        """
        queue = self._queue
        if queue is None or queue.thread is not None:
            queue = self._live()
        plan = self._plans.get(libraries)
        if plan is None or plan.known is not _movers.movers():
            plan = self._new_plan(libraries)
        scopes = stack.scopes
        if scopes and scopes[-1].stream is self and scopes[-1].plan is plan and plan.is_there():
            if key is None and scopes[-1].key is self:
                scopes[-1].depth += 1
            else:
                scopes.append(NestedScope(self, self if key is None else key, plan))
            return self
        is_here = _library.cu.cuCtxGetCurrent() == plan.here
        scope = CudaScope()
        scope.stream, scope.key, scope.plan = self, self if key is None else key, plan
        scope.previous = plan.context if is_here else _driver.current_context()
        scope.depth, scope.ordered = 0, None
        tokens = scope.tokens = []
        try:
            if not is_here:
                _driver.set_context(plan.context)
            if ordered:
                scope.order_after(queue)
            for enter in plan.enters:
                tokens.append(enter())  # noqa: PERF401 - known one by one, should the next fail
            scopes.append(scope)
        except BaseException as error:
            _undo(scope, error)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Restore what ``__enter__`` changed."""
        scopes = stack.scopes
        if scopes and scopes[-1].key is self:
            lost = leave_innermost(scopes)
            if lost:
                raise _refusals.not_restored(lost)
        else:
            leave_out_of_order(scopes, self)


def _undo(scope: CudaScope, error: BaseException) -> None:
    """Put back what a scope that could not be entered has moved so far."""
    if scope in stack.scopes:
        stack.scopes.remove(scope)
    for lost in scope.leave() or ():
        error.add_note(f"and what could not be restored after that: {lost}")


class CudaScope:
    """One stream made current in the loaded libraries of this thread."""

    __slots__ = ("depth", "key", "ordered", "plan", "previous", "stream", "tokens")

    stream: Scoped
    key: object
    plan: Plan
    depth: int  # how many scopes of the same key are open directly inside
    previous: int  # the context
    tokens: list[Any]  # what undoes each library's move
    ordered: tuple[Queue, list[Queue]] | None  # this queue, and those to wait for it at the end

    def order_after(self, queue: Queue) -> None:
        """Let the queue wait for each library's previous stream, and those for it at the end."""
        before: list[Queue] = []
        self.ordered = queue, before
        for mover in self.plan.movers:
            native = mover.current(queue.device or 0)
            found, adapter = _registry.extract(native)
            previous = _identity.identify(found, adapter, native)
            if not any(_identity.same(previous, other) for other in (queue, *before)):
                _order.wait_queue(queue, previous)
                before.append(previous)

    def leave(self) -> list[str]:
        """Put the libraries, then the context, back, in reverse order; name what could not be."""
        lost: list[str] = []
        interrupt: BaseException | None = None
        plan, tokens, previous = self.plan, self.tokens, self.previous
        try:
            if _library.cu.cuCtxGetCurrent() != plan.here:
                _driver.set_context(plan.context)  # the body may have changed the device
        except errors.StreamKitError as error:
            lost.append(f"the device of {self.stream!r} ({error})")
        for leave in plan.leaves[len(plan.leaves) - len(tokens) :]:  # of those that were entered
            try:
                leave(tokens.pop())
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = interrupt or (None if isinstance(error, Exception) else error)
                name = plan.movers[len(tokens)].name
                lost.append(f"{name} ({type(error).__name__}: {error})")
        if self.ordered is not None:
            lost += self._hold_others(*self.ordered)
        try:
            if previous != plan.context or not plan.keeps_device:
                _driver.set_context(previous)
        except errors.StreamKitError as error:
            lost.append(f"the device before {self.stream!r} ({error})")
        if interrupt is not None:
            raise interrupt
        return lost

    def _hold_others(self, queue: Queue, others: list[Queue]) -> list[str]:
        lost: list[str] = []
        for other in others:
            try:
                _order.wait_queue(other, queue)
            except Exception as error:  # noqa: BLE001 - the others must wait all the same
                lost.append(f"the order after {self.stream!r} ({error})")
        return lost


class NestedScope:
    """A scope inside one of the same stream: everything stands there already."""

    __slots__ = ("depth", "key", "plan", "stream")

    def __init__(self, stream: Scoped, key: object, plan: Plan) -> None:
        self.stream = stream
        self.key = key
        self.plan = plan
        self.depth = 0  # as in CudaScope

    def leave(self) -> list[str]:
        """Put back what the body moved: to this very stream, where the outer scope has it."""
        return self.plan.stay()
