"""The loaded libraries that have a current stream: those that a scope moves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._cuda import driver
from streamkit._queues import identity, registry
from streamkit._support.locks import new_lock
from streamkit.protocols import Capture, CurrentStream
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamkit.protocols import Adapter, Binding, OwnDevice, Settings
    from streamkit.protocols.queues import QueueRecord


class LoadedLibrary(NamedTuple):
    """The functions of one library that a scope calls, looked up once."""

    name: str
    adapter: Adapter
    current: Callable[[int], Any]
    bind: Callable[[Any], Binding]
    context: Callable[[], int] | None
    """The current context, where the library tells it cheaply."""
    device: OwnDevice | None
    """What tells its own current device, where it keeps one and the machine has several."""
    settings: Settings | None
    """The settings of the library that change the results of its calls."""


_found: tuple[LoadedLibrary, ...] = ()
_missing: Mapping[str, Callable[[], Adapter | None]] | None = None
"""A function that loads each adapter whose library is not loaded, by module; None at first."""
_lock = new_lock()


def libraries() -> tuple[LoadedLibrary, ...]:
    """Return the loaded libraries that have a current stream, in table order.

    A library whose build or driver has no CUDA has none. Asking initialises a library that is
    imported but has not touched CUDA.
    """
    if _missing is None or (
        not sys.modules.keys().isdisjoint(_missing) and any(map(registry.is_loaded, _missing))
    ):
        _look_again()
    return _found


def not_loaded() -> tuple[str, ...]:
    """Return the modules of the libraries that are not loaded, and so not in ``libraries()``."""
    libraries()
    return tuple(_missing or ())


def found_so_far() -> tuple[LoadedLibrary, ...]:
    """Return the last result of ``libraries``, without loading any, so that destructors may."""
    return _found


def _look_again() -> None:
    global _found, _missing
    with _lock:
        missing = dict(registry.loaders_with_current() if _missing is None else _missing)
        found = list(_found)
        for module in [module for module in missing if registry.is_loaded(module)]:
            adapter = missing.pop(module)()
            if isinstance(adapter, CurrentStream) and _has_cuda(adapter):
                own_device = offered(adapter, CurrentStream.own_device)
                settings = offered(adapter, Capture.settings)
                found.append(
                    LoadedLibrary(
                        adapter.name,
                        adapter,
                        adapter.current,
                        adapter.bind,
                        offered(adapter, CurrentStream.current_context),
                        own_device() if own_device and driver.device_count() > 1 else None,
                        None if settings is None else settings(),
                    )
                )
        found.sort(key=lambda library: registry.rank(library.name))
        _found, _missing = tuple(found), missing


def _has_cuda(adapter: CurrentStream) -> bool:
    device = driver.current_device()
    if not driver.current_context():  # to ask must make none on a device that nobody uses
        device = min([*driver.device_of.values()], default=device)
    try:
        driver.call_in(driver.primary_context(device), adapter.current, device)
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
    found: list[tuple[QueueRecord, Any]] = []
    known = {queue.handle: queue}
    for library in libraries:
        native = library.current(queue.device)
        other = identity.queue_of(native, queue.context)
        one = known.get(other.handle)
        if one is not other and (one is None or not identity.same(one, other)):
            known[other.handle] = other
            found.append((other, native))
    return found
