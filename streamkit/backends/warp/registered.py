"""The streams that Warp has: on each handle there must be one.

Warp's native part knows the handles and does not tell them, and nobody has a list of the objects
but the garbage collector, which takes tens of milliseconds to find them in a large program. So
Warp's own functions tell of each handle from the first question on, and the collector is asked
about those alone.
"""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

import warp

from streamkit.backends.warp import lent_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CREATE, _DESTROY = "wp_cuda_stream_create", "wp_cuda_stream_destroy"
_REGISTER, _UNREGISTER = "wp_cuda_stream_register", "wp_cuda_stream_unregister"

_handles: set[int] = set()


def streams() -> Iterator[Any]:
    """Yield every ``wp.Stream`` there is; it takes long."""
    for found in gc.get_referrers(warp.Stream):
        if type(found) is warp.Stream and found.cuda_stream:
            yield found


def find(handle: int, device: Any) -> Any:
    """Return the ``wp.Stream`` that Warp or the user already has on this handle, or None."""
    if _watch() and handle not in _handles:
        return None
    for found in streams():
        if found.cuda_stream == handle and found.device == device:
            return found
    return None


@functools.cache
def _watch() -> bool:
    """Be told of the handles from now on; False if this Warp has other functions."""
    core = vars(lent_queues.context().runtime.core)
    if not {_CREATE, _DESTROY, _REGISTER, _UNREGISTER} <= core.keys():
        return False
    core.update(
        {
            _CREATE: _created(core[_CREATE]),
            _REGISTER: _registered(core[_REGISTER]),
            _DESTROY: _gone(core[_DESTROY]),
            _UNREGISTER: _gone(core[_UNREGISTER]),
        }
    )
    _handles.update(found.cuda_stream for found in streams())
    return True


def _created(native: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        handle = native(*arguments)
        _handles.add(handle)
        return handle

    return call


def _registered(native: Callable[..., Any]) -> Callable[..., Any]:
    def call(context: Any, handle: Any) -> Any:
        _handles.add(handle)
        return native(context, handle)

    return call


def _gone(native: Callable[..., Any]) -> Callable[..., Any]:
    # in destructors, also when this module has come to its end
    def call(context: Any, handle: Any, handles: set[int] = _handles) -> Any:
        handles.discard(handle)  # first: another thread may be given it as soon as it is free
        return native(context, handle)

    return call
