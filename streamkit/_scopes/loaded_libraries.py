"""The loaded libraries that have a current stream: those that a scope moves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._base.locks import new_lock
from streamkit._cuda import driver
from streamkit._queues import identity, registry
from streamkit.protocols import Binding, BindsCurrent, CurrentStream, TellsContext, TracksDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamkit._base.queue import QueueRecord
    from streamkit.protocols import Adapter


class LoadedLibrary(NamedTuple):
    """What a scope needs of one library, looked up once."""

    name: str
    current: Callable[[int], Any]
    bind: Callable[[Any], Binding]
    context: Callable[[], int] | None
    """The current context, where the library tells it cheaply."""
    device: TracksDevice | None
    """The adapter, if the library keeps a current device of its own and there are several."""


final: tuple[LoadedLibrary, ...] | None = None
"""What ``libraries`` returns from now on; None while another library could still be loaded."""

_found: tuple[LoadedLibrary, ...] = ()
_missing: Mapping[str, Callable[[], Adapter]] | None = None
"""What loads the adapter of each library not loaded yet, by module; None before the first look."""
_lock = new_lock()


def libraries() -> tuple[LoadedLibrary, ...]:
    """Return the loaded libraries that have a current stream, in table order.

    A library whose build or driver has no CUDA has none. Asking initialises a library that is
    imported but has not touched CUDA.
    """
    if _missing is None:
        _look_again()
        return _found
    for module in _missing:
        if module in sys.modules and registry.is_loaded(module):
            _look_again()
            break
    return _found


def found_so_far() -> tuple[LoadedLibrary, ...]:
    """Return what ``libraries`` returned last. It loads nothing, so destructors may call it."""
    return _found


def _look_again() -> None:
    global _found, _missing, final  # noqa: PLW0603 - one table for the process
    with _lock:
        missing = registry.loaders_with_current() if _missing is None else dict(_missing)
        found = list(_found)
        for module in [module for module in missing if registry.is_loaded(module)]:
            adapter = missing.pop(module)()
            if isinstance(adapter, CurrentStream) and _has_cuda(adapter):
                context = adapter.current_context if isinstance(adapter, TellsContext) else None
                several = driver.device_count() > 1
                device = adapter if several and isinstance(adapter, TracksDevice) else None
                bind = _bind(adapter)
                found.append(LoadedLibrary(adapter.name, adapter.current, bind, context, device))
        found.sort(key=lambda library: registry.rank(library.name))
        _found, _missing = tuple(found), missing
        final = None if missing else _found


def _bind(adapter: CurrentStream) -> Callable[[Any], Binding]:
    if isinstance(adapter, BindsCurrent):
        return adapter.bind

    def bind(stream: Any) -> Binding:
        def enter(token: list[Any]) -> None:
            token += map(adapter.enter, (stream,))  # no call here, so no interrupt before the note

        def leave(token: list[Any]) -> None:
            if token:
                adapter.leave(token[0])
                del token[0]

        def set_current() -> None:
            adapter.enter(stream)

        # It does not know what is current, so it is entered inside a scope of the same stream too.
        return Binding(list, enter, leave, lambda: False, set_current, keeps_device=False)

    return bind


def _has_cuda(adapter: CurrentStream) -> bool:
    device = driver.current_device()
    try:
        with driver.in_context(driver.primary_context(device)):
            adapter.current(device)
    except errors.NoDeviceError:
        return False
    return True


def other_queues(
    queue: QueueRecord, libraries: Iterable[LoadedLibrary]
) -> list[tuple[QueueRecord, Any]]:
    """Return the libraries' other current queues on this queue's device, each once.

    Each comes with the library's own stream, which keeps it alive. The context of this queue must
    be current.
    """
    found: list[tuple[QueueRecord, Any]] = [(queue, None)]
    for library in libraries:
        native = library.current(queue.device)
        other = identity.queue_of(native)
        for known, _ in found:
            if other is known or (other.handle == known.handle and identity.same(other, known)):
                break
        else:
            found.append((other, native))
    return found[1:]
