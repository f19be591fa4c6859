"""Memory for copies that other processes can open."""

from __future__ import annotations

import emulator
from streamkit._sharing.kept import Copy  # what `share(copy=True)` keeps


def test_the_memory_of_a_copy_goes_to_the_next_of_its_size(primary_context):
    before = emulator.calls("cuMemAlloc_v2")
    first = Copy(primary_context, 512)
    address = first.address
    other = Copy(primary_context, 512)
    assert other.address != address
    del first
    again = Copy(primary_context, 512)
    assert again.address == address
    assert emulator.calls("cuMemAlloc_v2") == before + 2
    del again, other
    freed = emulator.calls("cuMemFree_v2")
    larger = Copy(primary_context, 1024)
    assert emulator.calls("cuMemFree_v2") == freed + 2  # those of another size
    del larger
