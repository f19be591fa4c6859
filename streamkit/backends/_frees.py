"""Memory that goes back to the pool of another library, once the work that used it last is done.

The stream to which it goes back waits for the stream that used it last.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._cuda import driver, events

if TYPE_CHECKING:
    from collections.abc import Callable


class Piece(NamedTuple):
    """Memory that its library has dropped."""

    device: int
    made_on: int
    """The stream for which it was taken, and to which it goes back."""
    last: int
    """The stream whose work may still use it."""
    streams: tuple[Any, ...]
    """The library's own stream objects, which keep the handles valid."""
    free: Callable[[], object]


class Frees:
    """Frees that a wait on the device puts in order; beside a capture, they are left for later.

    Destructors come here, in several threads at once, so there is no lock.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._late: deque[Piece] = deque()

    def add(self, piece: Piece) -> None:
        """Free it now, or with a later call."""
        self._late.append(piece)
        self.do()

    def do(self) -> None:
        for _ in range(len(self._late)):
            try:
                piece = self._late.popleft()
            except IndexError:  # another thread was here
                return
            if _has_order(piece, self._is_ready):
                try:
                    piece.free()
                    continue
                except errors.CaptureError:  # another thread has begun a capture meanwhile
                    pass
            self._late.append(piece)


def _has_order(piece: Piece, is_ready: Callable[[], bool]) -> bool:
    """Let the one stream wait for the other; False if that is impossible now."""
    handles = piece.made_on, piece.last
    try:
        context = driver.primary_context(piece.device)
        with driver.in_context(context):
            if any(driver.capture_id(handle) is not None for handle in handles) or not is_ready():
                return False
            event = events.create(context, timing=False)
            try:
                events.record(event, piece.last)
                events.wait(piece.made_on, event)
            finally:
                events.destroy(event)
    except errors.StreamKitError:  # a destructor cannot raise
        return False
    return True
