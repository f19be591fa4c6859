"""What the tests of waiting share."""

from __future__ import annotations

import sys

import pytest

import streamkit as sk
from streamkit._waiting import dispatcher as dispatcher_module  # what it does now
from streamkit._waiting.side_streams import Semaphore  # where its thread sleeps
from support.gpu.raw import Gate
from support.queues import LONG, eventually, within


async def wait_for(something):
    return await something


def a_stream(stream):
    return stream


def an_event(stream):
    return stream.record()


WAITED = pytest.mark.parametrize("of", [a_stream, an_event], ids=["stream", "event"])


def is_armed():
    """Whether the dispatcher has a side stream for each queue that it watches."""
    found = dispatcher_module._dispatcher
    tracks = list(found._tracks.values()) if found else []
    return bool(tracks) and all(track.stream for track in tracks)


def sleeps(dispatcher):
    """Whether it has looked at everything that it was given."""
    frame = sys._current_frames().get(dispatcher.thread.ident)
    return frame is not None and frame.f_code is Semaphore.wait.__code__ and not dispatcher._new


def is_idle():
    """Whether the dispatcher watches nothing, has made the side streams that it missed, and sleeps.

    Until it sleeps it may still call the driver, and take a failure that is meant for later.
    """
    found = dispatcher_module._dispatcher
    return sleeps(found) and not found._tracks and not found._side_streams.wanted


def warm_up():
    """Have a dispatcher with side streams."""
    within(lambda: sk.new_stream().then(int).result(LONG))
    streams = dispatcher_module._dispatcher._side_streams
    if 0 not in streams._free:  # what has run when it looks, as that may have, needs none
        streams.wanted.add(0)
        within(lambda: sk.new_stream().then(int).result(LONG))
    assert eventually(is_idle)


def have_side_streams():
    """Have the dispatcher make its side streams, which it does after the first wait that was long.

    From then on it makes no stream of its own, however slow the machine: streams can be counted.
    """
    gate, stream = Gate(), sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    future = stream.then(int)
    streams = dispatcher_module._dispatcher._side_streams
    assert eventually(lambda: 0 in streams.wanted or 0 in streams._free)
    gate.open()
    assert future.result(LONG) == 0
    assert eventually(is_idle)
    assert streams._free[0]
    gate.free()


class Later:
    """A gate of its own, so that one opens after another."""

    def __init__(self):
        self._gate = Gate()

    def hold(self, stream):
        self._gate.hold(stream.handle)

    def open(self):
        self._gate.open()

    close = property(lambda self: self._gate.free)
