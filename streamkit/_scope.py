"""The scope: one stream current in every loaded library, exactly restored.

The open scopes of a thread are a stack in that thread; nothing is kept on the stream, so one
stream can be entered in many places at once. A scope adds no wait unless it is ordered.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from streamkit import _driver, _identity, _order, _registry, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from streamkit._queue import Queue
    from streamkit.protocols import CurrentStream


class OpenScope(Protocol):
    """What a thread's stack holds: the scope of a CUDA stream or of a host stream."""

    stream: Any
    key: object

    @abstractmethod
    def leave(self) -> list[str]:
        """Restore everything, and name what could not be."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[OpenScope] = []


_stack = _Stack()


def innermost() -> Any:
    """Return the stream of this thread's innermost scope, or None."""
    return _stack.scopes[-1].stream if _stack.scopes else None


def push(scope: OpenScope) -> None:
    """Note an entered scope as this thread's innermost."""
    _stack.scopes.append(scope)


def leave(key: object) -> None:
    """Leave the scope that was entered under ``key``, the innermost one if all is well.

    Scopes still open inside it are left first, innermost first, and ScopeError says so.
    """
    scopes = _stack.scopes
    depth = next((i for i in reversed(range(len(scopes))) if scopes[i].key is key), None)
    if depth is None:
        raise errors.left_out_of_order(
            f"the scope of {errors.describe(getattr(key, 'stream', key))} is not open in this "
            "thread: it was entered elsewhere, or an outer scope was left before it"
        )
    inner = [errors.describe(scope.stream) for scope in scopes[depth + 1 :]]
    lost: list[str] = []
    while len(scopes) > depth:
        lost += scopes.pop().leave()
    if inner:
        raise errors.left_out_of_order(
            f"a scope was left while scopes inside it were open, which ended too: "
            f"{', '.join(reversed(inner))}",
            lost,
        )
    if lost:
        raise errors.not_restored(lost)


class CudaScope:
    """One stream made current in the loaded libraries of this thread."""

    __slots__ = ("_context", "_entered", "_ordered", "_previous_context", "_queue", "key", "stream")

    def __init__(self, stream: Any, queue: Queue, key: object) -> None:
        self.stream, self.key, self._queue = stream, key, queue
        self._context = queue.context
        self._previous_context = 0
        self._entered: list[tuple[str, CurrentStream, Any]] = []
        self._ordered: list[Queue] = []

    def enter(
        self, to: Callable[[str], Any], libraries: Collection[str] | None, *, ordered: bool
    ) -> None:
        """Move the libraries; if one refuses, put everything back and raise."""
        self._previous_context = _driver.current_context()
        if self._previous_context != self._context:
            _driver.set_context(self._context)
        try:
            for name, adapter in _registry.with_current_stream():
                if libraries is not None and name not in libraries:
                    continue
                try:
                    previous = adapter.current(self._queue.device or 0)
                except errors.NoDeviceError:
                    continue  # a build of the library without CUDA has no stream to move
                view = to(name)
                if ordered:
                    self._order_after(previous)
                self._entered.append((name, adapter, adapter.enter(view)))
        except BaseException:
            self.leave()
            raise

    def _order_after(self, native: object) -> None:
        found, adapter = _registry.extract(native)
        previous = _identity.identify(found, adapter, native)
        if not any(_identity.same(previous, queue) for queue in (self._queue, *self._ordered)):
            _order.wait_queue(self._queue, previous)
            self._ordered.append(previous)

    def leave(self) -> list[str]:
        """Put the libraries, then the context, back, in reverse order."""
        lost: list[str] = []
        if _driver.current_context() != self._context:
            _driver.set_context(self._context)  # the body may have changed the device
        for name, adapter, token in reversed(self._entered):
            try:
                adapter.leave(token)
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{name} ({type(error).__name__}: {error})")
        for previous in reversed(self._ordered):
            try:
                _order.wait_queue(previous, self._queue)
            except errors.StreamKitError as error:
                lost.append(f"the order after {errors.describe(self.stream)} ({error})")
        if _driver.current_context() != self._previous_context:
            _driver.set_context(self._previous_context)
        return lost
