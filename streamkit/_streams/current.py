"""The current streams of the libraries: ``current_stream``, and ``use``, which sets them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from streamkit._cuda import devices, driver
from streamkit._queues import loaded_libraries, open_scopes, registry
from streamkit._queues.arrays import place_of
from streamkit._streams import host_stream
from streamkit._streams.factories import default_stream, from_handle
from streamkit._streams.stream import CudaStream, wrap, wrapped
from streamkit._support import refusals
from streamkit._support.messages import describe, is_array
from streamkit.errors import OneQueueError, ScopeError
from streamkit.protocols import CurrentStream
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from streamkit._streams.host_stream import HostStream
    from streamkit.protocols import ArrayLike, StreamLike


# the adapter's ``current`` and ``current_here``, by the name of the library as it was written
_ways: dict[str, tuple[Callable[[int], Any], Callable[[], Any] | None]] = {}


def current_stream(
    library: str | None = None, *, device: object = None, of: ArrayLike | None = None
) -> CudaStream[Any] | HostStream:
    """Return the stream on which a library's next work in this thread would run.

    Args:
        library: Its name. None: the stream of this thread's innermost scope, else the one queue on
            which all loaded libraries are, else the default stream if none is loaded.
        device: As in ``new_stream``. With "cuda" scopes of host streams do not count, with "cpu"
            those of CUDA streams.
        of: An array, which names the library and the device: one with an adapter, or any whose
            class of arrays has DLPack's exchange API (DLPack 1.3). On the host it names neither.

    Raises:
        ScopeError: No library is named, and the loaded ones differ.
        UnsupportedStreamError: The library has no current stream, or no adapter has this name.
        BackendNotInstalledError: The library cannot be imported.
        TypeError: ``of`` is not an array, or stands beside another argument.
    """
    if of is not None:
        return _current_of(of, library, device)
    if library is not None:
        try:
            current, current_here = _ways[library]
        except (KeyError, TypeError):  # an array may have no hash
            meant = "of" if is_array(library) else "device" if devices.is_device(library) else None
            if meant is not None:
                raise TypeError(
                    f"{describe(library)} needs the name of its argument: write "
                    f"streamkit.current_stream({meant}=...)."
                ) from None
            adapter = registry.current_of(registry.adapter(library))
            current_here = offered(adapter, CurrentStream.current_here)
            current = adapter.current
            _ways[library] = current, current_here
        if current_here is not None and device is None:
            return wrap(current_here())  # type: ignore[no-any-return]  # a library's own object
        return current_on(current, devices.ordinal_or_current(device))
    place = devices.parse(device)
    if device is None:
        scope = open_scopes.innermost()
    else:
        scope = open_scopes.innermost_on(host=place == "cpu")
    if scope is not None and place in (None, scope.device_id, scope.device):
        stream: CudaStream[Any] | HostStream = scope
        return stream
    if devices.on_host(device):
        return host_stream.default_stream
    streams = current_streams(device=device)
    if len(set(streams.values())) > 1:
        raise ScopeError(
            f"the libraries have different current streams: {_listed(streams)}. Name one, as in "
            "streamkit.current_stream('...'), or enter streamkit.use(stream)."
        )
    return next(iter(streams.values())) if streams else default_stream(device)


def current_streams(*, device: object = None) -> dict[str, CudaStream[Any]]:
    """Return each loaded library's current stream; libraries without CUDA here are left out.

    Args:
        device: As in ``new_stream``; the host has none.
    """
    if devices.on_host(device):
        return {}
    ordinal = devices.ordinal_or_current(device)
    libraries = loaded_libraries.libraries()
    return {found.name: current_on(found.current, ordinal) for found in libraries}


def current_on(current: Callable[[int], Any], ordinal: int) -> CudaStream[Any]:
    """Return the stream of which ``current`` gives the library's own object, or the handle."""
    # a library's default streams are those of the current context
    return driver.ensure_in(driver.primary_context(ordinal), _wrapped, current, ordinal)


def _wrapped(current: Callable[[int], Any], ordinal: int) -> CudaStream[Any]:
    found = current(ordinal)
    if isinstance(found, int):
        return from_handle(found, device=ordinal)
    return wrap(found)  # type: ignore[no-any-return]  # a library's own object


def _current_of(array: ArrayLike, library: object, device: object) -> CudaStream[Any] | HostStream:
    if library is not None or device is not None:
        raise TypeError("of= names the library and the device: leave the others out.")
    found, ordinal = place_of(array)
    if found is None or ordinal is None:  # on the host
        return current_stream()
    if found.current is None:
        raise registry.no_current_stream(found.name)
    return current_on(found.current, ordinal)


