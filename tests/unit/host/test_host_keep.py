"""What a host stream keeps alive, how long, and who lets it go."""

from __future__ import annotations

import gc
import textwrap
import threading
import weakref

import numpy as np
import pytest

import streamkit as sk
from streamkit._streams import host_stream  # whose entries are compared
from support.garbage import no_collections
from support.keepalive import Thing, array, capsule, thing
from support.programs import needs_fork, run_program
from support.queues import LONG, eventually, together, within

pytestmark = pytest.mark.portable

# -- how long ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [thing, array, capsule])
@pytest.mark.parametrize("kept", [True, False])
def test_it_lives_until_the_work_before_has_run(stream, hold, make, kept):
    gate = hold(stream)
    kept_object, seen = make()
    if kept:
        stream.keep(kept_object)
    del kept_object
    gc.collect()
    assert (seen() is not None) is kept
    gate.open()
    stream.sync()
    assert seen() is None


def test_of_several_each_is_kept(stream, hold):
    gate = hold(stream)
    (one, seen), (other, also) = thing(), thing()
    stream.keep(one, other)
    del one, other
    assert seen() is not None
    assert also() is not None
    gate.open()
    stream.sync()
    assert seen() is also() is None


def test_many_are_let_go_one_after_the_other_without_a_search(stream, hold, monkeypatch):
    gate, compared = hold(stream), []
    equal = lambda one, other: compared.append(one) or one is other  # noqa: E731 - for the class
    monkeypatch.setattr(host_stream._KeptOnHost, "__eq__", equal)
    kept = [thing() for _ in range(100)]
    seen = [ref for _, ref in kept]
    while kept:
        stream.keep(kept.pop()[0])
    gate.open()
    stream.sync()
    assert [ref for ref in seen if ref() is not None] == []
    assert len(compared) <= 100, "the time would grow with the square"


def test_work_submitted_later_is_not_waited_for(stream, hold):
    first = hold(stream)
    kept, seen = thing()
    stream.keep(kept)
    del kept
    hold(stream)
    first.open()

    def gone():
        stream.keep(None)
        return seen() is None

    assert eventually(gone)


def test_another_streams_work_holds_nothing(stream, other, hold):
    hold(other)
    other.keep(Thing())
    kept, seen = thing()
    stream.keep(kept)
    del kept
    within(stream.sync)
    assert seen() is None


def test_inside_a_body_what_ran_before_has_run(stream):
    with stream:
        kept, seen = thing()
        stream.keep(kept)
        del kept
        assert seen() is None


def test_a_closed_stream_keeps_what_it_has_and_takes_nothing_more(stream, hold):
    gate = hold(stream)
    kept, seen = thing()
    stream.keep(kept)
    stream.close()
    with pytest.raises(sk.errors.StreamClosedError):
        stream.keep(kept)
    del kept
    gc.collect()
    assert seen() is not None
    gate.open()
    assert eventually(lambda: gc.collect() >= 0 and seen() is None)


def test_the_end_of_the_stream_object_ends_nothing(hold):
    stream = sk.new_stream("cpu")
    gate = hold(stream)
    kept, seen = thing()
    stream.keep(kept)
    del kept, stream
    gc.collect()
    assert seen() is not None
    gate.open()
    assert eventually(lambda: gc.collect() >= 0 and seen() is None)


# -- who lets it go ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda stream: stream.done,
        lambda stream: stream.keep(),
        lambda stream: sk.new_stream("cpu"),
        lambda stream: gc.collect(),
        lambda stream: sk.handoff(np.ones(1), stream, after=sk.new_stream("cpu")),
    ],
)
def test_any_of_these_lets_it_go(stream, hold, look):
    gate = hold(stream)
    kept, seen = thing()
    stream.keep(kept)
    del kept
    look(stream)
    assert seen() is not None
    with no_collections():
        gate.open()
        assert eventually(lambda: (look(stream), seen() is None)[1])


def test_young_collections_let_nothing_go(stream, hold):
    gate = hold(stream)
    kept, seen = thing()
    stream.keep(kept)
    del kept
    passed = threading.Event()
    stream.submit(passed.set)
    with no_collections():
        gate.open()
        assert passed.wait(LONG)
        gc.collect(0)
        assert seen() is not None
        gc.collect(1)
        assert seen() is None


def test_what_is_let_go_in_the_thread_of_a_caller_may_use_the_stream(stream, hold):
    told = []

    class Ends:
        def __del__(self):
            stream.keep(told)
            stream.sync()
            told.append(threading.get_ident())

    gate = hold(stream)
    stream.keep(Ends())
    gate.open()
    caller = within(lambda: stream.sync() or threading.get_ident())
    assert told == [caller]


def test_threads_keep_and_let_go_together():
    seen = []

    def work(_):
        stream = sk.new_stream("cpu")
        for _ in range(200):
            stream.submit(lambda: None)
            kept = Thing()
            seen.append(weakref.ref(kept))
            stream.keep(kept)
            shared.keep(kept)
        stream.sync()

    shared = sk.new_stream("cpu")
    together(4, work)
    shared.sync()
    assert len(seen) == 800
    assert [ref for ref in seen if ref() is not None] == []


# -- the process ------------------------------------------------------------------------------

PROGRAM = """
import atexit, os, sys, threading
import streamkit as sk
from streamkit._support import reports  # the end of a program, which is shortened

reports.PATIENCE = 0.25

class Ends:
    def __init__(self, text):
        self.text = text

    def __del__(self, write=os.write):  # bound: late in the end there is no print
        write(1, self.text.encode())

stream, done = sk.new_stream("cpu"), sk.new_stream("cpu")
gate = threading.Event()

def held(stream):  # by a thread that ends with the process
    def hold():
        with stream:
            entered.set()
            gate.wait()

    entered = threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    entered.wait()
"""


def run(program):
    return run_program(PROGRAM + textwrap.dedent(program))


def test_at_exit_what_is_needed_stays_and_what_is_not_goes():
    done = run("""
        held(stream)
        stream.keep(Ends("too early"))
        before = threading.Event()
        done.submit(before.wait)
        done.keep(Ends("passed"))
        before.set()
        while not done._work.idle:  # done.done would let the object go
            pass
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed", "")


def test_what_is_kept_during_exit_stays():
    done = run("""
        held(stream)
        atexit.register(lambda: stream.keep(Ends("too early")))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_fork
def test_a_forked_child_lets_go_of_nothing_that_is_needed():
    done = run("""
        stream.submit(gate.wait)
        stream.keep(Ends("parent"))
        child = os.fork()
        if child == 0:
            sk.new_stream("cpu")
            sys.exit(0)
        os.waitpid(child, 0)
        gate.set()
        stream.sync()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent", "")
