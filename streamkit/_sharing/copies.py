"""Memory for copies of arrays that CUDA cannot share: allocated so that it can."""

from __future__ import annotations

from collections import deque

from streamkit._cuda import sharing

_spare: deque[tuple[int, int, int]] = deque()
"""The context, size and address of each block that no copy has. To free one waits for the device,
so that is done where another size is asked for."""


class Copy:
    """The copy of some bytes of device memory; its memory goes to another one later."""

    def __init__(self, context: int, size: int) -> None:
        self._context, self._size = context, size
        self.address = _take(context, size)

    def __del__(self, spare: deque[tuple[int, int, int]] = _spare) -> None:
        if getattr(self, "address", 0):
            spare.append((self._context, self._size, self.address))


def _take(context: int, size: int) -> int:
    """Return a spare block of that size; else new memory, once the spare ones have been freed."""
    others: list[tuple[int, int, int]] = []
    while _spare:
        try:
            block = _spare.popleft()
        except IndexError:  # another thread has it
            break
        if block[:2] == (context, size):
            _spare.extend(others)
            return block[2]
        others.append(block)
    for owner, _, address in others:
        sharing.free(owner, address)
    return sharing.allocate(context, size)
