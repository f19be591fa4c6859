"""Which captures of StreamKit's go on in this process, and where."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from streamkit._base.locks import new_lock
from streamkit._base.queue import this_thread
from streamkit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from streamkit._base.queue import ThreadToken

_lock = new_lock()
# each capture, by an object of its own: its thread, the libraries of which it has the only part,
# and what its graph keeps
_ongoing: dict[object, tuple[ThreadToken, Sequence[str], list[object]]] = {}


def any_goes_on() -> bool:
    """Whether there is one in this process."""
    return bool(_ongoing)


def one_goes_on_here() -> bool:
    """Whether there is one in this thread."""
    if not _ongoing:
        return False
    here = this_thread()
    return any(thread is here for thread, _, _ in tuple(_ongoing.values()))


def keep(event: object) -> None:
    """Keep what a node names by its handle, which CUDA does not promise to, as long as the graph.

    All graphs that are being captured do: which of them has the node need not be asked.
    """
    for _, _, kept in tuple(_ongoing.values()):
        kept.append(event)


@contextlib.contextmanager
def noted(libraries: Sequence[str], kept: list[object]) -> Generator[None]:
    """Note one for the block; CaptureError if another has some of these libraries to itself."""
    key = object()
    try:
        with _lock:
            if libraries and any(others for _, others, _ in _ongoing.values()):
                raise CaptureError(
                    f"another capture is going on in this process, and {' and '.join(libraries)} "
                    "can take part in one at a time. End that one first, or capture one after "
                    "another under a lock."
                )
            _ongoing[key] = this_thread(), libraries, kept
        yield
    finally:
        _ongoing.pop(key, None)
