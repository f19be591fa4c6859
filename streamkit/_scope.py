"""The scope: one stream current in every loaded library, exactly restored.

The open scopes of a thread are a stack in that thread; nothing is kept on the stream, so one
stream can be entered in many places at once. A scope adds no wait unless it is ordered.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from streamkit import _driver, _identity, _library, _movers, _order, _registry, errors

if TYPE_CHECKING:
    from typing import Self

    from streamkit._queue import Queue

Libraries: TypeAlias = "frozenset[str] | None"  # those to move; None for all


class OpenScope(Protocol):
    """What a thread's stack holds: the scope of a CUDA stream or of a host stream."""

    stream: Any
    key: object

    @abstractmethod
    def leave(self) -> list[str] | None:
        """Restore everything, and name what could not be."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Any] = []  # OpenScope


_stack = _Stack()


def innermost() -> Any:
    """Return the stream of this thread's innermost scope, or None."""
    return _stack.scopes[-1].stream if _stack.scopes else None


def holds(stream: object) -> bool:
    """Whether this thread has a scope of the stream open."""
    return any(scope.stream is stream for scope in _stack.scopes)


def push(scope: OpenScope) -> None:
    """Note an entered scope as this thread's innermost."""
    _stack.scopes.append(scope)


def leave(key: object) -> None:
    """Leave the scope that was entered under ``key``, the innermost one if all is well.

    Scopes still open inside it are left first, innermost first, and ScopeError says so.
    """
    scopes = _stack.scopes
    if scopes and scopes[-1].key is key:
        lost = scopes.pop().leave()
        if lost:
            raise errors.not_restored(lost)
    else:
        _leave_out_of_order(scopes, key)


def _leave_out_of_order(scopes: list[Any], key: object) -> NoReturn:
    depth = next((i for i in reversed(range(len(scopes))) if scopes[i].key is key), None)
    if depth is None:
        raise errors.left_out_of_order(
            f"the scope of {errors.describe(getattr(key, 'stream', key))} is not open in this "
            "thread: it was entered elsewhere, or an outer scope was left before it"
        )
    inner = [errors.describe(scope.stream) for scope in scopes[depth + 1 :]]
    lost: list[str] = []
    while len(scopes) > depth + 1:
        lost += scopes.pop().leave() or []
    if getattr(scopes[depth], "depth", 0):
        scopes[depth].depth -= 1
        lost += scopes[depth].plan.stay() or []
    else:
        lost += scopes.pop().leave() or []
    raise errors.left_out_of_order(
        f"a scope was left while scopes inside it were open, which ended too: "
        f"{', '.join(reversed(inner))}",
        lost,
    )


class Plan:
    """What a scope of one stream calls, prepared once: each library's ways in and out."""

    def __init__(self, target: Scoped, context: int, libraries: Libraries) -> None:
        self.context = context
        self.here = _driver.context_answer(context)
        self.known = _movers.movers()
        self.movers = [m for m in self.known if libraries is None or m.name in libraries]
        ways = [mover.bind(target.to(mover.name)) for mover in self.movers]
        self.enters = [way.enter for way in ways]
        self.leaves = [way.leave for way in ways]
        self.looks = [way.is_current for way in ways if way.is_current is not None]
        self.back = [way.set_current for way in ways if way.set_current is not None]
        self.can_nest = libraries is None and len(self.looks) == len(self.back) == len(ways)
        self.keeps_device = all(way.keeps_device for way in ways)

    def is_whole(self) -> bool:
        """Whether no library has been loaded since."""
        return self.known is (_movers.movers() if _movers.waiting else _movers.found)

    def is_there(self) -> bool:
        """Whether every library, and the context, is where a scope puts it."""
        for look in self.looks:
            if not look():
                return False
        return bool(_library.cu.cuCtxGetCurrent() == self.here)

    def stay(self) -> list[str] | None:
        """Put every library, and the context, back there if they are not; name what could not."""
        if self.is_there():
            return None
        _driver.set_context(self.context)
        lost: list[str] = []
        for mover, set_current in zip(self.movers, self.back, strict=True):
            try:
                set_current()
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{mover.name} ({type(error).__name__}: {error})")
        return lost


