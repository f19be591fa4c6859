# ruff: noqa: PT012, SIM117 - what a capture does is in its block
"""New work in an old graph: in place or in a new executable, and the old one whole if it fails."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import graphs  # its calls are interrupted
from streamkit._graphs import capture, disposal  # one is interrupted, the other let go at once
from support.emulated.captures import (  # noqa: F401 - a fixture
    capturing,
    fill,
    graph_writing_a_two,
    nothing_left,
    settle,
)
from support.emulated.state_snapshot import alive
from support.gpu.raw import busy, check, driver
from support.keepalive import Thing
from support.queues import eventually, within

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")


@pytest.fixture
def one(cells):
    return cells(1)


@pytest.fixture
def two(cells):
    return cells(1)


@pytest.fixture
def old(one):
    """A graph that writes a 2 into ``one``, and what tells whether something of it is kept."""
    return graph_writing_a_two(one)


def run(g, *cells):
    for cell in cells:
        cell.write(1)
    g.launch(g.stream)
    g.stream.sync()
    return [cell.read() for cell in cells]


def same_nodes(g, cell):
    fill(cell, 3, g.stream.handle)


def more_nodes(g, cell):
    fill(cell, 2, g.stream.handle)
    fill(cell, 3, g.stream.handle)


def another_kind(g, cell):
    fill(cell, 3, g.stream.handle)
    g.stream.record(sk.new_event(), external=True)


def memory(g, cell):
    fill(cell, 3, g.stream.handle)
    pointer = check(driver.cuMemAllocAsync(4, g.stream.handle))
    check(driver.cuMemFreeAsync(pointer, g.stream.handle))


WORK = {
    same_nodes: True,
    more_nodes: False,
    another_kind: False,
    memory: False,
}


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_later_launches_do_the_new_work(old, one, two, work):
    g, _ = old
    assert g.updated_in_place is None
    assert run(g, one, two) == [2, 1]
    executables, made = emulator.live("executables"), emulator.live("graphs")
    emulator.reset_calls()
    with g.update() as same:
        assert same is g
        work(g, two)
        assert g.stream.is_capturing
        nodes = g.nodes
    assert g.updated_in_place is WORK[work]
    assert emulator.calls("cuGraphInstantiateWithFlags") == (not WORK[work])
    assert run(g, one, two) == [1, 3]
    assert g.nodes == nodes
    assert g.to_dot().count("label") == nodes
    settle()
    assert (emulator.live("executables"), emulator.live("graphs")) == (executables, made)
    with g.update():
        same_nodes(g, one)
    assert g.updated_in_place is WORK[work]
    assert run(g, one, two) == [3, 1]
    g.close()
    settle()
    assert emulator.live("executables") == executables - 1


# -- a failure leaves the old graph -----------------------------------------------------------


def by_the_block(g, cell):
    fill(cell, 3, g.stream.handle)
    raise KeyError


def broken(g, cell):
    fill(cell, 3, g.stream.handle)
    driver.cuStreamQuery(g.stream.handle)


def empty(g, cell):
    pass


def unjoined(g, cell):
    side = sk.new_stream(nonblocking=True)
    side.wait(g.stream)
    fill(cell, 3, side.handle)


def out_of_memory(g, cell):
    more_nodes(g, cell)
    emulator.fail("cuGraphInstantiateWithFlags", 2)


def neither_updated_nor_made(g, cell):
    same_nodes(g, cell)
    emulator.fail("cuGraphExecUpdate_v2", 999)
    emulator.fail("cuGraphInstantiateWithFlags", 2)


def not_ended(g, cell):
    same_nodes(g, cell)
    emulator.fail("cuStreamEndCapture", 999)


FAILURES = {
    by_the_block: KeyError,
    broken: sk.CaptureError,
    empty: sk.CaptureError,
    unjoined: sk.CaptureError,
    out_of_memory: sk.DriverError,
    neither_updated_nor_made: sk.DriverError,
    not_ended: sk.DriverError,
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_after_a_failure_the_graph_is_what_it_was(old, one, two, failure):
    g, seen = old
    new = Thing()
    dropped = weakref.ref(new)
    executables, made = emulator.live("executables"), emulator.live("graphs")
    with contextlib.suppress(FAILURES[failure]):
        with g.update():
            g.keep(new)
            failure(g, two)
        pytest.fail("the update did not fail")
    del new
    gc.collect()
    assert dropped() is None
    assert seen() is not None
    assert g.updated_in_place is None
    assert not g.stream.is_capturing
    assert (emulator.live("executables"), emulator.live("graphs")) == (executables, made)
    assert run(g, one, two) == [2, 1]
    with g.update():
        same_nodes(g, two)
    assert run(g, one, two) == [1, 3]


def interrupted_update(patch):
    update = graphs.update

    def then_interrupted(*arguments):
        patch.undo()
        update(*arguments)
        raise KeyboardInterrupt

    patch.setattr(graphs, "update", then_interrupted)


def interrupted_end(patch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    patch.setattr(capture, "OwnedGraph", interrupted)


@pytest.mark.parametrize("work", [same_nodes, more_nodes], ids=lambda work: work.__name__)
@pytest.mark.parametrize(
    "interrupt", [interrupted_update, interrupted_end], ids=lambda step: step.__name__
)
def test_an_interrupt_leaves_the_old_work(old, one, two, interrupt, work):
    g, seen = old
    executables, made = emulator.live("executables"), emulator.live("graphs")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch)
        with g.update():
            work(g, two)
    assert (emulator.live("executables"), emulator.live("graphs")) == (executables, made)
    assert seen() is not None
    assert run(g, one, two) == [2, 1]


def test_a_failed_update_that_changed_the_executable_is_undone(old, one, two, monkeypatch):
    """CUDA does not say that an update that it refuses has changed nothing."""
    g, _ = old
    update = graphs.update

    def refused(*arguments):
        update(*arguments)
        monkeypatch.undo()
        return False

    monkeypatch.setattr(graphs, "update", refused)
    emulator.fail("cuGraphInstantiateWithFlags", 2)
    with pytest.raises(sk.DriverError):
        with g.update():
            same_nodes(g, two)
    assert run(g, one, two) == [2, 1]


@pytest.mark.parametrize("code", [1, 910, 999])
def test_where_cuda_fails_to_update_a_new_executable_does_the_work(old, one, two, gate, code):
    """Whatever it answers, and while the old one runs: the capture is whole."""
    g, seen = old
    executables = emulator.live("executables")
    gate.hold(g.stream.handle)
    g.launch(g.stream)
    emulator.fail("cuGraphExecUpdate_v2", code)
    with sk.use(sk.new_stream()), g.update():
        same_nodes(g, two)
    assert g.updated_in_place is False
    assert seen() is not None
    g.launch(g.stream)
    gate.open()
    g.stream.sync()
    assert (one.read(), two.read()) == (2, 3)
    with g.update():
        same_nodes(g, one)
    assert g.updated_in_place is True
    assert run(g, one, two) == [3, 1]
    settle()
    assert emulator.live("executables") == executables


def test_an_executable_that_cannot_be_put_back_is_made_anew(old, one, two):
    g, seen = old
    executables, made = emulator.live("executables"), emulator.live("graphs")

    def interrupted(*arguments):
        emulator.fail("cuGraphExecUpdate_v2", 999)  # the next one, which would put it back
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(capture, "OwnedGraph", interrupted)
        with g.update():
            same_nodes(g, two)
    assert (emulator.live("executables"), emulator.live("graphs")) == (executables, made)
    assert seen() is not None
    assert run(g, one, two) == [2, 1]
    with g.update():
        same_nodes(g, two)
    assert g.updated_in_place is True
    assert run(g, one, two) == [1, 3]


# -- while launches are queued ----------------------------------------------------------------


@pytest.mark.parametrize("work", [same_nodes, more_nodes], ids=lambda work: work.__name__)
def test_launches_already_made_keep_the_old_work_and_what_it_uses(old, one, two, gate, work):
    g, seen = old
    new = Thing()
    kept = weakref.ref(new)
    gate.hold(g.stream.handle)
    g.launch(g.stream)
    with sk.use(sk.new_stream()):  # not where the gate is
        with g.update():
            work(g, two)
            g.keep(new)
    del new
    g.launch(g.stream)
    sk.new_stream()
    assert seen() is not None
    gate.open()
    g.stream.sync()
    assert (one.read(), two.read()) == (2, 3)
    settle()
    assert seen() is None
    assert kept() is not None
    g.close()
    settle()
    assert kept() is None


@pytest.mark.parametrize("work", [same_nodes, more_nodes], ids=lambda work: work.__name__)
def test_runs_of_the_new_work_come_after_those_of_the_old(old, two, gate, work):
    g, _ = old
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    g.launch(stream)
    with g.update():
        work(g, two)
    g.launch(other)
    assert not eventually(lambda: not busy(other.handle), seconds=0.2)
    gate.open()
    other.sync()
    assert two.read() == 3


def test_control_runs_of_another_graph_do_not(old, two, gate):
    g, _ = old
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    with sk.capture() as another:
        fill(two, 3, another.stream.handle)
    gate.hold(stream.handle)
    g.launch(stream)
    another.launch(other)
    other.sync()
    assert busy(stream.handle)
    gate.open()
    stream.sync()


def test_a_graph_that_is_closed_after_an_update_keeps_what_the_old_run_uses(old, two, gate):
    g, seen = old
    stream = sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    g.launch(stream)
    with g.update():
        same_nodes(g, two)
    g.close()
    disposal.sweep()
    assert seen() is not None
    gate.open()
    stream.sync()
    settle()
    assert seen() is None


def test_other_threads_launch_the_old_work_while_the_block_runs(old, one, two):
    g, _ = old
    stream = sk.new_stream(nonblocking=True)

    def launch():
        g.launch(stream)
        stream.sync()

    with g.update():
        same_nodes(g, two)
        within(launch)
        assert g.nodes == 1
        assert g.to_dot().startswith("digraph")
    assert (one.read(), two.read()) == (2, 1)
    assert run(g, one, two) == [1, 3]


def test_what_is_kept_later_is_kept_by_the_new_work(old, two):
    g, seen = old
    later = Thing()
    kept = weakref.ref(later)
    with g.update():
        same_nodes(g, two)
    g.keep(later)
    del later
    settle()
    assert seen() is None
    assert kept() is not None
    g.close()
    settle()
    assert kept() is None


# -- refused ----------------------------------------------------------------------------------


def test_a_closed_graph_is_not_updated(old):
    g, _ = old
    g.close()
    with pytest.raises(sk.StreamClosedError), g.update():
        pass


def test_a_graph_is_not_updated_inside_a_capture(old, one, two):
    g, _ = old
    with sk.capture() as outer:
        fill(two, 3, outer.stream.handle)
        with pytest.raises(sk.CaptureError, match="captures already"), g.update():
            pass
        with pytest.raises(sk.CaptureError, match="still being captured"), outer.update():
            pass
        assert capturing(outer.stream.handle) == 1
    assert run(g, one, two) == [2, 1]
    assert run(outer, one, two) == [1, 3]


def test_after_a_refused_update_the_graph_can_be_updated_and_closed(old, one, two):
    g, _ = old
    with sk.capture() as outer:
        fill(two, 2, outer.stream.handle)
        with pytest.raises(sk.CaptureError, match="captures already"), g.update():
            pass
    with g.update():
        same_nodes(g, one)
    assert run(g, one) == [3]
    with sk.capture() as outer:
        fill(two, 2, outer.stream.handle)
        with pytest.raises(sk.CaptureError, match="captures already"), g.update():
            pass
    g.close()
    assert g.closed


def test_one_update_at_a_time(old, two):
    g, _ = old

    def update():
        with pytest.raises(sk.CaptureError, match="still being captured"), g.update():
            pass

    with g.update():
        same_nodes(g, two)
        update()
        thread = threading.Thread(target=update)
        thread.start()
        thread.join()
        with pytest.raises(sk.CaptureError, match="still being captured"):
            g.close()
        assert g.stream.is_capturing
    assert run(g, two) == [3]


def test_meanwhile_a_launch_on_the_stream_that_captures_the_update_says_so(old, two):
    g, _ = old
    with ThreadPoolExecutor(1) as threads, g.update():
        same_nodes(g, two)
        with pytest.raises(sk.CaptureError, match="is being updated there"):
            threads.submit(g.launch).result()


def test_an_update_that_was_not_entered_does_nothing(old, one):
    g, _ = old
    with pytest.warns(RuntimeWarning, match="never entered"):
        g.update()
    assert run(g, one) == [2]
    g.close()


def test_a_graph_whose_stream_was_closed_stays_as_it_is(one):
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    with sk.capture(stream) as g:
        fill(one, 2, stream.handle)
    stream.close()
    with pytest.raises(sk.StreamClosedError), g.update():
        pass
    g.launch(other)
    other.sync()
    assert one.read() == 2


# -- the rest ---------------------------------------------------------------------------------


def test_what_a_graph_was_does_not_hold_what_it_was_before(old, two):
    g, _ = old
    first = weakref.ref(g._owned)
    for _ in range(3):
        with g.update():
            same_nodes(g, two)
    settle()
    assert first() is None


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_updates_leave_nothing_alive(old, two, work):
    g, _ = old

    def once():
        with g.update():
            work(g, two)
        g.launch(g.stream)
        g.stream.sync()
        with g.update():
            same_nodes(g, two)
        g.launch(g.stream)
        g.stream.sync()
        settle()

    once()
    gc.collect()
    settle()
    before = alive()
    for _ in range(20):
        once()
    gc.collect()
    settle()
    assert alive() == before


@pytest.mark.parametrize("kind", ["capture", "update"])
def test_a_capture_that_is_not_entered_warns_and_one_decorates_nothing(old, kind):
    graph, _ = old
    make = {"capture": sk.capture, "update": graph.update}[kind]
    with pytest.warns(RuntimeWarning, match=rf"{kind}\(\) was never entered") as warned:
        make()
    assert warned[0].filename == __file__
    block = make()
    with pytest.raises(TypeError, match=rf"{kind}\(\) is not a decorator"):
        block(int)
    with contextlib.suppress(sk.CaptureError), block:
        pass
