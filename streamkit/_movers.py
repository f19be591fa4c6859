"""Which loaded libraries have a current stream to move."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import _driver, _registry, errors
from streamkit._locks import new_lock
from streamkit.protocols import BindsCurrent, CurrentStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Adapter


class Mover(NamedTuple):
    """What a scope needs of one library, looked up once."""

    name: str
    current: Callable[[int], Any]
    bind: Callable[[Any], Ways]


class Ways(NamedTuple):
    """How scopes move one library to one of its streams and back: a ``Binding``, if it has them."""

    enter: Callable[[], Any]
    leave: Callable[[Any], None]
    is_current: Callable[[], bool] | None = None
    set_current: Callable[[], None] | None = None
    keeps_device: bool = False


found: tuple[Mover, ...] = ()
"""What ``movers`` returned last."""
waiting: tuple[str, ...] | None = None
"""The modules to watch for, once that is known; () if ``found`` will not change any more."""
_lock = new_lock()


def movers() -> tuple[Mover, ...]:
    """Return the loaded libraries that have a current stream, in table order.

    A library whose build or driver has no CUDA has none to move. Asking initialises a library
    that is imported but has not touched CUDA.
    """
    if waiting is None:
        _look_again()
        return found
    for module in waiting:
        if module in sys.modules and _registry.is_loaded(module):
            _look_again()
            break
    return found


@functools.cache
def _watched() -> dict[str, Callable[[], Adapter]]:
    """Return the modules not loaded yet, each with what loads its adapter."""
    return _registry.loaders_with_current()


def _look_again() -> None:
    global found, waiting  # noqa: PLW0603 - one table for the process
    with _lock:
        watched = _watched()
        for module in [module for module in watched if _registry.is_loaded(module)]:
            adapter = watched[module]()
            if isinstance(adapter, CurrentStream) and _has_cuda(adapter):
                mover = Mover(adapter.name, adapter.current, _bind(adapter))
                found = tuple(sorted((*found, mover), key=lambda mover: _registry.rank(mover.name)))
            del watched[module]
        waiting = tuple(watched)


def _bind(adapter: CurrentStream) -> Callable[[Any], Ways]:
    if isinstance(adapter, BindsCurrent):
        bind = adapter.bind
        return lambda stream: Ways(*bind(stream))
    enter, leave = adapter.enter, adapter.leave
    return lambda stream: Ways(functools.partial(enter, stream), leave)


def _has_cuda(adapter: CurrentStream) -> bool:
    device = _driver.current_device()
    try:
        with _driver.in_context(_driver.primary_context(device)):
            adapter.current(device)
    except errors.NoDeviceError:
        return False
    return True
