"""CuPy's stream-ordered memory, and the object of the stream to which it goes back.

``MemoryAsync`` (of ``malloc_async`` and ``MemoryAsyncPool``) holds only a weak reference to the
stream object that was current. Once that object is gone, the memory is freed on whatever stream is
then current, so an object with such memory is kept. The default pool needs no care: it gives a
block back to the handle it came from, and a handle that CuPy has seen is parked, never given to
another stream.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

_kept: dict[int, Any] = {}


class _Weak:
    pass


def holders(stream: Any) -> int:
    """Return a number that grows with each holder of the stream's one plain weak reference."""
    return sys.getrefcount(weakref.ref(stream))


_example = _Weak()
_NONE = holders(_example)
_reference = weakref.ref(_example)
NOTED = holders(_example)
"""The number for an object whose only holder is StreamKit's own table."""


def keep(stream: Any) -> None:
    """Keep the stream object as long as memory refers to it."""
    _kept[id(stream)] = stream
    release()


def release() -> None:
    """Drop the stream objects to which no memory refers any more."""
    for number, stream in _kept.copy().items():
        queue = stream._streamkit_queue
        noted = queue.views.get("cupy") is weakref.ref(stream)
        if holders(stream) == (NOTED if noted else _NONE):
            _kept.pop(number, None)
