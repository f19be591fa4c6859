"""The open scopes of each thread, innermost last.

No state is kept on the stream, so one stream can be entered in many places at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit._cuda import loader
from streamkit._support import messages
from streamkit.errors import ScopeError
from streamkit.protocols.queues import here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamkit.protocols.queues import OpenScopes

WRITTEN_OUT = 3
"""The number of libraries for which entering and leaving are written out."""
NESTED = -1
"""``open`` of a scope inside one of the same stream, where everything was current already."""


def of_thread() -> Iterator[Any]:
    """Yield the calling thread's scopes, of CUDA and of host streams, the innermost first.

    Each has its ``stream``, the ``key`` under which it is left, the scope around it (``outer``),
    what it calls (``plan``, of a CUDA stream), the number of libraries that are still to be left
    (``open``), and ``leave()``, which restores everything and names what could not be. A second
    call of that does what is left.
    """
    scope = here.scopes.innermost
    while scope is not None:
        yield scope
        scope = scope.outer


def innermost() -> Any:
    scope = here.scopes.innermost
    return None if scope is None else scope.stream


def innermost_on(*, host: bool) -> Any:
    """Return the stream of the innermost scope of a host stream, or of a CUDA stream."""
    streams = (scope.stream for scope in of_thread())
    return next((s for s in streams if s is not None and (s.device_id is None) is host), None)


def holds(stream: object) -> bool:
    return any(scope.stream is stream for scope in of_thread())


def leave(  # noqa: C901, PLR0912 - the calls of an inner loop, written out
    key: Any, _kind: object = None, error: Any = None, _trace: object = None
) -> None:
    """Leave the scope that was entered under ``key``, the innermost one if all is well.

    Restores what entering it changed. Scopes still open inside it are left first, innermost first,
    and ScopeError says so; or a note on ``error``, the exception that ends the body, which passes.
    """
    scopes = here.scopes
    scope = scopes.innermost
    if scope is None or scope.key is not key:
        messages.raise_or_note(_leave_out_of_order(scopes, key), error)
        return
    lost: Sequence[str] = ()
    plan = scope.plan
    if scope.open == WRITTEN_OUT:  # as ``scope.leave()``, whose call would cost as much as the rest
        try:
            try:
                is_here = not loader.is_forked and plan.ask_context() == plan.context
            except Exception:  # noqa: BLE001 - an error of a library, which cannot tell
                is_here = False
            if not is_here:
                lost = scope.set_context()
            if scope.before is not None:
                lost = scope.let_others_wait(lost)
            leave_one, leave_two, leave_three = plan.leaves
            one, two, three = scope.tokens
            leave_three(three)
            scope.open = 2
            leave_two(two)
            scope.open = 1
            leave_one(one)
            scope.open = 0
            if scope.previous is not None:
                lost = [*lost, *scope.put_device_back()]
            scopes.innermost = scope.outer
        except BaseException as failed:  # noqa: BLE001 - the others are restored all the same
            lost = [*lost, *_end_innermost(scopes, failed)]
    elif scope.open == NESTED:  # likewise
        try:
            if not plan.is_current():
                lost = plan.set_current()
        except BaseException:
            plan.set_current()
            raise
        finally:
            scopes.innermost = scope.outer
    else:
        lost = _end_innermost(scopes)
    if lost:
        text = f"the scope was left, but not everything is restored: {'; '.join(lost)}."
        messages.raise_or_note(ScopeError(text), error)


def _end_innermost(scopes: OpenScopes, failed: BaseException | None = None) -> list[str]:
    """Leave the innermost scope for good; name what could not be restored.

    ``failed`` is the error with which the last of its libraries could not be left.
    """
    scope = scopes.innermost
    try:
        lost: list[str] = scope.leave() if failed is None else scope.leave(failed)
    except BaseException:  # an interrupt: the rest is restored all the same
        scope.leave()
        raise
    finally:
        scopes.innermost = scope.outer
    return lost


def _leave_out_of_order(scopes: OpenScopes, key: object) -> ScopeError:
    """Leave a scope that is not the innermost, and the scopes inside it; return the error."""
    inner: list[Any] = []
    for scope in of_thread():
        if scope.key is key:
            break
        inner.append(scope)
    else:
        return _left_out_of_order(
            f"the scope of {messages.describe(getattr(key, 'stream', key))} is not open in this "
            "thread: it was entered elsewhere, or an outer scope was left before it"
        )
    names = [messages.describe(scope.stream or scope.key) for scope in inner]
    lost = [text for _ in (*inner, scope) for text in _end_innermost(scopes)]
    return _left_out_of_order(
        f"a scope was left while scopes inside it were open, which ended too: {', '.join(names)}",
        lost,
    )


def _left_out_of_order(what: str, lost: Sequence[str] = ()) -> ScopeError:
    text = (
        f"{what}. Scopes end in reverse order, in the thread and task that entered them; do not "
        "hold one across an await or a yield."
    )
    return ScopeError(text + (f" Not restored: {'; '.join(lost)}." if lost else ""))
