"""Threads that hold host streams and wait for one another go on, as on CUDA."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

import streamkit as sk
from streamkit._streams import host_queue  # for whom the process waits
from support.programs import needs_fork, run_program
from support.queues import LONG, eventually, pending, together, within


def go_on(count, work):
    """Run work(number) in this many threads at once, and fail if they hang."""
    within(lambda: together(count, work), seconds=2 * LONG)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_threads_that_enter_streams_in_a_circle_go_on(count):
    streams = [sk.new_stream("cpu") for _ in range(count)]
    entered, seen = threading.Barrier(count), []

    def work(number):
        first, second = streams[number], streams[(number + 1) % count]
        with first:
            entered.wait(LONG)
            with second:
                assert sk.current_stream() is second
                seen.append(number)
            assert sk.current_stream() is first

    for _ in range(20):
        go_on(count, work)
    for stream in streams:
        stream.sync(timeout=LONG)
    assert sorted(seen) == sorted(list(range(count)) * 20)


def test_in_a_circle_one_streams_bodies_never_overlap(stream, other):
    """What the first body waits for is there while the second one is still in its stream."""
    inside, second, waits, went_on = (threading.Event() for _ in range(4))
    seen = []

    def body():
        with stream:
            inside.set()
            assert waits.wait(LONG)
            stream.wait(other)
            seen.append("first")
            went_on.set()

    def later():
        assert inside.wait(LONG)
        assert eventually(lambda: pending(stream) == 2)  # the first body, and the mark behind it
        with stream:
            seen.append("second")
            second.set()
            assert eventually(lambda: pending(other) == 0)
            went_on.wait(0.2)  # in vain
            seen.append("end of the second")

    def beside():
        assert inside.wait(LONG)
        other.wait(stream)
        other.submit(second.wait, LONG)
        assert eventually(lambda: pending(stream) == 3)
        waits.set()

    go_on(3, lambda number: (body, later, beside)[number]())
    stream.sync(timeout=LONG)
    assert seen == ["second", "end of the second", "first"]


@pytest.mark.parametrize("last", ["the body", "the other stream"])
def test_a_body_that_waits_for_a_stream_that_waits_for_it_goes_on(stream, other, hold, last):
    """What the other thread gave to the body's stream runs first, as on CUDA."""
    gate = hold(other)
    inside, waits, seen = threading.Event(), threading.Event(), []

    def body():
        with stream:
            inside.set()
            assert waits.wait(LONG)
            stream.wait(other)
            seen.append("body")

    def beside():
        assert inside.wait(LONG)
        stream.submit(seen.append, "meanwhile")
        other.wait(stream)
        if last == "the body":
            gate.open()
            assert eventually(lambda: pending(other) == 1)
        waits.set()
        if last == "the other stream":
            assert eventually(lambda: pending(other) == 3)
            gate.open()
        other.sync()

    go_on(2, lambda number: (body, beside)[number]())
    stream.sync(timeout=LONG)
    assert seen == ["meanwhile", "body"]


@pytest.mark.parametrize("spin", [False, True])
def test_a_body_that_waits_for_an_event_behind_itself_goes_on(stream, spin):
    with stream:
        event = within(stream.record)
        assert not event.done
        within(lambda: None)
        event.sync(spin=spin)
        assert event.done


def test_a_body_without_a_circle_still_holds_its_stream(stream, other, hold):
    """It waits for another stream, which somebody holds: that is no circle."""
    gate, seen = hold(other), []

    def body():
        with stream:
            stream.wait(other)
            seen.append("body")

    thread = threading.Thread(target=body)
    thread.start()
    assert eventually(lambda: pending(other) == 2)
    stream.submit(seen.append, "later")
    with pytest.raises(TimeoutError):
        stream.sync(timeout=0.05)
    assert not seen
    gate.open()
    thread.join(LONG)
    stream.sync(timeout=LONG)
    assert seen == ["body", "later"]


def test_a_timeout_in_a_circle_waits_no_longer(stream, other):
    inside = threading.Event()

    def body():
        with stream:
            inside.set()
            assert eventually(lambda: pending(other) == 1)
            other.sync(timeout=6 * LONG)

    def beside():
        assert inside.wait(LONG)
        other.wait(stream)

    go_on(2, lambda number: (body, beside)[number]())
    stream.sync(timeout=LONG)


def test_functions_that_wait_for_one_another_are_refused_by_name():
    """No function can stop in the middle for another one of its stream."""
    a, b = sk.new_stream("cpu", name="first"), sk.new_stream("cpu", name="second")
    both = threading.Barrier(2)

    def work(other):
        both.wait(LONG)
        other.sync()

    a.submit(work, b)
    b.submit(work, a)
    errors = []
    for stream in (a, b):
        try:
            stream.sync(timeout=LONG)
        except sk.ScopeError as error:
            errors.append(str(error))
    assert errors
    for stream in (a, b):
        assert f"{stream.id} {stream.name!r}" in errors[0]
        assert f"'streamkit-{stream.id}'" in errors[0]
    for stream in (a, b):
        stream.submit(int)
        stream.sync(timeout=LONG)


def test_a_function_that_waits_for_a_stream_that_waits_for_it_is_refused(stream, other):
    waits = threading.Event()

    def work():
        assert waits.wait(LONG)
        other.sync()

    stream.submit(work)
    other.wait(stream)
    waits.set()
    with pytest.raises(sk.ScopeError, match="wait for one another"):
        within(stream.sync)
    with pytest.raises(sk.ScopeError, match="wait for one another"):
        within(other.sync)  # which has waited for the function that failed
    within(other.sync)


# -- the futures of then ----------------------------------------------------------------------


