"""Which loaded libraries have a current stream to move."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import _driver, _registry, errors
from streamkit._locks import new_lock
from streamkit.protocols import Binding, BindsCurrent, CurrentStream

if TYPE_CHECKING:
    from collections.abc import Callable

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
        if module in sys.modules and _registry.is_loaded(module):
            _look_again()
            break
    return _found


def found_so_far() -> tuple[Mover, ...]:
    """Return those that ``movers`` returned last, for destructors, in which nothing is loaded."""
    return _found


@functools.cache
def _watched() -> dict[str, Callable[[], Adapter]]:
    """Return the modules not loaded yet, each with what loads its adapter."""
    return _registry.loaders_with_current()


def _look_again() -> None:
    global _found, _waiting, settled  # noqa: PLW0603 - one table for the process
    with _lock:
        watched = _watched()
        for module in [module for module in watched if _registry.is_loaded(module)]:
            adapter = watched[module]()
            if isinstance(adapter, CurrentStream) and _has_cuda(adapter):
                mover = Mover(
                    adapter.name,
                    adapter.current,
                    _bind(adapter),
                    getattr(adapter, "current_context", None),
                )
                _found = tuple(
                    sorted((*_found, mover), key=lambda mover: _registry.rank(mover.name))
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
    device = _driver.current_device()
    try:
        with _driver.in_context(_driver.primary_context(device)):
            adapter.current(device)
    except errors.NoDeviceError:
        return False
    return True
