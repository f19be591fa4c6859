"""What sets calls apart beside arguments: the current device, libraries' settings, weights."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit._cuda import driver
from streamkit._queues import loaded_libraries

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from streamkit._streams.stream import CudaStream

_Libraries: TypeAlias = "tuple[tuple[str, int | None, tuple[Hashable, ...]], ...]"
Settings: TypeAlias = "tuple[int, _Libraries, tuple[int, ...]]"
"""The current device; each library's name, its own current device, and its settings; addresses."""


def read(target: CudaStream[Any] | None, models: Iterable[object] = ()) -> Settings:
    """Return the settings of this thread, for a call on a stream, or on no named stream.

    The weights of those among ``models`` count that are models.
    """
    device = driver.current_device() if target is None else target.device_id
    values = [
        (
            library.name,
            None if library.device is None else library.device.current(),
            () if library.settings is None else library.settings.read(),
        )
        for library in loaded_libraries.libraries()
        if library.settings is not None or library.device is not None
    ]
    return device, tuple(values), tuple(_addresses(models)) if models else ()


def _addresses(models: Iterable[object]) -> Iterator[int]:
    for library in loaded_libraries.libraries():
        if library.settings is not None and library.settings.weights_of is not None:
            for model in models:
                yield from library.settings.weights_of(model) or ()


def models_of(fn: Any) -> Iterator[object]:
    """Yield what can be a model: a function, its instance, and the variables that it names."""
    yield from (fn, getattr(fn, "__self__", None))
    plain = getattr(fn, "__func__", fn)
    if isinstance(plain, types.FunctionType):
        yield from map(plain.__globals__.get, plain.__code__.co_names)
        for cell in plain.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable without a value
                yield cell.cell_contents


def by_name(settings: Settings) -> dict[str, str]:
    """Return the value of each setting in words, by the name of the setting."""
    device, libraries, weights = settings
    names = {
        library.name: library.settings.names
        for library in loaded_libraries.libraries()
        if library.settings is not None
    }
    found = {"current device": f"cuda:{device}"}
    for library, own, values in libraries:
        if own is not None:
            found[f"{library}'s own device"] = f"cuda:{own}"
        for name, value in zip(names.get(library, ()), values, strict=True):
            found[f"{name} of {library}"] = _words(value)
    for number, address in enumerate(weights):
        found[f"address of weight {number}"] = f"{address:#x}"
    return found


def _words(value: object) -> str:
    if value is None or value == () or isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_words, value))
    return str(value)