ASKS = [
    lambda future: future.result(6 * LONG),
    lambda future: future.result(),
    lambda future: future.exception(),
]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("waits", ["for the work before it", "for its function"])
def test_a_thread_that_asks_for_a_future_of_then_in_a_circle_goes_on(stream, other, ask, waits):
    entered, seen = threading.Barrier(2), []

    def asks():
        with stream:
            entered.wait(LONG)
            if waits == "for its function":
                ask(other.then(stream.sync))
            else:
                ask(other.then(int))
            seen.append("asks")

    def beside():
        if waits == "for its function":
            entered.wait(LONG)
        else:
            with other:
                entered.wait(LONG)
                stream.record().sync()
        seen.append("beside")

    for _ in range(20):
        go_on(2, lambda number: (asks, beside)[number]())
    assert sorted(seen) == ["asks"] * 20 + ["beside"] * 20


def test_functions_of_then_that_wait_for_one_another_are_refused(stream, other):
    both, futures = threading.Barrier(2), {}

    def ask(name):
        both.wait(LONG)
        return futures[name].result()

    with stream, other:  # until both futures are known
        futures["stream"] = stream.then(ask, "other")
        futures["other"] = other.then(ask, "stream")
    assert len(futures) == 2
    for future in futures.values():
        with pytest.raises(sk.ScopeError, match="'then' of host stream"):
            within(future.result)


@pytest.mark.parametrize("function", [int, lambda: 1 / 0])
def test_a_function_of_then_that_has_ended_is_no_longer_what_runs(stream, function):
    """Or another thread, which gets the number of the one that called it, would seem to run it."""
    stream.then(function).exception(LONG)
    queue = stream._after
    assert eventually(lambda: (queue.thread, queue.function) == (0, None))


# -- where another thread comes between -------------------------------------------------------


@pytest.fixture
def at_each_line():
    """Have a function called with the name of each of the package's functions, at each line.

    The threads that start meanwhile call it.
    """

    def begin(call):
        def trace(frame, event, value):
            if "host_" not in frame.f_code.co_filename:
                return None
            call(frame.f_code.co_qualname)
            return trace

        threading.settrace(trace)

    before = threading.gettrace()
    yield begin
    threading.settrace(before)
    host_queue._working.clear()  # if one hangs, it has failed, and later tests should not hang too


def test_a_thread_whose_turn_begins_as_it_begins_to_wait_goes_on(stream, at_each_line):
    """It holds the queue by then, and so could seem to wait for itself."""
    begins, goes_on = threading.Event(), threading.Event()

    def pause(name):
        if name == "_wait":
            assert begins.wait(LONG)
        elif name == "Turn.__call__" and stream._work.turn and not begins.is_set():
            begins.set()
            goes_on.wait(0.2)  # in vain, and the other thread is about to wait by then

    def body():
        with stream:
            goes_on.set()

    at_each_line(pause)
    within(body)
    assert begins.is_set()


def test_a_wait_that_ends_as_its_circle_is_opened_gets_its_turn_back(stream, other, at_each_line):
    """The thread does not go on inside its stream while the other one takes it from there."""
    inside, opens, ended, taken = (threading.Event() for _ in range(4))
    seen = []

    def pause(name):
        if name == "WorkQueue.suspend_turn" and not opens.is_set():
            opens.set()
            ended.wait(1)  # in vain, and that wait's time is over by then

    def body():
        with stream:
            assert inside.wait(LONG)
            with contextlib.suppress(TimeoutError):
                other.sync(timeout=0.3)
            ended.set()
            seen.append("goes on")
            taken.wait(0.2)  # in vain, unless the other body came first
            seen.append("ends")

    def beside():
        with other:
            inside.set()
            assert eventually(lambda: pending(other) == 2)
            with stream:
                seen.append("beside")
                taken.set()

    at_each_line(pause)
    go_on(2, lambda number: (body, beside)[number]())
    assert seen.index("ends") == seen.index("goes on") + 1


HANDLER = """
import signal, threading, time
import streamkit as sk

stream, other, opened = sk.new_stream("cpu"), sk.new_stream("cpu"), threading.Event()
stream.submit(opened.wait)

def handle(*_):
    opened.set()
    {waits}
    print("handled")

def send():
    while len(stream._work._pending) < 2:  # what holds it, and the turn
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

signal.signal(signal.SIGALRM, handle)
threading.Thread(target=send).start()
with stream:
    print(sk.current_stream() is stream)
stream.submit(print, "later")
stream.sync(timeout=10)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends itself a signal")
@pytest.mark.parametrize(
    "waits",
    [
        "stream.sync()",
        "stream.record().sync(timeout=10)",
        "other.wait(stream); other.sync()",
        "stream.then(int).result()",
        "with stream: stream.submit(int)",
    ],
)
def test_a_handler_that_waits_while_its_thread_enters_the_stream_goes_on(waits):
    """The turn comes while the thread is in the handler, and so would wait for itself."""
    done = run_program(HANDLER.format(waits=waits))
    assert (done.returncode, done.stdout) == (0, "handled\nTrue\nlater\n"), done.stderr


@needs_fork
def test_a_forked_child_has_none_of_its_parents_waits():
    """Where its threads have the numbers of the parent's, they would seem to be in circles."""
    done = run_program("""
import os, threading, time
import streamkit as sk
from streamkit._streams import host_queue  # who waits for which queue

stream, opened = sk.new_stream("cpu"), threading.Event()
stream.submit(opened.wait)
waits = threading.Thread(target=stream.sync)
waits.start()
while not host_queue._blocked:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    os._exit(len(host_queue._blocked))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(host_queue._blocked))
opened.set()
waits.join()
""")
    assert done.stdout == "0 1\n", done.stderr
