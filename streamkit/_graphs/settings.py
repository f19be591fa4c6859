"""The settings around a call that change its result: the current device, libraries' settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit._cuda import driver
from streamkit._queues import loaded_libraries

if TYPE_CHECKING:
    from collections.abc import Hashable

    from streamkit._streams.stream import CudaStream

Settings: TypeAlias = "tuple[int, tuple[tuple[str, int | None, tuple[Hashable, ...]], ...]]"
"""The current device; and each library's name, its own current device, and its settings."""


def read(target: CudaStream[Any] | None) -> Settings:
    """Return the settings of this thread, for a call on a stream, or on no named stream."""
    device = driver.current_device() if target is None else target.device_id
    return device, tuple(
        [
            (
                library.name,
                None if library.device is None else library.device.current(),
                () if library.settings is None else library.settings.read(),
            )
            for library in loaded_libraries.libraries()
            if library.settings is not None or library.device is not None
        ]
    )


def by_name(settings: Settings) -> dict[str, str]:
    """Return the value of each setting in words, by the name of the setting."""
    device, libraries = settings
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
    return found


def _words(value: object) -> str:
    if value is None or value == () or isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_words, value))
    return str(value)
