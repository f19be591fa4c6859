"""Threads that hold host streams and wait for one another in a circle: one of them is refused."""

from __future__ import annotations

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
def test_of_threads_that_enter_streams_in_a_circle_one_is_refused_by_name(count):
    streams = [sk.new_stream("cpu", name=f"of {number}") for number in range(count)]
    entered, seen, refused = threading.Barrier(count), [], []

    def work(number):
        threading.current_thread().name = f"thread {number}"
        first, second = streams[number], streams[(number + 1) % count]
        with first:
            entered.wait(LONG)
            try:
                with second:
                    assert sk.current_stream() is second
                    seen.append(number)
            except sk.errors.ScopeError as error:
                refused.append(str(error))
            assert sk.current_stream() is first

    for _ in range(20):
        go_on(count, work)
        assert len(seen) == count - 1
        (text,) = refused
        for number, stream in enumerate(streams):
            assert (
                f"host stream {stream.id} 'of {number}' runs in the thread 'thread {number}'"
                in text
            )
        for stream in streams:
            stream.sync(timeout=LONG)
        seen.clear()
        refused.clear()


@pytest.mark.parametrize("last", ["the body", "the other stream"])
def test_a_body_that_waits_for_a_stream_that_waits_for_it_is_refused(stream, other, hold, last):
    """The error comes to the body, also if the other stream's worker is the last to wait."""
    gate = hold(other)
    inside, waits, seen = threading.Event(), threading.Event(), []

    def body():
        with stream:
            inside.set()
            assert waits.wait(LONG)
            with pytest.raises(sk.errors.ScopeError, match="wait for one another"):
                stream.wait(other)
            seen.append("body")

    def beside():
        assert inside.wait(LONG)
        stream.submit(seen.append, "later")
        other.wait(stream)
        other.submit(seen.append, "after both")
        if last == "the body":
            gate.open()
            assert eventually(lambda: pending(other) == 2)
        waits.set()
        if last == "the other stream":
            assert eventually(lambda: pending(other) == 4)
            gate.open()
        other.sync()

    go_on(2, lambda number: (body, beside)[number]())
    stream.sync(timeout=LONG)
    assert seen == ["body", "later", "after both"]


@pytest.mark.parametrize("spin", [False, True])
def test_a_body_that_waits_for_an_event_behind_itself_is_refused(stream, spin):
    with stream:
        event = within(stream.record)
        with pytest.raises(sk.errors.ScopeError, match="wait for one another"):
            event.sync(spin=spin)
        assert not event.done
    event.sync(timeout=LONG)


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


@pytest.mark.parametrize("timed", ["the body", "the thread beside it"])
def test_a_wait_with_a_timeout_ends_a_circle_by_itself(stream, other, timed):
    """So nothing is refused: the other wait has its turn then."""
    inside, seen = threading.Barrier(2), []

    def wait(name, own, for_this):
        with own:
            inside.wait(LONG)
            try:
                for_this.sync(timeout=0.2 if name == timed else None)
            except TimeoutError:
                assert name == timed
            seen.append(name)

    both = ("the body", stream, other), ("the thread beside it", other, stream)
    go_on(2, lambda number: wait(*both[number]))
    assert seen[0] == timed
    assert len(seen) == 2


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
        except sk.errors.ScopeError as error:
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
    with pytest.raises(sk.errors.ScopeError, match="wait for one another"):
        within(stream.sync)
    with pytest.raises(sk.errors.ScopeError, match="wait for one another"):
        within(other.sync)  # which has waited for the function that failed
    within(other.sync)


# -- the futures of then ----------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["result", "exception"])
@pytest.mark.parametrize("waits", ["for the work before it", "for its function"])
def test_in_a_circle_with_a_future_of_then_one_is_refused(stream, other, ask, waits):
    entered, refused = threading.Barrier(2), []

    def asks():
        with stream:
            entered.wait(LONG)
            future = other.then(stream.sync if waits == "for its function" else int)
            try:
                found = getattr(future, ask)()
            except sk.errors.ScopeError as error:
                found = error
            if isinstance(found, sk.errors.ScopeError):  # of the wait, or the outcome
                refused.append("asks")

    def beside():
        if waits == "for its function":
            entered.wait(LONG)
            return
        with other:
            entered.wait(LONG)
            try:
                stream.record().sync()
            except sk.errors.ScopeError:
                refused.append("beside")

    for _ in range(20):
        go_on(2, lambda number: (asks, beside)[number]())
        assert len(refused) == 1
        refused.clear()


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
        with pytest.raises(sk.errors.ScopeError, match="'then' of host stream"):
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
