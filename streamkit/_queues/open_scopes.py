"""The open scopes of each thread, innermost last.

No state is kept on the stream, so one stream can be entered in many places at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from streamkit._support import messages
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Any] = []


stack = _Stack()
"""``stack.scopes`` are the calling thread's, the innermost last: of CUDA and of host streams.

Each has its ``stream``, the ``key`` under which it is left, what it calls (``plan``, of a CUDA
stream), how often it was entered ``again`` directly inside, where all was current already, and
``leave()``, which restores everything and names what could not be. A second call of that does what
is left.
"""


def innermost() -> Any:
    return stack.scopes[-1].stream if stack.scopes else None


def innermost_on(*, host: bool) -> Any:
    """Return the stream of the innermost scope of a host stream, or of a CUDA stream."""
    streams = (scope.stream for scope in reversed(stack.scopes))
    return next((s for s in streams if s is not None and (s.device_id is None) is host), None)


def holds(stream: object) -> bool:
    return any(scope.stream is stream for scope in stack.scopes)


def leave(key: Any, _kind: object = None, error: Any = None, _trace: object = None) -> None:
    """Leave the scope that was entered under ``key``, the innermost one if all is well.

    Restores what entering it changed. Scopes still open inside it are left first, innermost first,
    and ScopeError says so; or a note on ``error``, the exception that ends the body, which passes.
    """
    scopes = stack.scopes
    scope = scopes[-1] if scopes else None
    if scope is None or scope.key is not key:
        messages.raise_or_note(_leave_out_of_order(scopes, key), error)
        return
    if scope.again:
        scope.again -= 1
        lost = None if scope.plan.is_current() else scope.plan.set_current()
    else:
        try:  # as ``_end_innermost``, whose call would cost as much as the rest
            lost = scope.leave()
        except BaseException:
            scope.leave()
            raise
        finally:
            scopes.pop()
    if lost:
        text = f"the scope was left, but not everything is restored: {'; '.join(lost)}."
        messages.raise_or_note(ScopeError(text), error)


def _end_innermost(scopes: list[Any]) -> list[str]:
    """Leave the innermost scope for good; name what could not be restored."""
    scope = scopes[-1]
    try:
        lost: list[str] = scope.leave()
    except BaseException:  # an interrupt: the rest is restored all the same
        scope.leave()
        raise
    finally:
        scopes.pop()
    return lost


def _leave_out_of_order(scopes: list[Any], key: object) -> ScopeError:
    """Leave a scope that is not the innermost, and the scopes inside it; return the error."""
    index = next((i for i in reversed(range(len(scopes))) if scopes[i].key is key), None)
    if index is None:
        return _left_out_of_order(
            f"the scope of {messages.describe(getattr(key, 'stream', key))} is not open in this "
            "thread: it was entered elsewhere, or an outer scope was left before it"
        )
    inner = [messages.describe(scope.stream or scope.key) for scope in scopes[index + 1 :]]
    lost: list[str] = []
    while len(scopes) > index + 1:
        lost += _end_innermost(scopes)
    scope = scopes[-1]
    if scope.again:
        scope.again -= 1
        lost += scope.plan.set_current()
    else:
        lost += _end_innermost(scopes)
    return _left_out_of_order(
        f"a scope was left while scopes inside it were open, which ended too: "
        f"{', '.join(reversed(inner))}",
        lost,
    )


def _left_out_of_order(what: str, lost: Sequence[str] = ()) -> ScopeError:
    text = (
        f"{what}. Scopes end in reverse order, in the thread and task that entered them; do not "
        "hold one across an await or a yield."
    )
    return ScopeError(text + (f" Not restored: {'; '.join(lost)}." if lost else ""))
