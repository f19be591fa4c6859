"""More operations: captures and their graphs.

Warp is on the streams that capture and does not join: see ``test_graph``.
"""

from __future__ import annotations

import contextlib

import streamkit as sk
from streamkit._graphs import disposal  # what waits for its end goes at once
from streamkit.backends._warp import adapter as warp_adapter  # Warp's part cannot run here
from support.emulated.operations import foreign, operation
from support.emulated.operations.libraries import warp
from support.gpu.raw import check, driver


def without_warps_part(undo):
    warp()
    joins = warp_adapter.joins_capture
    del warp_adapter.joins_capture
    undo.callback(setattr, warp_adapter, "joins_capture", joins)
    undo.callback(give_up_the_rest)


def give_up_the_rest():
    """Graphs that could not be destroyed at once are tried again with the next."""
    check(driver.cuCtxSynchronize())
    disposal.sweep()


def prepared(undo):
    """A stream to capture on, and an event to record."""
    without_warps_part(undo)
    stream = sk.wrap(foreign(undo))
    return stream, sk.new_event()


def captured(undo):
    stream, event = prepared(undo)
    with sk.capture(stream) as g:
        stream.record(event, external=True)
    return g


@contextlib.contextmanager
def refused(words):
    """Let pass the CaptureError that the operation is about, and no other."""
    try:
        yield
    except sk.errors.CaptureError as error:
        if words not in str(error):
            raise


@operation
def capture_and_drop(undo):
    stream, event = prepared(undo)

    def call():
        with sk.capture(stream) as g:
            stream.record(event, external=True)
        g.close()

    return call


@operation
def capture_a_section(undo):
    stream, event = prepared(undo)

    def call():
        with sk.capture(stream) as g, g.section("one"):
            stream.record(event, external=True)
        g.close()

    return call


@operation
def capture_in_vain(undo):
    stream, _ = prepared(undo)
    other = sk.new_stream(nonblocking=True)  # one to be asked whether it is busy

    def call():
        with refused("nothing was captured"), sk.capture(stream):
            assert not other.closed

    return call


@operation
def capture_a_loose_end(undo):
    stream, event = prepared(undo)
    side = sk.wrap(foreign(undo))

    def call():
        with refused("has to be waited for"), sk.capture(stream):
            side.wait(stream)
            side.record(event, external=True)

    return call


@operation
def launch(undo):
    g = captured(undo)
    return lambda: g.launch(g.stream)


@operation
def launch_outside_a_scope(undo):
    g = captured(undo)
    return g.launch


@operation
def upload(undo):
    g = captured(undo)
    return g.upload


@operation
def look_at_a_graph(undo):
    g = captured(undo)
    return lambda: (g.nodes, g.to_dot(), g.to_svg(), repr(g))


@operation
def close_after_a_launch(undo):
    g = captured(undo)
    g.launch(g.stream)
    check(driver.cuCtxSynchronize())
    return g.close
