"""The scope: one stream current in every loaded library, exactly restored.

The open scopes of a thread are a stack in that thread; nothing is kept on the stream, so one
stream can be entered in many places at once. A scope adds no wait unless it is ordered.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from streamkit import _driver, _identity, _movers, _order, _registry, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from streamkit._movers import Mover
    from streamkit._queue import Queue


class OpenScope(Protocol):
    """What a thread's stack holds: the scope of a CUDA stream or of a host stream."""

    stream: Any
    key: object

    @abstractmethod
    def leave(self) -> list[str] | None:
        """Restore everything, and name what could not be."""


class Target(Protocol):
    """What can be entered: a CUDA stream."""

    _views: dict[str, Any]

    @abstractmethod
    def _live(self) -> Queue:
        """Return its queue; raises if it is closed, or another thread's."""

    @abstractmethod
    def to(self, library: str) -> Any:
        """Return the library's own object on it, which ``_views`` then has."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[OpenScope] = []


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


def _leave_out_of_order(scopes: list[OpenScope], key: object) -> None:
    depth = next((i for i in reversed(range(len(scopes))) if scopes[i].key is key), None)
    if depth is None:
        raise errors.left_out_of_order(
            f"the scope of {errors.describe(getattr(key, 'stream', key))} is not open in this "
            "thread: it was entered elsewhere, or an outer scope was left before it"
        )
    inner = [errors.describe(scope.stream) for scope in scopes[depth + 1 :]]
    lost: list[str] = []
    while len(scopes) > depth:
        lost += scopes.pop().leave() or []
    raise errors.left_out_of_order(
        f"a scope was left while scopes inside it were open, which ended too: "
        f"{', '.join(reversed(inner))}",
        lost,
    )


def enter(
    target: Target, key: object, libraries: Collection[str] | None = None, *, ordered: bool = False
) -> None:
    """Open a scope of this thread on a CUDA stream, under ``key``, which must leave it.

    If a library refuses the stream, everything is put back and its error raised.
    """
    queue, views = target._live(), target._views  # noqa: SLF001 - what a target is
    context, scopes, movers = queue.context, _stack.scopes, _movers.movers()
    if scopes and libraries is None and scopes[-1].stream is target:
        nested = NestedScope(target, key, context, views, movers)
        if nested.stands():
            scopes.append(nested)
            return
    previous = _driver.current_context()
    scope = CudaScope(target, key, context, previous)
    entered = scope.entered
    try:
        if previous != context:
            _driver.set_context(context)
        for name, current, enter_library, leave_library, _ in movers:
            if libraries is not None and name not in libraries:
                continue
            view = views.get(name)
            if view is None:
                view = target.to(name)
            if ordered:
                scope.order_after(queue, current(queue.device or 0))
            entered.append((name, leave_library, enter_library(view)))
        scopes.append(scope)
    except BaseException:
        if scopes and scopes[-1] is scope:
            scopes.pop()
        scope.leave()
        raise


class CudaScope:
    """One stream made current in the loaded libraries of this thread."""

    __slots__ = ("_context", "_ordered", "_previous", "entered", "key", "stream")

    def __init__(self, stream: Target, key: object, context: int, previous: int) -> None:
        self.stream, self.key = stream, key
        self._context, self._previous = context, previous
        self.entered: list[tuple[str, Callable[[Any], None], Any]] = []  # name, leave, its token
        self._ordered: tuple[Queue, list[Queue]] | None = None

    def order_after(self, queue: Queue, native: object) -> None:
        """Let the queue wait for a library's previous stream, and that one for it at the end."""
        found, adapter = _registry.extract(native)
        previous = _identity.identify(found, adapter, native)
        self._ordered = self._ordered or (queue, [])
        before = self._ordered[1]
        if not any(_identity.same(previous, other) for other in (queue, *before)):
            _order.wait_queue(queue, previous)
            before.append(previous)

    def leave(self) -> list[str] | None:
        """Put the libraries, then the context, back, in reverse order."""
        lost: list[str] | None = None
        interrupt: BaseException | None = None
        context = self._context
        try:
            if _driver.current_context() != context:
                _driver.set_context(context)  # the body may have changed the device
        except errors.StreamKitError as error:
            lost = [f"the device of {self.stream!r} ({error})"]
        for name, leave_library, token in reversed(self.entered):
            try:
                leave_library(token)
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = interrupt or (None if isinstance(error, Exception) else error)
                lost = [*(lost or ()), f"{name} ({type(error).__name__}: {error})"]
        if self._ordered is not None:
            queue, before = self._ordered
            for previous in before:
                try:
                    _order.wait_queue(previous, queue)
                except Exception as error:  # noqa: BLE001 - the same
                    lost = [*(lost or ()), f"the order after {self.stream!r} ({error})"]
        if _driver.current_context() != self._previous:  # a library may have moved it, too
            _driver.set_context(self._previous)
        if interrupt is not None:
            raise interrupt
        return lost


class NestedScope:
    """A scope inside one of the same stream: everything stands there already."""

    __slots__ = ("_context", "_movers", "_views", "key", "stream")

    def __init__(
        self,
        stream: Target,
        key: object,
        context: int,
        views: dict[str, Any],
        movers: tuple[Mover, ...],
    ) -> None:
        self.stream, self.key = stream, key
        self._context, self._views, self._movers = context, views, movers

    def stands(self) -> bool:
        """Whether every library, and the context, is where an entered scope would put it."""
        views = self._views
        for name, _, _, _, nested in self._movers:
            view = views.get(name)
            if view is None or nested is None or not nested.is_current(view):
                return False
        return _driver.current_context() == self._context

    def leave(self) -> list[str] | None:
        """Put back what the body moved: to this very stream, where the outer scope has it."""
        if self.stands():
            return None
        _driver.set_context(self._context)
        lost: list[str] = []
        for name, _, _, _, nested in self._movers:
            assert nested is not None  # noqa: S101 - for the type checker: it stood
            try:
                nested.set_current(self._views[name])
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{name} ({type(error).__name__}: {error})")
        return lost
