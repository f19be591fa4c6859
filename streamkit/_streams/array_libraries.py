"""Whose array an object is: where it lies, on which stream its library works, who can lend it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._base import messages
from streamkit._queues import registry
from streamkit.protocols import Arrays, CountsHolders, CurrentStream, KnowsLoans, RecordsStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ON_HOST = 1, 3
"""DLPack's device types of host memory, the second of pinned memory."""


class ArrayLibrary(NamedTuple):
    """What StreamKit calls of an array's library, looked up once for each type of array."""

    name: str
    device_of: Callable[[Any], int | None]
    lend: Callable[[Any, object], Any]
    record_stream: Callable[[Any, Any], bool] | None
    counts: CountsHolders | None
    lent_by: Callable[[Any], Any] | None
    current: Callable[[int], Any] | None
    """Its current stream of a device, or the handle of that; None if it has none."""


_types: dict[type, ArrayLibrary] = {}


def place_of(array: object) -> tuple[ArrayLibrary | None, int | None]:
    """Return the array's library, if any, and its CUDA device, None on the host.

    TypeError if it is no array that can be handed over.
    """
    kind = type(array)
    known = _types.get(kind)
    for library in _libraries(kind) if known is None else (known,):
        try:
            device = library.device_of(array)
        except TypeError:  # not its array
            continue
        _types[kind] = library
        return library, device
    try:
        place, _ = array.__dlpack_device__()  # type: ignore[attr-defined]
    except Exception as error:  # it has none, it is a class, or it knows no such device
        raise messages.not_an_array(array) from error
    if place not in ON_HOST:
        raise messages.not_an_array(array)
    return None, None


def _libraries(kind: type) -> Iterator[ArrayLibrary]:
    """Yield the libraries with arrays that may have made this type."""
    served = False
    for adapter in registry.candidates(kind):
        served = True
        if isinstance(adapter, Arrays):
            yield ArrayLibrary(
                adapter.name,
                adapter.array_device,
                adapter.lend,
                adapter.record_stream if isinstance(adapter, RecordsStreams) else None,
                adapter if isinstance(adapter, CountsHolders) else None,
                adapter.lent_by if isinstance(adapter, KnowsLoans) else None,
                adapter.current if isinstance(adapter, CurrentStream) else None,
            )
    if not served and hasattr(kind, "__dlpack_c_exchange_api__"):
        offered = importlib.import_module("streamkit.backends._exchange").exchange_of(kind)
        if offered is not None:
            of = kind.__module__.partition(".")[0]
            yield ArrayLibrary(
                of,
                offered.array_device,
                offered.lend,
                None,
                None,
                offered.lent_by,
                offered.current,
            )
