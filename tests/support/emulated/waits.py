"""What the tests of waiting share."""

from __future__ import annotations

import sys

import pytest

import streamkit as sk
from streamkit._queues import dispatcher as dispatcher_module  # what it does now
from streamkit._streams import host_queue  # who is busy now
from streamkit._support.locks import Bell  # where the dispatcher sleeps
from support.gpu.raw import Gate
from support.queues import LONG, eventually, within


async def wait_for(something):
    return await something


def a_stream(stream):
    return stream


def an_event(stream):
    return stream.record()


WAITED = pytest.mark.parametrize("of", [a_stream, an_event], ids=["stream", "event"])


def watches(stream):
    """Whether the dispatcher has a point of the stream's queue."""
    found = dispatcher_module._dispatcher
    return found is not None and stream._queue.first_record() in found.tracks


class Told:
    """Who is told of points: it notes the error of each."""

    def __init__(self):
        self.errors, self.stirs = [], 0

    def tell(self, reached):
        self.errors += [error for _, error in reached]

    def stir(self):
        self.stirs += 1


def is_idle():
    """Whether the dispatcher watches nothing, and sleeps, and no worker has a function.

    Until then they may still call the driver, and take a failure that is meant for later.
    """
    found = dispatcher_module._dispatcher
    frame = sys._current_frames().get(found.thread.ident)
    naps = frame is not None and frame.f_code is Bell.wait.__code__
    is_busy = any(queue.is_cuda for queue in [*host_queue._working])
    return naps and not found.tracks and not found.new and not is_busy


def warm_up():
    """Have a dispatcher, which is idle."""
    dispatcher_module._start()
    within(lambda: sk.new_stream().then(int).result(LONG))
    assert eventually(is_idle)


class Later:
    """A gate of its own, so that one opens after another."""

    def __init__(self):
        self._gate = Gate()

    def hold(self, stream):
        self._gate.hold(stream.handle)

    def open(self):
        self._gate.open()

    close = property(lambda self: self._gate.free)
