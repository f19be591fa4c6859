"""Which loaded libraries have a current stream to move."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._base import messages
from streamkit._base.locks import new_lock
from streamkit._cuda import driver
from streamkit._queues import identity, ordering, registry
from streamkit.protocols import Binding, BindsCurrent, CurrentStream, TellsContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamkit._base.queue import Queue
    from streamkit.protocols import Adapter


class Mover(NamedTuple):
    """What a scope needs of one library, looked up once."""

    name: str
    current: Callable[[int], Any]
    bind: Callable[[Any], Binding]
    context: Callable[[], int] | None
    """The current context, where the library tells it cheaply."""


settled: tuple[Mover, ...] | None = None
"""What ``movers`` returns from now on, once there is no module left to watch for."""

_found: tuple[Mover, ...] = ()  # what ``movers`` returned last
_waiting: tuple[str, ...] | None = None  # modules to watch for, once known
_lock = new_lock()


def movers() -> tuple[Mover, ...]:
    """Return the loaded libraries that have a current stream, in table order.

    A library whose build or driver has no CUDA has none to move. Asking initialises a library
    that is imported but has not touched CUDA.
    """
    if _waiting is None:
        _look_again()
        return _found
    for module in _waiting:
        if module in sys.modules and registry.is_loaded(module):
            _look_again()
            break
    return _found


def found_so_far() -> tuple[Mover, ...]:
    """Return those that ``movers`` returned last, for destructors, in which nothing is loaded."""
    return _found


@functools.cache
def _watched() -> dict[str, Callable[[], Adapter]]:
    """Return the modules not loaded yet, each with what loads its adapter."""
    return registry.loaders_with_current()


def _look_again() -> None:
    global _found, _waiting, settled  # noqa: PLW0603 - one table for the process
    with _lock:
        watched = _watched()
        for module in [module for module in watched if registry.is_loaded(module)]:
            adapter = watched[module]()
            if isinstance(adapter, CurrentStream) and _has_cuda(adapter):
                mover = Mover(
                    adapter.name,
                    adapter.current,
                    _bind(adapter),
                    adapter.current_context if isinstance(adapter, TellsContext) else None,
                )
                _found = tuple(
                    sorted((*_found, mover), key=lambda mover: registry.rank(mover.name))
                )
            del watched[module]
        _waiting = tuple(watched)
        settled = None if watched else _found


def _bind(adapter: CurrentStream) -> Callable[[Any], Binding]:
    if isinstance(adapter, BindsCurrent):
        return adapter.bind

    def bind(stream: Any) -> Binding:
        enter = functools.partial(adapter.enter, stream)
        return Binding(enter, adapter.leave, _unknown, enter, keeps_device=False)

    return bind


def _unknown() -> bool:
    return False  # so its scopes are entered anew, also inside one of the same stream


def _has_cuda(adapter: CurrentStream) -> bool:
    device = driver.current_device()
    try:
        with driver.in_context(driver.primary_context(device)):
            adapter.current(device)
    except errors.NoDeviceError:
        return False
    return True


def others(queue: Queue, movers: Iterable[Mover]) -> list[Queue]:
    """Return each library's current queue on this one's device, once, but not this one.

    To be asked with this queue's context current.
    """
    found: list[Queue] = []
    for mover in movers:
        native = mover.current(queue.device or 0)
        extracted, adapter = registry.extract(native)
        other = identity.identify(extracted, adapter, native)
        if not any(identity.same(other, known) for known in (queue, *found)):
            found.append(other)
    return found


def to_wait_for(queue: Queue, others: Iterable[Queue]) -> list[Queue]:
    """Return those of the others that the queue can wait for now.

    An edge over the border of a capture would break it. So inside one, the queue's own or that of
    the first other that captures, only those count that take part: a queue outside forks from it.
    CaptureError if it is illegal to ask.
    """
    own = ordering.capture_of(queue)
    captures = [(other, ordering.capture_of(other)) for other in others]
    inside = own or next((capture for _, capture in captures if capture), None)
    for asked, capture in ((queue, own), *(() if inside else captures)):
        if capture == 0:
            raise _refused(asked)
    return [other for other, capture in captures if capture == inside]


def is_to_wait(other: Queue, queue: Queue) -> bool:
    """Whether the other can wait for the queue now, and be no fork that nobody joins."""
    captures = ordering.capture_of(other), ordering.capture_of(queue)
    if captures == (0, None):
        raise _refused(other)
    return captures[0] == captures[1]


def _refused(queue: Queue) -> Exception:
    return messages.illegal_in_capture("an ordered scope", queue, "end the capture first.")
