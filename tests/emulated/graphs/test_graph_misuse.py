# ruff: noqa: PT012, SIM117 - what a capture does is in its block
"""What a block can do to its capture, and others to a graph, beyond what CUDA forbids."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref

import cuda.core
import pytest

import emulator
import streamkit as sk
from streamkit._cuda import graphs  # its calls are interrupted
from streamkit._graphs import checks  # another capture begins in between
from streamkit._queues import loaded_libraries  # to hide the loaded libraries
from support.emulated.captures import (  # noqa: F401 - a fixture
    capturing,
    fill,
    graph_writing_a_two,
    nothing_left,
    settle,
)
from support.emulated.operations import in_another_context
from support.gpu.raw import (
    check,
    current_context,
    destroy_stream,
    driver,
    make_stream,
    stream_id,
)

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")


@pytest.fixture
def no_libraries(monkeypatch):
    """No library that would hold a stream, or stand on it."""
    monkeypatch.setattr(loaded_libraries, "_found", ())
    monkeypatch.setattr(loaded_libraries, "_missing", {})


@pytest.fixture
def undo():
    with contextlib.ExitStack() as stack:
        yield stack


def leave_for(device):
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    check(driver.cuDevicePrimaryCtxRelease(device))


# -- the block leaves the device --------------------------------------------------------------


def test_a_block_may_leave_the_device_of_a_default_stream(cells):
    """Whose handle then means another stream, on which nothing captures."""
    cell, stream = cells(1), sk.default_stream(per_thread=True)
    with sk.capture(stream) as g:
        fill(cell, 2, stream.handle)
        leave_for(1)
    assert not stream.is_capturing
    g.launch(stream)
    stream.sync()
    assert cell.read() == 2


def test_a_block_that_fails_may_leave_it_too(cells):
    cell, stream = cells(1), sk.default_stream(per_thread=True)
    with pytest.raises(KeyError), sk.capture(stream):
        fill(cell, 2, stream.handle)
        leave_for(1)
        raise KeyError
    assert not stream.is_capturing


@pytest.mark.usefixtures("no_libraries")
def test_a_capture_in_another_context(undo):
    usual = current_context()
    in_another_context(undo)
    raw = make_stream()
    undo.callback(destroy_stream, raw)
    stream = sk.from_handle(raw)
    check(driver.cuCtxSetCurrent(usual))
    with sk.capture(stream) as g:
        assert current_context() == stream.context
        stream.record(external=True)
    assert current_context() == usual
    for target in (None, stream):
        g.launch(target)
    stream.sync()
    with pytest.raises(sk.errors.DeviceMismatchError, match="its own context"):
        g.launch(sk.new_stream())
    g.close()


# -- the block moves a library ----------------------------------------------------------------


@pytest.mark.parametrize("where", ["another stream", "the default stream"])
def test_a_library_that_the_block_left_outside_the_capture_is_named(warp, cells, where):
    cell, elsewhere = cells(1), warp.Stream("cuda:0")
    if where == "the default stream":
        elsewhere = warp.get_device("cuda:0").null_stream
    with pytest.raises(sk.errors.CaptureError, match="has left warp on another stream"):
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            warp.set_stream(elsewhere, "cuda:0")
    assert not g.stream.is_capturing


def test_a_library_left_on_a_stream_of_the_capture_is_welcome(warp, cells):
    one, two, side = cells(1), cells(1), warp.Stream("cuda:0")
    with sk.capture() as g:
        fill(one, 2, g.stream.handle)
        sk.wrap(side).wait(g.stream)
        warp.set_stream(side, "cuda:0")
        fill(two, 3, side.cuda_stream)
        g.stream.wait(side)
    g.launch(g.stream)
    g.stream.sync()
    assert (one.read(), two.read()) == (2, 3)


# -- the block waits over the border of the capture -------------------------------------------


def of_a_stream():
    return sk.new_stream(nonblocking=True)


def of_an_event():
    return sk.new_stream(nonblocking=True).record()


@pytest.mark.parametrize("outside", [of_a_stream, of_an_event], ids=lambda make: make.__name__)
def test_a_wait_for_what_takes_no_part_says_how_it_can(cells, outside):
    cell, other = cells(1), outside()
    with pytest.raises(sk.errors.CaptureError, match=r"ISOLATION.*take the other") as raised:
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            g.stream.wait(other)
    assert isinstance(raised.value.__cause__, sk.errors.DriverError)
    assert "earlier GPU work" not in str(raised.value)
    assert not g.stream.is_capturing


def test_the_default_stream_does_not_join():
    with pytest.raises(sk.errors.CaptureError, match=r"IMPLICIT.*legacy default stream"):
        with sk.capture() as g:
            sk.default_stream().wait(g.stream)


# -- the block closes its stream --------------------------------------------------------------


def close_it(stream):
    stream.close()
    gc.collect()


def test_a_stream_closed_inside_says_so(cells):
    cell = cells(1)
    with pytest.raises(sk.errors.StreamClosedError):
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            close_it(g.stream)
    assert g.closed


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyError("mine")])
def test_a_stream_closed_inside_hides_no_error(cells, error):
    cell = cells(1)
    with pytest.raises(type(error), match="mine") as raised:
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            close_it(g.stream)
            raise error
    assert raised.value is error


@pytest.mark.usefixtures("no_libraries")
def test_a_stream_closed_inside_lives_until_the_capture_has_ended(cells):
    """With no library that holds it; ``handles`` would notice the use of a dead one."""
    cell, stream = cells(1), sk.new_stream(nonblocking=True)
    handle = stream._queue.handle  # not .handle: who reads that may remember it
    with pytest.raises(KeyError), sk.capture(stream):
        fill(cell, 2, handle)
        close_it(stream)
        assert capturing(handle) == 1
        raise KeyError


# -- the beginning or the end fails -----------------------------------------------------------


def test_a_capture_that_another_thread_has_begun_meanwhile_is_left_to_it(monkeypatch):
    raw, refuse = make_stream(), checks.refuse_inside_another

    def then_another_begins(stream):
        refuse(stream)
        check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(2)))

    monkeypatch.setattr(checks, "refuse_inside_another", then_another_begins)
    with pytest.raises(sk.errors.DriverError, match="cuStreamBeginCapture"):
        with sk.capture(sk.from_handle(raw)):
            pass
    assert capturing(raw) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    gc.collect()
    destroy_stream(raw)


def test_an_end_that_fails_is_a_note_on_the_error_of_the_block(cells):
    cell = cells(1)
    with pytest.raises(KeyError) as raised:
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            emulator.break_down(driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
            raise KeyError
    emulator.break_down(0)
    (note,) = raised.value.__notes__
    assert "could not be ended" in note
    assert "ILLEGAL_ADDRESS" in note
    graphs.discard(g.stream.handle)


def test_an_end_that_fails_once_is_tried_again(cells):
    cell = cells(1)
    with pytest.raises(KeyError) as raised:
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            emulator.fail("cuStreamEndCapture", driver.CUresult.CUDA_ERROR_UNKNOWN)
            raise KeyError
    assert not hasattr(raised.value, "__notes__")
    assert not g.stream.is_capturing


# -- streams that others have closed ----------------------------------------------------------


@pytest.fixture
def closed():
    """A stream of cuda.core that was closed while somebody has its wrapper."""
    device = cuda.core.Device(0)
    device.set_current()
    native = device.create_stream()
    stream = sk.wrap(native)
    native.close()
    return stream


def test_a_closed_stream_is_not_asked_whether_it_is_busy(closed):
    """The real driver may crash at a handle that is not alive."""
    with pytest.raises(sk.errors.CaptureError, match="nothing was captured"), sk.capture():
        assert closed is not None


def test_a_closed_stream_is_not_asked_whether_its_launch_has_ended(cells):
    """Then nothing is kept that its launch used."""
    device = cuda.core.Device(0)
    device.set_current()
    native = device.create_stream()
    g, kept = graph_writing_a_two(cells(1))
    g.launch(native)
    native.sync()
    native.close()
    del g
    settle()
    assert kept() is None


def test_a_closed_stream_is_not_asked_whether_it_is_the_loose_fork(cells, closed):
    cell, side = cells(1), sk.new_stream(nonblocking=True)
    with pytest.raises(sk.errors.CaptureError, match="not joined again"):
        with sk.capture() as g:
            side.wait(g.stream)
            fill(cell, 2, side.handle)
            assert closed is not None


def test_a_stream_first_seen_in_a_capture_is_not_a_closed_one(closed):
    """A closed stream's handle comes back at once where handles are recycled."""
    raw = make_stream()
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    stream = sk.from_handle(raw)
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    assert stream.id == stream_id(raw)
    assert stream != closed
    destroy_stream(raw)