class Scoped:
    """A CUDA stream as a scope enters it. Few calls: it is entered in inner loops."""

    _queue: Queue | None
    _plans: dict[Libraries, Plan] = {}  # noqa: RUF012 - replaced, never changed

    @abstractmethod
    def _live(self) -> Queue:
        """Return its queue; raises if it is closed, or another thread's."""

    @abstractmethod
    def to(self, library: str) -> Any:
        """Return the library's own object on it."""

    def _new_plan(self, libraries: Libraries) -> Plan:
        plan = Plan(self, self._live().context, libraries)
        self._plans = {**self._plans, libraries: plan}
        return plan

    def __enter__(self) -> Self:
        """Make this the current stream of every loaded library, as ``streamkit.use``."""
        scopes = _stack.scopes
        if scopes:
            scope = scopes[-1]
            if scope.key is self and self._queue is not None:
                plan = scope.plan
                if plan.can_nest and plan.is_whole() and plan.is_there():
                    scope.depth += 1
                    return self
        enter(self, self)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Restore what ``__enter__`` changed."""
        scopes = _stack.scopes
        if not scopes or scopes[-1].key is not self:
            _leave_out_of_order(scopes, self)
        scope = scopes[-1]
        if scope.depth:
            scope.depth -= 1
            lost = scope.plan.stay()
        else:
            scopes.pop()
            lost = scope.leave()
        if lost:
            raise errors.not_restored(lost)


def enter(
    target: Scoped, key: object, libraries: Libraries = None, *, ordered: bool = False
) -> None:
    """Open a scope of this thread on a CUDA stream, under ``key``, which must leave it.

    If a library refuses the stream, everything is put back and its error raised.
    """
    queue = target._queue  # noqa: SLF001 - next door
    if queue is None or queue.thread is not None:
        queue = target._live()  # noqa: SLF001 - the same
    plan = target._plans.get(libraries)  # noqa: SLF001 - the same
    if plan is None or not plan.is_whole():
        plan = target._new_plan(libraries)  # noqa: SLF001 - the same
    scopes = _stack.scopes
    if scopes:
        outer = scopes[-1]
        if outer.stream is target and outer.plan is plan and plan.can_nest and plan.is_there():
            nested = NestedScope()
            nested.stream, nested.key, nested.plan, nested.depth = target, key, plan, 0
            scopes.append(nested)
            return
    scope = CudaScope()
    scope.stream, scope.key, scope.plan, scope.depth = target, key, plan, 0
    scope.previous, scope.ordered = plan.context, None
    tokens = scope.tokens = []
    try:
        if _library.cu.cuCtxGetCurrent() != plan.here:
            scope.previous = _driver.current_context()
            _driver.set_context(plan.context)
        if ordered:
            scope.order_after(queue)
        for enter_library in plan.enters:
            tokens.append(enter_library())  # noqa: PERF401 - known one by one, should the next fail
        scopes.append(scope)
    except BaseException as error:
        _undo(scope, error)
        raise


def _undo(scope: CudaScope, error: BaseException) -> None:
    """Put back what a scope that could not be entered has moved so far."""
    if scope in _stack.scopes:
        _stack.scopes.remove(scope)
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
        while tokens:
            token = tokens.pop()
            try:
                plan.leaves[len(tokens)](token)
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = interrupt or (None if isinstance(error, Exception) else error)
                name = plan.movers[len(tokens)].name
                lost.append(f"{name} ({type(error).__name__}: {error})")
        if self.ordered is not None:
            lost += self._hold_others(*self.ordered)
        if previous != plan.context or not plan.keeps_device:
            _driver.set_context(previous)
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

    stream: Scoped
    key: object
    plan: Plan
    depth: int  # as in CudaScope

    def leave(self) -> list[str] | None:
        """Put back what the body moved: to this very stream, where the outer scope has it."""
        return self.plan.stay()
