"""What StreamKit cannot do for Warp's memory, and says once."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import warp

_managed: Any = getattr(warp, "CudaManagedAllocator", ())  # frees by cudaFree, which waits
_warned: dict[int, Any] = {}  # by the allocators' ids: references to them, or themselves


@functools.cache
def warn_of_version() -> None:
    """Warn of a Warp whose native functions are not those that are known."""
    _warn(f"StreamKit does not know how Warp {warp.__version__} frees memory")


def warn_of_allocator(device: Any) -> None:
    """Warn, once, of an allocator that somebody set, and that may free at once."""
    allocator = warp.get_device_allocator(device)
    if isinstance(allocator, _managed):
        return
    number = id(allocator)
    if number not in _warned:
        try:
            _warned[number] = weakref.ref(allocator, lambda _: _warned.pop(number))
        except TypeError:  # it knows no weak references
            _warned[number] = allocator
        _warn(f"StreamKit leaves {allocator!r}, the allocator set for {device.alias}, alone")


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, so an array used on a non-blocking stream may be freed before its work is done. "
        "Keep it with s.keep(array), or use a blocking stream: streamkit.new_stream().",
        RuntimeWarning,
        stacklevel=2,
    )
