"""Which loaded libraries have a current stream to move."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import _driver, _registry, errors
from streamkit.protocols import CurrentStream, NestedCurrent

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Adapter


class Mover(NamedTuple):
    """What a scope needs of one library, looked up once."""

    name: str
    current: Callable[[int], Any]
    enter: Callable[[Any], Any]
    leave: Callable[[Any], None]
    nested: NestedCurrent | None


_movers: tuple[Mover, ...] = ()
_waiting: tuple[str, ...] | None = None  # the modules to watch for, once that is known
_lock = threading.RLock()


def movers() -> tuple[Mover, ...]:
    """Return the loaded libraries that have a current stream, in table order.

    A library whose build or driver has no CUDA has none to move. Asking initialises a library
    that is imported but has not touched CUDA.
    """
    for module in _first_look() if _waiting is None else _waiting:
        if module in sys.modules and _registry.is_loaded(module):
            _look_again()
            break
    return _movers


def _first_look() -> tuple[str, ...]:
    """Return the modules to watch for."""
    global _waiting  # noqa: PLW0603 - one table for the process
    _waiting = tuple(_watched())
    return _waiting


@functools.cache
def _watched() -> dict[str, Callable[[], Adapter]]:
    """Return the modules not loaded yet, each with what loads its adapter."""
    return _registry.loaders_with_current()


def _look_again() -> None:
    global _movers, _waiting  # noqa: PLW0603 - one table for the process
    with _lock:
        watched = _watched()
        for module in [module for module in watched if _registry.is_loaded(module)]:
            adapter = watched[module]()
            name = adapter.name
            if isinstance(adapter, CurrentStream) and _has_cuda(adapter):
                mover = Mover(
                    name,
                    adapter.current,
                    adapter.enter,
                    adapter.leave,
                    adapter if isinstance(adapter, NestedCurrent) else None,
                )
                _movers = tuple(
                    sorted((*_movers, mover), key=lambda mover: _registry.rank(mover.name))
                )
            del watched[module]
            _waiting = tuple(watched)


def _has_cuda(adapter: CurrentStream) -> bool:
    device = _driver.current_device()
    try:
        with _driver.in_context(_driver.primary_context(device)):
            adapter.current(device)
    except errors.NoDeviceError:
        return False
    return True
