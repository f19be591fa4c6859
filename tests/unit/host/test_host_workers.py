"""The worker of a host stream waits a moment for more work, and neither a fork nor an end for it.

The tests let it wait for as long as nothing ends its wait, unless they say how long.
"""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import streamkit as sk
from streamkit._streams import host_queue, host_worker  # how long a worker waits has no name
from support.programs import needs_fork, python, run_program
from support.queues import LONG, eventually, within

pytestmark = pytest.mark.portable


@pytest.fixture(autouse=True)
def long_wait(monkeypatch):
    monkeypatch.setattr(host_worker, "_linger", 10 * LONG)
    yield
    gc.collect()  # a stream that a test has left would keep its worker


def worker_of(stream):
    """Have a worker of the stream run a function; return it once it waits."""
    seen = []
    stream.submit(lambda: seen.append(threading.current_thread()))
    stream.sync()
    assert rests(stream)
    return seen[0]


def ends(stream):
    """Whether the worker ends."""
    return eventually(lambda: stream._work.worker is None)


def rests(stream):
    """Whether all has run, so that the worker waits or ends."""
    return eventually(lambda: stream._work not in host_queue._working)


def test_it_runs_what_is_submitted_when_all_has_run(stream):
    first = worker_of(stream)
    assert [worker_of(stream) for _ in range(20)] == [first] * 20


def test_it_ends_when_nothing_comes_and_is_not_kept(stream, monkeypatch):
    monkeypatch.setattr(host_worker, "_linger", 0.001)
    first = worker_of(stream)
    assert eventually(lambda: not first.is_alive())
    assert worker_of(stream) is not first
    ended, first = weakref.ref(first), None
    assert eventually(lambda: (gc.collect(), ended())[1] is None)


def test_each_stream_has_its_own(stream, other):
    """What a function leaves in its thread, such as torch's grad mode, is in no other stream's."""
    assert worker_of(stream) is not worker_of(other)


def test_it_ends_as_soon_as_its_stream_is_dropped():
    stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
    dropped, kept = worker_of(stream), worker_of(other)
    del stream
    assert eventually(lambda: not dropped.is_alive())
    assert kept.is_alive()


def test_while_it_waits_it_keeps_nothing_that_it_ran_alive(stream):
    thing = threading.Event()
    alive = weakref.ref(thing)
    stream.submit(thing.set)
    worker = worker_of(stream)
    gc.disable()
    try:
        del thing
        assert eventually(lambda: alive() is None)
    finally:
        gc.enable()
    assert worker.is_alive()


@pytest.mark.parametrize("waits", [True, False])
def test_an_error_of_its_stream_keeps_neither_alive(monkeypatch, reported, waits):
    """The frames of the error are those of the worker too, which waits or has ended."""

    def fail():
        raise RuntimeError("mine")

    if not waits:
        monkeypatch.setattr(host_worker, "_linger", 0)
    stream = sk.new_stream("cpu")
    stream.submit(fail)
    assert rests(stream)
    assert waits or ends(stream)
    worker = stream._work.worker
    gc.disable()
    try:
        del stream
        assert eventually(lambda: reported)
        assert eventually(lambda: worker is None or not worker.is_alive())
    finally:
        gc.enable()


def test_what_comes_as_its_wait_ends_is_run(stream, monkeypatch):
    """It is submitted when no ring can end the wait any more, and before the worker ends."""
    seen = []

    class LateBell:
        def ring(self):
            pass

        def wait(self, timeout):
            if not seen:
                seen.append("waited")
                stream.submit(seen.append, threading.current_thread())
            return False

    monkeypatch.setattr(host_worker, "Bell", LateBell)
    first = worker_of(stream)
    assert eventually(lambda: len(seen) == 2)
    assert seen == ["waited", first]


@pytest.mark.parametrize("linger", [0, 1e-5, 1e-4])
def test_nothing_is_lost_whenever_its_wait_ends(stream, monkeypatch, eager_switching, linger):
    monkeypatch.setattr(host_worker, "_linger", linger)
    seen = []

    def work():
        for number in range(1000):
            stream.submit(seen.append, number)
            if number % 3:
                stream.sync()

    within(work, seconds=6 * LONG)
    within(stream.sync)
    assert seen == list(range(1000))


COUNT = """
import os, threading
counts = []
os.register_at_fork(before=lambda: counts.append(threading.active_count()))  # after later ones
"""
START = """
import os, sys, threading, warnings
import streamkit as sk
from streamkit._streams import host_queue, host_worker  # as above

host_worker._linger = {linger}
s = sk.new_stream("cpu")
s.submit(print, "x", flush=True)
s.sync()
while s._work in host_queue._working:
    pass
"""


