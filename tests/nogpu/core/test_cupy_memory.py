"""CuPy's stream objects live as long as memory that holds a weak reference to them."""

from __future__ import annotations

import gc
import weakref

import pytest

from streamkit.protocols.queues import QueueRecord  # the public calls need a device
from support.libraries import need

pytestmark = pytest.mark.versions


@pytest.fixture
def view():
    """Make CuPy's object of a queue that nobody destroys here."""
    need("cupy")
    from streamkit._queues import registry  # the public calls need a device

    def make():
        queue = QueueRecord(0xDEAD00, 0)
        made = registry.adapter("cupy").borrow(queue)
        queue.views = {"cupy": weakref.ref(made)}
        return made

    return make


def test_memory_keeps_the_object_and_lets_it_go(view):
    from streamkit.backends._cupy import adapter as memory_module  # its memory needs a device

    stream = view()
    assert memory_module.holders(stream) == memory_module.NOTED
    memory = weakref.ref(stream)  # all that MemoryAsync has of it
    assert memory_module.holders(stream) != memory_module.NOTED
    memory_module.keep(stream)
    del stream
    gc.collect()
    memory_module.release()
    assert memory() is not None
    watch = weakref.ref(memory(), lambda _: None)  # another reference than the plain one
    del memory
    memory_module.release()
    assert watch() is None


def test_an_object_without_memory_is_not_kept(view):
    from streamkit.backends._cupy import adapter as memory_module  # its memory needs a device

    stream = view()
    watch = weakref.ref(stream, lambda _: None)
    memory_module.keep(stream)
    del stream
    assert watch() is None
    assert not memory_module._kept
