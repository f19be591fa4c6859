"""torch's caching allocator as the pool of other libraries."""

from __future__ import annotations

import torch


def allocate(size: int, device: int, stream: int) -> int:
    """Take memory as a tensor would that is made on the stream; into a graph if that captures."""
    pointer: int = torch.cuda.caching_allocator_alloc(size, device, stream)
    return pointer


def free(pointer: int) -> None:
    """Give it back to the stream that it was taken for."""
    torch.cuda.caching_allocator_delete(pointer)