def test_the_program_does_not_wait_for_it():
    done = run_program(START.format(linger=1000))
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


def test_at_the_end_of_the_interpreter_no_destructor_waits_for_it():
    """Daemon threads have stopped then, and none can be started."""
    program = """
import builtins
class Flush:
    def __del__(self, write=os.write):
        try:
            s.submit(int)
            s.sync()
        except RuntimeError:
            write(1, b"refused")
s.submit(int)
builtins.flush = Flush()
s.sync()
"""
    done = run_program(START.format(linger=1000) + program)
    assert (done.returncode, done.stdout) == (0, "x\nrefused")


@needs_fork
def test_a_fork_finds_no_thread_of_streams_that_are_gone():
    program = """
streams = [sk.new_stream("cpu") for _ in range(20)]
for one in streams:
    one.submit(int)
    one.sync()
del one, streams
child = os.fork()
if not child:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), counts)
"""
    assert python(COUNT + START.format(linger=1000) + program) == "x\n0 [1]\n"


@needs_fork
def test_a_fork_finds_no_thread_of_it_and_both_sides_go_on():
    """Of a fork beside threads Python warns from 3.12 on."""
    program = """
host_worker._LINGER = 1000
child, seen = os.fork(), []
if not child:
    s = sk.new_stream("cpu")
s.submit(seen.append, threading.current_thread())
s.sync(timeout=10)
workers = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else None
print(counts, len(seen), len(workers), ended, flush=True)
"""
    out = python(COUNT + START.format(linger=1000) + program)
    assert out == "x\n[1] 1 1 None\n[1] 1 1 0\n"


@needs_fork
def test_control_python_warns_of_a_fork_beside_the_worker():
    program = """
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    gate = threading.Event()
    s.submit(gate.wait)
    child = os.fork()
if child:
    gate.set()
    os.waitpid(child, 0)
    print(len(warned) == (sys.version_info >= (3, 12)))
"""
    assert python(START.format(linger=0.001) + program) == "x\nTrue\n"


class Waits:
    """Waits for its stream before it goes, as what frees memory does."""

    def __init__(self, stream, wait, seen):
        self.stream, self.wait, self.seen = stream, wait, seen

    def __call__(self):
        pass

    def __del__(self):
        self.wait(self.stream)
        self.seen.append(threading.current_thread().name)


def enter(stream):
    with stream:
        stream.submit(int)


def record(stream):
    stream.record().sync()


def poll(stream):
    assert stream.done


WAITS = [type(sk.default_stream("cpu")).sync, enter, record, poll]


@pytest.mark.parametrize("wait", WAITS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("is_argument", [True, False])
def test_a_destructor_that_the_worker_runs_may_wait_for_its_stream(
    stream, hold, reported, wait, is_argument
):
    gate, seen = hold(stream), []
    waits = Waits(stream, wait, seen)
    stream.submit(*((lambda _: None, waits) if is_argument else (waits,)))
    del waits
    gate.open()
    within(stream.sync)
    assert rests(stream)
    assert reported == []
    assert seen == [stream._work.name]


def test_a_destructor_between_two_items_may_wait_for_its_stream(stream, hold, reported):
    """As a collection of garbage runs it there."""
    gate, seen = hold(stream), []
    event = stream.record()
    waits = [Waits(stream, wait, seen) for wait in WAITS]
    event._mark.tell(waits.clear)  # what a mark tells is no function of the stream
    gate.open()
    within(stream.sync)
    assert reported == []
    assert seen == [stream._work.name] * len(WAITS)


@pytest.mark.parametrize("last", ["destructor", "worker"])
def test_a_destructor_in_a_circle_of_streams_is_refused(stream, other, hold, reported, last):
    """The stream cannot go on without its worker, so the destructor goes on instead."""
    gate, seen = hold(stream), []
    before = hold(other) if last == "worker" else gate
    event = stream.record()
    waits = [Waits(other, type(other).sync, seen)]
    event._mark.tell(waits.clear)
    stream.submit(seen.append, "stream")
    other.wait(stream)
    other.submit(seen.append, "other")
    gate.open()
    assert last == "destructor" or eventually(lambda: host_queue._blocked)
    before.open()
    within(other.sync)
    assert seen == ["stream", "other"]
    assert [type(error) for error, _ in reported] == [sk.errors.ScopeError]
