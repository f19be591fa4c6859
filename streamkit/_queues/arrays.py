"""The library of an array: its device, the current stream there, and functions that lend it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._queues import registry
from streamkit._support import messages
from streamkit.protocols import CurrentStream, Memory
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Adapter, Storage

ON_HOST = 1, 3
"""DLPack's device types of host memory, the second of pinned memory."""


class ArrayLibrary(NamedTuple):
    """The functions of an array's library that StreamKit calls, looked up once for each type."""

    name: str
    device_of: Callable[[Any], int | None]
    lend: Callable[[Any, object], Any]
    lent_by: Callable[[Any], Any] | None
    current: Callable[[int], Any] | None
    """The library's current stream of a device, or its handle; None for a library without one."""
    record_stream: Callable[[Any, Any], bool] | None = None
    storage_of: Callable[[Any], Storage] | None = None
    copies: Memory | None = None
    """The adapter, if a graph can copy the library's arrays."""


def _read_array(adapter: Adapter, array: Any) -> ArrayLibrary | None:
    if not isinstance(adapter, Memory):
        return None
    adapter.array_device(array)  # raises TypeError if the object is not an array of the library
    return ArrayLibrary(
        adapter.name,
        adapter.array_device,
        adapter.lend,
        offered(adapter, Memory.lent_by),
        adapter.current if isinstance(adapter, CurrentStream) else None,
        offered(adapter, Memory.record_stream),
        offered(adapter, Memory.storage_of),
        adapter if offered(adapter, Memory.array_layout) else None,
    )


ARRAYS = registry.Capability(_read_array)
"""All parts of StreamKit recognise an array by ``registry.find(obj, ARRAYS)``."""

_exchanges: dict[type, ArrayLibrary] = {}  # of types without an adapter that have DLPack's API


def place_of(array: object) -> tuple[ArrayLibrary | None, int | None]:
    """Return the array's library, if any, and its CUDA device, None on the host.

    TypeError if it is not an array that can be handed over.
    """
    kind = type(array)
    library = ARRAYS.types.get(kind) or _exchanges.get(kind) or _library_of(array)
    if library is not None:
        try:
            return library, library.device_of(array)
        except TypeError:  # an object of the type that is not an array of CUDA or of the host
            pass
    try:
        place, _ = array.__dlpack_device__()  # type: ignore[attr-defined]
    except Exception as error:  # no such method, a class, or an unknown device
        raise messages.not_an_array(array) from error
    if place not in ON_HOST:
        raise messages.not_an_array(array)
    return None, None


def _library_of(array: object) -> ArrayLibrary | None:
    """Return the library of an array, also of one that has no adapter."""
    kind = type(array)
    library = registry.find(array, ARRAYS)
    if library is not None or not hasattr(kind, "__dlpack_c_exchange_api__"):
        return library
    if any(True for _ in registry.candidates(kind)):
        return None
    api = importlib.import_module("streamkit.backends._managed_tensor").exchange_of(kind)
    if api is None:
        return None
    name = kind.__module__.partition(".")[0]
    library = ArrayLibrary(name, api.array_device, api.lend, api.lent_by, api.current)
    registry.remember(_exchanges, kind, library, "")
    return library
