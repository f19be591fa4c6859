"""Objects that tell when they go, and how long something has to keep them."""

from __future__ import annotations

import gc
import weakref

import numpy as np


class Thing:
    """Something that tells when it goes."""


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
    """Fail unless it is there as long as the gate is closed, and gone when ``sync`` returns."""
    gc.collect()
    assert not gone()
    gate.open()
    sync()
    assert gone()
