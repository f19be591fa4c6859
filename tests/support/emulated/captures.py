"""What the tests of captures share.

Warp is on the streams that capture but does not join: its own part calls the CUDA runtime,
which does not run on the emulated driver.
"""

from __future__ import annotations

import gc
import weakref

import pytest

import streamkit as sk
from streamkit._graphs import disposal  # what waits for its end goes at once
from streamkit._queues import active_captures  # no capture may stay listed
from streamkit.backends._warp import adapter as warp_adapter  # Warp's part cannot run here
from support.emulated.state_snapshot import StateSnapshot
from support.gpu.raw import check, driver
from support.keepalive import Thing


@pytest.fixture
def nothing_left(warp, monkeypatch):
    """Whatever a test does: Warp, contexts, capture mode and collector are as before."""
    monkeypatch.delattr(warp_adapter, "joins_capture")
    before, collects = StateSnapshot(), gc.isenabled()
    yield
    assert before.differences() == {}
    assert gc.isenabled() is collects
    assert not active_captures.any_goes_on()


def fill(cell, value, handle):
    """A node, or work of a queue: write the bits of a number into the cell."""
    bits = {1: 0x3F800000, 2: 0x40000000, 3: 0x40400000}[value]
    check(driver.cuMemsetD32Async(cell.pointer, bits, 1, handle))


def graph_writing_a_two(cell):
    """A graph that writes a 2 into the cell, and what tells whether something of it is kept."""
    kept = Thing()
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
        g.keep(kept)
    return g, weakref.ref(kept)


def settle():
    """Have what has been given up go: its end is marked, reached and seen.

    One look does not do if a stream is not idle for a moment, as where memory of Warp's is freed.
    """
    disposal.sweep()
    check(driver.cuCtxSynchronize())
    disposal.sweep()


def capturing(handle):
    return int(check(driver.cuStreamIsCapturing(handle)))
