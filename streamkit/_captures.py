"""Which captures of StreamKit's go on in this process, and where."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from streamkit import _refusals_capture
from streamkit._locks import new_lock
from streamkit._queue import this_thread

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from streamkit._queue import ThreadToken

_lock = new_lock()
# each capture, by an object of its own: its thread, and the libraries of which it has the only part
_ongoing: dict[object, tuple[ThreadToken, Sequence[str]]] = {}


def any_goes_on() -> bool:
    """Whether there is one in this process."""
    return bool(_ongoing)


def one_goes_on_here() -> bool:
    """Whether there is one in this thread."""
    if not _ongoing:
        return False
    here = this_thread()
    return any(thread is here for thread, _ in tuple(_ongoing.values()))


@contextlib.contextmanager
def noted(libraries: Sequence[str]) -> Generator[None]:
    """Note one for the block; CaptureError if another has some of these libraries to itself."""
    key = object()
    try:
        with _lock:
            if libraries and any(others for _, others in _ongoing.values()):
                raise _refusals_capture.one_at_a_time(libraries)
            _ongoing[key] = this_thread(), libraries
        yield
    finally:
        _ongoing.pop(key, None)
