# ruff: noqa: PT012 - a launch is interrupted by a patch
"""Launches: what one costs, and that what a graph holds outlives the last of them."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import graphs  # its calls are interrupted
from streamkit._graphs import graph  # to be without a GIL
from streamkit._queues import ordering  # a capture begins in between
from support.emulated.captures import (  # noqa: F401 - a fixture
    capturing,
    fill,
    graph_writing_a_two,
    nothing_left,
    settle,
)
from support.gpu.raw import busy, check, destroy_stream, driver, make_stream
from support.interrupts import interrupt_everywhere
from support.queues import eventually

pytestmark = [pytest.mark.usefixtures("handles", "nothing_left"), pytest.mark.versions]


@pytest.fixture
def undo():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def captured(cells):
    """A graph that writes a 2 into a cell, and what tells whether something of it is kept."""
    cell = cells(1)
    g, seen = graph_writing_a_two(cell)
    return g, cell, seen


def end_of_a_capture(raw):
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))


def stays_until_open(gate, seen, wait=lambda: None):
    """Fail unless what a graph kept is there while the gate is closed, and then goes."""
    sk.new_stream()
    assert seen() is not None
    gate.open()
    wait()
    settle()
    assert seen() is None


# -- what it costs ----------------------------------------------------------------------------


def of_streamkit(warp):
    return sk.new_stream()


def of_warp(warp):
    return sk.wrap(warp.Stream("cuda:0"))


@pytest.mark.parametrize("has_gil", [True, False])  # else two threads could be in one generator
@pytest.mark.parametrize("make", [of_streamkit, of_warp], ids=lambda make: make.__name__)
def test_a_steady_launch_is_one_question_and_one_launch(warp, captured, monkeypatch, make, has_gil):
    monkeypatch.setattr(graph, "_has_gil", lambda: has_gil)
    calls = {"cuStreamIsCapturing": 1, "cuGraphLaunch": 1}
    calls |= {} if has_gil else {"cuCtxGetCurrent": 1}
    g, cell, _ = captured
    stream = make(warp)
    g.launch(stream)
    emulator.reset_calls()
    g.launch(stream)
    assert emulator.all_calls() == calls
    with stream:
        emulator.reset_calls()
        g.launch()
        assert emulator.all_calls() == calls
    stream.sync()
    assert cell.read() == 2


def test_a_launch_on_another_stream_needs_no_event(captured):
    g, _, _ = captured
    streams = sk.new_stream(), sk.new_stream()
    for stream in streams:
        g.launch(stream)
    emulator.reset_calls()
    for stream in streams:
        g.launch(stream)
    calls = emulator.all_calls()
    assert calls["cuGraphLaunch"] == 2
    assert not {"cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"} & set(calls)


@pytest.mark.parametrize("of", ["a bare handle", "the default stream", "the per-thread one"])
def test_a_stream_that_can_die_has_an_event_for_each_launch(captured, undo, of):
    g, _, _ = captured
    if of == "a bare handle":
        raw = make_stream()
        undo.callback(destroy_stream, raw)
        stream = sk.from_handle(raw)
    else:
        stream = sk.default_stream(per_thread=of != "the default stream")
    g.launch(stream)
    emulator.reset_calls()
    for _ in range(3):
        g.launch(stream)
    assert emulator.calls("cuEventRecord") == 3
    assert emulator.calls("cuEventCreate") <= 1  # there are two, by turns
    stream.sync()
    g.close()


# -- refused, or made in another way ----------------------------------------------------------


@pytest.mark.parametrize("launches", [0, 2])
@pytest.mark.parametrize("closed", ["graph", "stream"])
def test_what_is_closed_is_not_launched(captured, launches, closed):
    g, _, _ = captured
    stream = sk.new_stream()
    for _ in range(launches):
        g.launch(stream)
    (g if closed == "graph" else stream).close()
    with pytest.raises(sk.errors.StreamClosedError):
        g.launch(stream)


@pytest.mark.parametrize("launches", [0, 1])  # a launch of the second kind makes its calls itself
def test_an_error_that_comes_once_is_raised_and_the_graph_stays(captured, launches):
    g, cell, _ = captured
    stream = sk.new_stream()
    for _ in range(launches):
        g.launch(stream)
    stream.sync()
    cell.write(1)
    emulator.fail("cuGraphLaunch", driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(sk.errors.DriverError, match="OUT_OF_MEMORY"):
        g.launch(stream)
    stream.sync()
    assert cell.read() == 1
    g.launch(stream)
    stream.sync()
    assert cell.read() == 2


@pytest.mark.parametrize("launches", [1, 2])
def test_where_the_driver_wants_the_context_it_is_made_current(captured, launches):
    g, cell, _ = captured
    stream = sk.new_stream()
    for _ in range(launches):
        g.launch(stream)
    stream.sync()
    cell.write(1)
    emulator.reset_calls()
    emulator.fail("cuGraphLaunch", driver.CUresult.CUDA_ERROR_INVALID_CONTEXT)
    g.launch(stream)
    stream.sync()
    assert cell.read() == 2
    assert emulator.calls("cuGraphLaunch") == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_launches_nothing(captured):
    g, _, _ = captured
    stream = sk.new_stream()
    for _ in range(2):
        g.launch(stream)
    stream.sync()
    emulator.reset_calls()
    child = os.fork()
    if not child:
        status = 1
        try:
            for call in (g.launch, g.close):
                with pytest.raises(sk.errors.ForkedProcessError):
                    call()
            with pytest.raises(sk.errors.ForkedProcessError):
                g.launch(stream)
            status = bool(emulator.all_calls())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    g.launch(stream)


def by_name(g, stream):
    g.launch(stream)


def in_its_scope(g, stream):
    with sk.use(stream):
        g.launch()


@pytest.mark.parametrize("launch", [by_name, in_its_scope], ids=lambda launch: launch.__name__)
@pytest.mark.parametrize("whose", ["of StreamKit", "of others", "of the same stream"])
def test_a_launch_inside_another_capture_is_refused_and_that_one_stays_valid(
    captured, cells, launch, whose
):
    g, cell, _ = captured
    other = cells(1)
    stream = g.stream if whose == "of the same stream" else sk.new_stream(nonblocking=True)
    if whose == "of others":
        g.launch(stream)  # which makes it the steady one
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
        with pytest.raises(sk.errors.CaptureError, match="Call the function itself"):
            launch(g, stream)
        assert capturing(stream.handle) == 1
        end_of_a_capture(stream.handle)
    else:
        with sk.capture(stream) as outer:
            with pytest.raises(sk.errors.CaptureError, match="Call the function itself"):
                launch(g, stream)
            fill(other, 3, stream.handle)
        assert outer.nodes == 1
        outer.launch(stream)
    g.launch(stream)
    stream.sync()
    assert (cell.read(), other.read()) == (2, 1 if whose == "of others" else 3)


# -- what a graph holds outlives its launches -------------------------------------------------


@pytest.mark.parametrize("launches", [1, 3])
def test_what_a_graph_kept_goes_once_its_last_launch_is_done(captured, gate, launches):
    g, cell, seen = captured
    stream = sk.new_stream(nonblocking=True)
    g.launch(stream)
    stream.sync()
    gate.hold(stream.handle)
    for _ in range(launches):
        g.launch(stream)
    handle = stream.handle
    del stream
    g.close()
    del g
    stays_until_open(gate, seen, lambda: check(driver.cuStreamSynchronize(handle)))
    assert cell.read() == 2


def test_the_last_of_two_streams_tells_the_end_of_both(captured, gate):
    """CUDA lets the run on the second wait for that on the first."""
    g, _, seen = captured
    first, second = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    gate.hold(first.handle)
    g.launch(first)
    g.launch(second)
    assert not eventually(lambda: not busy(second.handle), seconds=0.2)
    g.close()
    stays_until_open(gate, seen, second.sync)


def test_a_stream_that_nobody_holds_may_die_before_the_graph(captured, gate):
    """``handles`` notices the use of a dead one."""
    g, _, seen = captured
    raw = make_stream()
    gate.hold(raw)
    g.launch(sk.from_handle(raw))
    gc.collect()
    destroy_stream(raw)
    g.close()
    stays_until_open(gate, seen)


def test_a_graph_given_up_while_its_stream_captures_goes_later(captured):
    g, _, seen = captured
    stream = sk.new_stream(nonblocking=True)
    g.launch(stream)
    stream.sync()
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(2)))
    g.close()
    sk.new_stream()
    assert seen() is not None
    assert capturing(stream.handle) == 1
    end_of_a_capture(stream.handle)
    settle()
    assert seen() is None


def test_a_capture_that_begins_while_the_end_is_marked_is_not_asked(captured, gate, monkeypatch):
    g, _, seen = captured
    stream, record = sk.new_stream(nonblocking=True), ordering.mark
    gate.hold(stream.handle)
    g.launch(stream)

    def then_another_begins(event, queue):
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(2)))
        record(event, queue)

    with monkeypatch.context() as patch:
        patch.setattr(ordering, "mark", then_another_begins)
        g.close()
    sk.new_stream()
    assert capturing(stream.handle) == 1
    end_of_a_capture(stream.handle)
    stays_until_open(gate, seen, stream.sync)


def test_a_steady_launch_destroys_what_waits_for_its_end(captured, cells, gate):
    g, _, seen = captured
    stream, other, cell = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True), cells(1)
    with sk.capture() as later:
        fill(cell, 3, later.stream.handle)
    later.launch(other)
    gate.hold(stream.handle)
    g.launch(stream)
    g.close()
    assert seen() is not None
    gate.open()
    check(driver.cuStreamSynchronize(stream.handle))
    later.launch(other)
    assert seen() is None
    other.sync()


def mortal(undo):
    raw = make_stream(nonblocking=True)
    undo.callback(destroy_stream, raw)
    return sk.from_handle(raw)


@pytest.mark.parametrize("is_queued", [True, False])
@pytest.mark.parametrize("lives", [True, False])
def test_an_interrupted_launch_keeps_what_it_and_the_run_before_use(
    captured, gate, monkeypatch, undo, *, lives, is_queued
):
    g, cell, seen = captured
    first = sk.new_stream(nonblocking=True)
    stream = sk.new_stream(nonblocking=True) if lives else mortal(undo)
    launch = graphs.launch

    def interrupted(*arguments):
        if is_queued:
            launch(*arguments)
        raise KeyboardInterrupt

    if is_queued:
        gate.hold(stream.handle)
    else:
        gate.hold(first.handle)
        g.launch(first)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(graphs, "launch", interrupted)
        g.launch(stream)
    g.close()
    stays_until_open(gate, seen, (stream if is_queued else first).sync)
    assert cell.read() == 2


def test_threads_launch_one_graph_until_it_is_closed(captured):
    """A launch is made with a living executable, or refused: ``handles`` would notice another."""
    g, _, seen = captured
    ready, ends = threading.Barrier(3), []

    def launch_on_and_on():
        stream = sk.new_stream(nonblocking=True)
        g.launch(stream)
        ready.wait()
        while True:
            try:
                g.launch(stream)
            except sk.errors.StreamClosedError as error:
                ends.append(error)
                return

    threads = [threading.Thread(target=launch_on_and_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    g.close()
    for thread in threads:
        thread.join()
    assert len(ends) == 2
    settle()
    assert seen() is None


# -- one at a time ----------------------------------------------------------------------------


@pytest.fixture
def during(captured, monkeypatch):
    """Have a function called in the next steady launch, when the driver is about to be called."""
    g, _, _ = captured
    stream, calls = sk.new_stream(nonblocking=True), []

    def run(call, *arguments):
        if calls:
            calls.pop()()
        return call(*arguments)

    prepare = graphs.loader.without_gil
    monkeypatch.setattr(
        graphs.loader, "without_gil", lambda name: functools.partial(run, prepare(name))
    )
    g.launch(stream)

    def launch(call):
        calls.append(call)
        g.launch(stream)
        assert not calls

    return launch


def test_a_value_error_of_a_signals_handler_is_not_taken_for_another_threads_launch(during):
    def late():
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        during(late)


def of_close(g, cell):
    g.close()
    sk.new_stream()


def of_launch(g, cell):
    g.launch(sk.new_stream(nonblocking=True))


def of_upload(g, cell):
    g.upload()


@pytest.mark.parametrize("use", [of_close, of_launch, of_upload])
def test_what_uses_the_executable_waits_for_another_threads_launch(captured, during, use):
    g, cell, _ = captured
    inside, may_go = threading.Event(), threading.Event()

    def pause():
        inside.set()
        assert may_go.wait(30)

    launching = threading.Thread(target=during, args=(pause,))
    launching.start()
    assert inside.wait(30)
    using = threading.Thread(target=use, args=(g, cell))
    using.start()
    using.join(0.1)
    assert using.is_alive()
    may_go.set()
    for thread in (launching, using):
        thread.join(30)
        assert not thread.is_alive()


def test_an_interrupt_of_a_steady_launch_holds_up_no_other_thread(captured):
    g, cell, _ = captured
    stream, others = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    g.launch(stream)
    interrupted = []
    for nth in interrupt_everywhere(lambda: g.launch(stream)):
        interrupted.append(nth)
        launching = threading.Thread(target=g.launch, args=(others,), daemon=True)
        launching.start()
        launching.join(30)
        assert not launching.is_alive(), nth
        g.launch(stream)  # which makes it the steady one
    assert len(interrupted) >= 3  # both calls of the driver are among them
    cell.write(1)
    g.launch(stream)
    stream.sync()
    assert cell.read() == 2
