"""``share_pool``: the libraries allocate from the pool of one of them."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from streamkit._cuda import driver
from streamkit._queues import loaded_libraries, registry
from streamkit._support import messages
from streamkit._support.locks import new_lock
from streamkit.errors import UnsupportedStreamError
from streamkit.protocols import Memory
from streamkit.protocols.adapters import offered
from streamkit.protocols.queues import LEGACY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    _Take = Callable[[Memory], Callable[[], bool]]

_lock = new_lock()


def share_pool(library: str, *, libraries: Iterable[str] | None = None) -> SharedPool:
    """Have the other libraries allocate from one library's pool, from now on.

    For the whole process, until ``close`` of what it returns, or the end of its ``with`` block;
    then each allocator is as before. An array stays in the pool that it was made in. What the other
    libraries hold unused goes back to CUDA once, which can wait for the GPU. In ``capture`` a new
    array is the graph's; RMM has no memory for other captures.

    Memory is taken for the library's current stream, and goes back to that stream: if the library
    is on another one when it drops the array, the stream waits for it on the device. Warp's arrays
    are freed as always: after all work of blocking streams, and of StreamKit's scopes. If any other
    stream uses an array, ``s.keep(array)``.

    Args:
        library: Whose pool: "torch", "cupy", "rmm" (its current resource), or a plugin's.
        libraries: Which allocate from it; None for all loaded ones that can: CuPy and Warp. Of
            others that have arrays of their own, torch and numba-cuda, it warns.

    Raises:
        UnsupportedStreamError: The one cannot give memory, or a named one cannot take it.
        CaptureError: A library's current stream captures.
        ValueError: A library is to take its own memory, or CuPy is inside ``using_allocator``.
    """
    giver: Any = registry.adapter(library)
    if offered(giver, Memory.allocate) is None:
        raise UnsupportedStreamError(
            f"no other library can allocate from the pool of {giver.name}: name one whose adapter "
            "gives memory."
        )
    takers = _takers(giver.name, libraries)
    device = driver.current_device()
    for found in loaded_libraries.libraries():
        queue, _ = registry.extract(found.current(device))
        if queue.handle > LEGACY and driver.capture_id(queue.handle) is not None:
            raise messages.illegal_in_capture("sharing a pool", found.name, "share it before.")
    with _lock, ExitStack() as undo:
        restores = {}
        for name, take_memory in takers.items():
            restores[name] = take_memory(giver)
            undo.callback(restores[name])
        undo.pop_all()
    return SharedPool(giver.name, restores)


class SharedPool:
    """What ``share_pool`` has changed."""

    __slots__ = "_restores", "libraries", "library"

    def __init__(self, library: str, restores: dict[str, Callable[[], bool]]) -> None:
        self._restores = restores
        self.library: str = library
        """Whose pool it is."""
        self.libraries: tuple[str, ...] = tuple(restores)
        """Which allocate from it."""

    def close(self) -> None:
        """Give each library its allocator back; nothing the second time.

        One that was changed since is left alone, with a RuntimeWarning.
        """
        with _lock:
            restores, self._restores = self._restores, {}
            kept = [name for name, restore in reversed(restores.items()) if not restore()]
        if kept:
            warnings.warn(
                f"The allocator of {', '.join(kept)} was changed while the pool of {self.library} "
                "was shared, and is left alone. Close what was opened last first.",
                RuntimeWarning,
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as failure:  # noqa: BLE001 - a library's own, or a warning made an error
            messages.raise_or_note(failure, error)

    def __repr__(self) -> str:
        state = f"for {', '.join(self.libraries)}" if self._restores else "closed"
        return f"<streamkit shared pool of {self.library}, {state}>"


def _takers(giver: str, libraries: Iterable[str] | None) -> dict[str, _Take]:
    found: dict[str, _Take] = {}
    named = (libraries,) if isinstance(libraries, str) else libraries
    for name in registry.loaded() if named is None else named:
        adapter = registry.adapter(name)
        take = offered(adapter, Memory.take_memory)
        if adapter.name == giver:
            if named is not None:
                raise ValueError(f"{name} has its own pool already: name the others.")
        elif take is not None:
            found[adapter.name] = take
        elif named is not None:
            raise UnsupportedStreamError(
                f"{name} cannot allocate from another library's pool. Leave it out."
            )
        elif offered(adapter, Memory.array_layout):
            warnings.warn(
                f"{name} cannot allocate from the pool of {giver}, and keeps its own.",
                RuntimeWarning,
                stacklevel=3,
            )
    return found
