"""What the tests of waiting share."""

from __future__ import annotations

import pytest

import streamkit as sk
from _queues import LONG, within
from streamkit import _dispatch


async def wait_for(something):
    return await something


def a_stream(stream):
    return stream


def an_event(stream):
    return stream.record()


WAITED = pytest.mark.parametrize("of", [a_stream, an_event], ids=["stream", "event"])


def is_armed():
    """Whether the dispatcher has a lane for each queue that it watches."""
    found = _dispatch._dispatcher
    tracks = list(found._tracks.values()) if found else []
    return bool(tracks) and all(track.lane for track in tracks)


def warm_up():
    within(lambda: sk.new_stream().then(int).result(LONG))
