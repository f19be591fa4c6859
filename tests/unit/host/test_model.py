"""Random programs of host streams, against the reference model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import streamkit as sk
from streamkit.types import HostStream
from support.model import flat_programs, is_caught, play, programs, search, search_finds
from support.model_host import Adversarial, Threads

pytestmark = pytest.mark.portable


@settings(search, max_examples=200)
@given(programs)
def test_worker_threads_keep_every_edge_and_add_none(program):
    play(program, Threads())


@settings(search, max_examples=300)
@given(programs, st.integers(0, 10**6))
def test_the_adversarial_order_keeps_every_edge(program, seed):
    play(program, Adversarial(seed))


# -- the controls: each of these streams is wrong in one thing, which the search has to find ------


class Deaf(HostStream):
    def wait(self, other, *, external=False):
        pass


class DeafToEvents(HostStream):
    def wait(self, other, *, external=False):
        if isinstance(other, HostStream):
            super().wait(other)


class RecordsOnce(HostStream):
    def record(self, event=None, **options):
        return super().record(event, **options) if event is None else event


class Impatient(HostStream):
    def sync(self, timeout=None):
        pass


class Unordered(HostStream):
    def submit(self, fn, *args, **kwargs):
        sk.new_stream("cpu").submit(fn, *args, **kwargs)


class AlwaysDone(HostStream):
    done = True


WRONG = [Deaf, DeafToEvents, RecordsOnce, Impatient, Unordered, AlwaysDone]


@pytest.mark.parametrize("kind", WRONG)
def test_the_search_on_worker_threads_finds_a_stream_that_is_wrong(kind):
    search_finds(flat_programs, lambda program: is_caught(program, Threads(kind)), most=2_000)


@pytest.mark.parametrize("kind", WRONG)
def test_the_search_in_adversarial_order_finds_a_stream_that_is_wrong(kind):
    search_finds(
        st.tuples(flat_programs, st.integers(0, 100)),
        lambda drawn: is_caught(drawn[0], Adversarial(drawn[1], kind)),
        most=2_000,
    )


def test_what_shows_once_is_found_and_what_never_shows_is_not():
    seen = []

    def is_wrong_once(drawn):
        seen.append(drawn)
        return len(seen) == 1

    search_finds(st.integers(), is_wrong_once, most=10)
    assert len(seen) > 1, "it was not tried again, and nothing is shown here"
    with pytest.raises(NoSuchExample):
        search_finds(st.integers(), lambda _: False, most=10)


class WaitsBothWays(HostStream):
    def wait(self, other, *, external=False):
        super().wait(other)
        HostStream.wait(other, self)


def test_an_edge_too_many_is_found():
    program = [("hold", 0), ("wait_stream", 0, 1), ("work", 1)]
    play(program, Threads())
    machine = Threads(WaitsBothWays)
    machine.patience = 0.05
    with pytest.raises(AssertionError, match=r"\[1\] waited for what it need not"):
        play(program, machine)