def assert_one_queue(*, libraries: Iterable[str] | None = None) -> None:
    """Check that the libraries share one queue, which inside a scope is the scope's.

    Args:
        libraries: Which; None for every loaded one that has a current stream, and the scope.

    Raises:
        OneQueueError: They do not. The message has the current stream of each.
    """
    chosen = named(libraries)
    streams = current_streams()
    if chosen is not None:
        streams = {name: stream for name, stream in streams.items() if name in chosen}
    # a library that was loaded inside the scope knows nothing of it
    scope = open_scopes.innermost_on(host=False)
    if chosen is None and scope is not None and scope.device_id == driver.current_device():
        streams["the scope"] = scope
    if len(set(streams.values())) > 1:
        raise OneQueueError(
            f"the libraries are not on one queue: {_listed(streams)}. Put the work inside "
            "'with streamkit.use(stream):', after every import."
        )


def _listed(streams: dict[str, CudaStream[Any]]) -> str:
    return "; ".join(f"{library} on {describe(stream)}" for library, stream in streams.items())


_choices: dict[tuple[str, ...], frozenset[str]] = {}  # by the names as they came


def named(libraries: Iterable[str] | None) -> frozenset[str] | None:
    """Return the canonical names of libraries, which must have a current stream; None for None."""
    if libraries is None:
        return None
    one = isinstance(libraries, (str, ModuleType))
    names: tuple[Any, ...] = (libraries,) if one else tuple(libraries)
    found = _choices.get(names)
    if found is None:
        found = _choices[names] = frozenset(map(registry.with_current_named, names))
    return found


# -- the scope --------------------------------------------------------------------------------


@registry.uncompiled
def use(
    stream: StreamLike, *, libraries: Iterable[str] | None = None, ordered: bool = False
) -> AbstractContextManager[CudaStream[Any] | HostStream, None]:
    """Make a stream current in every loaded library for the block; ``with s:`` is ``use(s)``.

    The current device moves to the stream's. The libraries and the device are restored exactly, in
    reverse order, however the block ends. Do not hold the scope across an ``await`` or a ``yield``.
    On a host stream, entering waits for the queue's turn and the body runs as its next item.

    Args:
        stream: Any library's; errors as those of ``wrap``.
        libraries: Which of those already imported; None for all that have a current stream (torch,
            CuPy, Warp, tvm-ffi, plugins). numba-cuda and cuda.core have none: pass ``s.to(...)``.
        ordered: Let the stream first wait for each moved library's previous stream (on the host,
            for the one that was current), and those wait for it at the end. Else no wait is added.

    Raises:
        ScopeError: It is left out of order or in another thread.
        UnsupportedStreamError: A library cannot take the stream, or has no current stream.
    """
    given: Any = stream
    if type(given) is not CudaStream or given._queue is None:  # noqa: SLF001 - the hot path
        seen = wrapped.get(id(given))  # ``wrap`` of a stream that is known, without the call
        known = None if seen is None else seen()
        given = known if known is not None and known._native is given else wrap(given)  # noqa: SLF001 - as above
    scope = _Use()  # without an ``__init__``, which would cost as much as the rest
    scope.stream, scope.libraries = given, None if libraries is None else named(libraries)
    scope.ordered, scope.is_unentered = ordered, True
    return scope


@registry.uncompiled
class _Use:
    """A scope that warns if it is never entered."""

    __slots__ = "__weakref__", "is_unentered", "libraries", "ordered", "stream"

    stream: CudaStream[Any] | HostStream
    libraries: frozenset[str] | None
    ordered: bool

    def __enter__(self) -> CudaStream[Any] | HostStream:
        self.is_unentered = False
        return self.stream.__enter__(self, self.libraries, self.ordered)

    def __call__(self, _: object) -> NoReturn:
        """Raise TypeError: a decorator would hold the stream from the definition on."""
        self.is_unentered = False
        raise TypeError(
            "streamkit.use is not a decorator: write 'with streamkit.use(stream):' inside the "
            "function, or '@streamkit.follow(library)' above it to follow a library's stream."
        )

    __exit__ = open_scopes.leave  # the scope that was entered under this key

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "is_unentered", False) and not is_finalizing():  # unset by an interrupt
            refusals.warn_unentered(f"use({self.stream!r})", "streamkit.use(...)")
