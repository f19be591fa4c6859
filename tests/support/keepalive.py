"""Objects with weak references to them, and how long something has to keep them alive."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import numpy as np

from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import Queue


class Thing:
    """Something that a weak reference can watch."""


def thing():
    made = Thing()
    return made, weakref.ref(made)


def array():
    made = np.ones(4).view()
    return made, weakref.ref(made)


def capsule():
    made = np.ones(4)
    return made.__dlpack__(), weakref.ref(made)


def stays_until(gate, sync, gone):
    """Fail unless the object is alive while the gate is closed, and gone when ``sync`` returns."""
    gc.collect()
    assert not gone()
    gate.open()
    sync()
    assert gone()


def keeps_its_queue(library):
    """Whether what the library's adapter makes of a queue keeps it alive, and lets go of it."""
    queue = Queue(64, 0)
    built, alive = registry.adapter(library).borrow(queue), weakref.ref(queue)
    del queue
    gc.collect()
    is_kept = alive() is not None
    del built
    gc.collect()
    return is_kept and alive() is None


def resident_bytes():
    """Return how much memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
