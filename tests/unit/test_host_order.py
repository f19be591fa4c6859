"""Random programs of host streams, against what must have happened before what."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamkit as sk

STREAMS, EVENTS = 4, 3

stream_numbers = st.integers(0, STREAMS - 1)
event_numbers = st.integers(0, EVENTS - 1)
naps = st.sampled_from([0, 0, 0, 1e-4, 1e-3])

operations = st.one_of(
    st.tuples(st.just("submit"), stream_numbers, naps),
    st.tuples(st.just("submit"), stream_numbers, naps),
    st.tuples(st.just("body"), stream_numbers, naps),
    st.tuples(st.just("record"), stream_numbers, event_numbers),
    st.tuples(st.just("wait event"), stream_numbers, event_numbers),
    st.tuples(st.just("wait stream"), stream_numbers, stream_numbers),
    st.tuples(st.just("sync"), stream_numbers),
    st.tuples(st.just("sync event"), event_numbers),
)


class Program:
    """Runs operations on streams, and keeps by its own book what must come before what."""

    def __init__(self, make_stream):
        self.streams = [make_stream() for _ in range(STREAMS)]
        self.events = [sk.new_event(device="cpu") for _ in range(EVENTS)]
        self.before = [frozenset()] * STREAMS  # the items before the next item of each stream
        self.recorded = [frozenset()] * EVENTS  # those before each event's last record
        self.edges = {}  # each item: those before it
        self.log = []  # what was seen
        self.missed = []

    def item(self, stream):
        number = len(self.edges)
        self.edges[number] = self.before[stream]
        self.before[stream] |= {number}
        return number

    def work(self, number, nap):
        self.log.append(("start", number))
        time.sleep(nap)
        self.log.append(("end", number))

    def must_have_ended(self, numbers, where):
        self.missed += [(n, where) for n in sorted(numbers) if ("end", n) not in self.log]

    def submit(self, stream, nap):
        self.streams[stream].submit(self.work, self.item(stream), nap)

    def body(self, stream, nap):
        with self.streams[stream]:
            self.must_have_ended(self.before[stream], "body")
            self.work(self.item(stream), nap)

    def record(self, stream, event):
        self.streams[stream].record(self.events[event])
        self.recorded[event] = self.before[stream]

    def wait_event(self, stream, event):
        self.streams[stream].wait(self.events[event])
        self.before[stream] |= self.recorded[event]

    def wait_stream(self, stream, other):
        self.streams[stream].wait(self.streams[other])
        self.before[stream] |= self.before[other]

    def sync(self, stream):
        self.streams[stream].sync()
        self.must_have_ended(self.before[stream], "sync")

    def sync_event(self, event):
        self.events[event].sync()
        self.must_have_ended(self.recorded[event], "sync event")

    def check(self):
        place = {entry: index for index, entry in enumerate(self.log)}
        complete = len(place) == len(self.log) == 2 * len(self.edges)
        assert complete, "an item was lost or ran twice"
        for second, earlier in self.edges.items():
            for first in sorted(earlier):
                if place["end", first] > place["start", second]:
                    self.missed.append((first, second))


def run(operations, make_stream=lambda: sk.new_stream("cpu")):
    """Run a program; return the edges that were not kept, as pairs (first, second)."""
    program = Program(make_stream)
    for name, *arguments in operations:
        getattr(program, name.replace(" ", "_"))(*arguments)
    for stream in program.streams:
        stream.sync()
    program.check()
    return program.missed


@settings(max_examples=150, deadline=None, database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(st.lists(operations, max_size=40))
def test_every_edge_of_a_program_is_kept(program):
    assert run(program) == []


class Deaf(sk.HostStream):
    """A stream that ignores waits, to see whether the search would notice."""

    def wait(self, other, *, external=False):
        pass


class Unordered(sk.HostStream):
    """A stream whose items run at once, each in a queue of its own."""

    def submit(self, fn, *args, **kwargs):
        sk.new_stream("cpu").submit(fn, *args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        (Deaf, [("submit", 0, 0.05), ("wait stream", 1, 0), ("submit", 1, 0)]),
        (
            Deaf,
            [("submit", 0, 0.05), ("record", 0, 0), ("wait event", 1, 0), ("submit", 1, 0)],
        ),
    ],
)
def test_the_control_of_the_search_notices_a_wait_that_is_ignored(kind, program):
    assert run(program, kind) == [(0, 1)]
    assert run(program) == []


def test_the_control_of_the_search_notices_a_queue_without_order():
    program = [("submit", 0, 0.05), ("submit", 0, 0.0), ("sync", 0)]
    with pytest.raises(AssertionError, match="lost"):
        run(program, Unordered)
    assert run(program) == []


def test_a_record_is_captured_by_the_wait_and_not_by_the_name():
    program = [
        ("record", 0, 0),
        ("wait event", 1, 0),
        ("submit", 0, 0.02),
        ("record", 0, 0),
        ("submit", 1, 0),
        ("wait event", 1, 0),
        ("submit", 1, 0),
    ]
    assert run(program) == []
