"""CuPy's stream objects live as long as memory that holds a weak reference to them."""

from __future__ import annotations

import gc
import weakref

import pytest

from _libraries import need
from streamkit.protocols import Queue


@pytest.fixture
def view():
    """Make CuPy's object of a queue that nobody destroys here."""
    need("cupy")
    from streamkit import _registry
    from streamkit.backends import _cupy

    def make():
        queue = Queue(0xDEAD00, 0)
        made = _cupy.borrow(queue)
        queue.note_view("cupy", weakref.ref(made))
        return made

    assert _registry  # it loads the adapter in the order of a program
    return make


def test_memory_keeps_the_object_and_lets_it_go(view):
    from streamkit.backends import _cupy_memory

    stream = view()
    assert _cupy_memory.holders(stream) == _cupy_memory.NOTED
    memory = weakref.ref(stream)  # all that MemoryAsync has of it
    assert _cupy_memory.holders(stream) != _cupy_memory.NOTED
    _cupy_memory.keep(stream)
    del stream
    gc.collect()
    _cupy_memory.release()
    assert memory() is not None
    watch = weakref.ref(memory(), lambda _: None)  # another reference than the plain one
    del memory
    _cupy_memory.release()
    assert watch() is None


def test_an_object_without_memory_is_not_kept(view):
    from streamkit.backends import _cupy_memory

    stream = view()
    watch = weakref.ref(stream, lambda _: None)
    _cupy_memory.keep(stream)
    del stream
    assert watch() is None
    assert not _cupy_memory._kept
