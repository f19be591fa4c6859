"""The captures that StreamKit has begun in this process and that have not ended yet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from streamkit._support.locks import new_lock
from streamkit.errors import CaptureError
from streamkit.protocols.queues import this_thread

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from streamkit.protocols.queues import ThreadToken


class OngoingError(CaptureError):
    """Another capture goes on, beside which this one cannot begin."""


_lock = new_lock()
# for each capture, by a key of its own: its thread, the libraries that no other capture can have
# meanwhile, and what its graph keeps
_ongoing: dict[object, tuple[ThreadToken, Sequence[str], list[object]]] = {}


def any_goes_on() -> bool:
    """Whether a capture of StreamKit goes on in this process."""
    return bool(_ongoing)


def one_goes_on_here() -> bool:
    """Whether a capture of StreamKit goes on in this thread."""
    if not _ongoing:
        return False
    here = this_thread()
    return any(thread is here for thread, _, _ in list(_ongoing.values()))


def keep_in_graphs(event: object) -> None:
    """Keep an event that a node names by its handle as long as the graph; CUDA may not keep it.

    Each graph that is being captured keeps it, because which of them has the node is unknown.
    """
    for _, _, kept in list(_ongoing.values()):
        kept.append(event)


@contextlib.contextmanager
def noted(libraries: Sequence[str], kept: list[object]) -> Generator[None]:
    """Note a capture for the block; CaptureError if another one has the libraries to itself."""
    key = object()
    try:
        with _lock:
            if libraries and any(others for _, others, _ in list(_ongoing.values())):
                raise OngoingError(
                    f"another capture is going on in this process, and {' and '.join(libraries)} "
                    "can take part in one at a time. End that one first, or capture one after "
                    "another under a lock."
                )
            _ongoing[key] = this_thread(), libraries, kept
        yield
    finally:
        _ongoing.pop(key, None)
