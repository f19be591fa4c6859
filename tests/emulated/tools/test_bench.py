"""What holds a stream while the bench measures beside it; Warp's streams stand where torch's do."""

from __future__ import annotations

import contextlib
import gc
from types import SimpleNamespace

import pytest

import streamkit as sk
from bench import (
    arranging,
    growth,
    measurements,
    stream_rows,
)
from streamkit.testing import _gate  # what needs a current context


@pytest.fixture
def libraries(warp):
    streams = []

    def stream():
        streams.append(warp.Stream("cuda:0"))
        return streams[-1]

    cuda = SimpleNamespace(Stream=stream, Event=None)
    torch = SimpleNamespace(cuda=cuda, ones=lambda *_, **__: None)
    with _gate.on_device(0):
        yield SimpleNamespace(torch=torch, device=0, streams=streams)


def test_objects_are_kept_on_a_stream_that_is_busy_until_the_turn_ends(libraries):
    with contextlib.contextmanager(stream_rows.keeping)(libraries, busy=True, count=7) as arms:
        s = sk.wrap(libraries.streams[0])
        for loop in (arms.ours, arms.bare):
            arms.before()
            loop(arms.ours_items(arms.one_turn))
            assert not s.done
            arms.after()
            assert s.done
    assert arms.one_turn == 7


def test_control_objects_are_kept_on_a_stream_that_is_idle(libraries):
    with contextlib.contextmanager(stream_rows.keeping)(libraries, busy=False) as arms:
        arms.before()
        arms.ours(arms.ours_items(7))
        sk.wrap(libraries.streams[0]).sync(timeout=10)


def test_all_tasks_wait_before_the_stream_moves(libraries, monkeypatch):
    opened = []
    waits, open_ = [], arranging.Held.open

    class Awaited:
        def __init__(self, stream):
            self.stream = sk.from_handle(stream.cuda_stream)

        def __await__(self):
            waits.append(self.stream.done)
            return self.stream.__await__()

    def note(held):
        opened.append(len(waits))
        open_(held)

    monkeypatch.setattr(growth, "sk", SimpleNamespace(wrap=Awaited))
    monkeypatch.setattr(arranging.Held, "open", note)
    with contextlib.contextmanager(growth.awaiting)(libraries, 20) as arms:
        for _ in range(2):
            arms.before()
            arms.ours([None])
            arms.after()
    assert opened == [20, 40]
    assert waits == [False] * 40
    assert arms.each == 20


def test_a_collection_of_garbage_adds_no_call_to_those_of_a_wait(libraries, gate):
    """It asks the driver about what any stream has kept."""
    keeps, a, b = (sk.new_stream(nonblocking=True) for _ in range(3))
    gate.hold(keeps.handle)
    keeps.keep(libraries)
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        count = measurements.count_calls(a, b)
    finally:
        gc.set_threshold(*before)
        gate.open()
    assert count.met, count