# -- a graph and what it keeps ----------------------------------------------------------------


class Kept:
    pass


def test_what_is_kept_may_hold_the_graph(cells):
    cell, kept, count = cells(1), Kept(), emulator.live("executables")
    seen = weakref.ref(kept)
    with sk.capture() as kept.graph:
        fill(cell, 2, kept.graph.stream.handle)
        kept.graph.keep(kept)
    del kept
    gc.collect()
    gc.collect()  # it was given back once, by the graph's own end
    assert seen() is None
    assert emulator.live("executables") == count


@pytest.mark.parametrize("way", ["closed", "dropped", "collected"])
def test_a_graph_given_up_in_somebodys_capture_is_destroyed_later(warp, cells, undo, way):
    cell, raw, count = cells(1), make_stream(), emulator.live("executables")
    undo.callback(destroy_stream, raw)
    stream = warp.Stream("cuda:0", cuda_stream=raw)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    g.launch(g.stream)
    g.stream.sync()
    with warp.ScopedStream(stream, sync_enter=False):
        check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
        fill(cell, 3, raw)
        if way == "closed":
            g.close()
            assert g.closed
        elif way == "dropped":
            del g
        else:
            cycle = [g]
            cycle.append(cycle)
            del g, cycle
            gc.collect()
        sk.new_stream()  # one of the calls that destroy what can be
        assert emulator.live("executables") == count + 1
        assert capturing(raw) == 1
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    settle()
    assert emulator.live("executables") == count
    del stream
    gc.collect()


# -- a child forked inside --------------------------------------------------------------------


def test_a_child_forked_inside_calls_no_driver(cells):
    cell, child = cells(1), -1
    try:
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            child = os.fork()
            if not child:
                emulator.reset_calls()
                raise KeyError  # noqa: TRY301 - the child leaves by it
            assert os.waitpid(child, 0)[1] == 0
            assert capturing(g.stream.handle) == 1
    except BaseException as error:
        if child:
            raise
        # the block's own error passes, and says of the device that it cannot be restored
        is_told = isinstance(error, KeyError) and "ScopeError" in "".join(error.__notes__)
        os._exit(0 if is_told and not emulator.all_calls() else 1)
    g.launch(g.stream)
    g.stream.sync()
    assert cell.read() == 2
