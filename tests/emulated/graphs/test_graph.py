# ruff: noqa: PT012, SIM117 - what a capture does is in its block
"""Captures that the driver begins: whole, refused, broken, given up.

Warp is on their streams but does not join: its own part calls the CUDA runtime, which does not
run on the emulated driver. The parts of libraries are toys', in ``test_capture_parts``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import graphs  # its calls are delayed, or asked what a stream captures
from streamkit._queues import active_captures, loaded_libraries  # both are played here
from streamkit._support import garbage  # captures that overlap, without threads
from streamkit.types import CudaGraph
from support.emulated.captures import (  # noqa: F401 - a fixture
    capturing,
    fill,
    nothing_left,
    settle,
)
from support.emulated.operations import foreign
from support.emulated.state_snapshot import alive
from support.gpu.raw import (
    Foreign,
    Gate,
    busy,
    check,
    current_context,
    destroy_stream,
    driver,
    held,
    make_stream,
    on_device,
)
from support.keepalive import thing
from support.queues import within

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")

MODES = pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])


@contextlib.contextmanager
def stream_for(nonblocking=True):
    raw = make_stream(nonblocking=nonblocking)
    yield sk.from_handle(raw)
    gc.collect()
    destroy_stream(raw)


# -- whole ------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("nonblocking", [True, False])
def test_work_runs_at_each_launch_and_not_before(cells, mode, nonblocking):
    cell = cells(1)
    with stream_for(nonblocking) as stream:
        with sk.capture(stream, mode=mode) as g:
            assert g.stream is stream
            assert capturing(stream.handle) == 1
            assert sk.current_stream() is stream
            assert sk.current_stream("warp") == stream
            fill(cell, 2, stream.handle)
            assert g.nodes == 1
        assert not capturing(stream.handle)
        stream.sync()
        assert cell.read() == 1
        for _ in range(3):
            cell.write(1)
            g.launch(stream)
            stream.sync()
            assert cell.read() == 2
        assert g.nodes == 1
        del g


def test_an_array_that_a_launch_has_left_does_not_keep_the_next_one(cells):
    source, result = cells(2), cells(1)
    with sk.capture() as g:
        array = check(driver.cuMemAllocAsync(4, g.stream.handle))
        check(driver.cuMemcpyDtoDAsync(array, source.pointer, 4, g.stream.handle))
    for _ in range(3):
        g.launch(g.stream)
    check(driver.cuMemcpyDtoDAsync(result.pointer, array, 4, g.stream.handle))
    check(driver.cuMemFreeAsync(array, g.stream.handle))
    g.stream.sync()
    assert result.read() == 2


def test_a_private_stream_is_nonblocking_and_the_graph_runs_on_any(cells):
    cell = cells(1)
    with sk.capture() as g:
        assert g.stream.is_capturing
        fill(cell, 2, g.stream.handle)
    assert g.stream.is_nonblocking
    defaults = [sk.default_stream(per_thread=mine) for mine in (False, True)]
    for target in (g.stream, sk.new_stream(), *defaults):
        cell.write(1)
        g.upload(target)
        g.launch(target)
        target.sync()
        assert cell.read() == 2


def test_the_graph_is_a_graph():
    with sk.capture() as g, stream_for() as side:
        side.wait(g.stream)
        g.stream.wait(side)
        g.stream.record(sk.new_event(), external=True)
        assert isinstance(g, sk.types.Graph)
        assert not g.closed
        assert "capturing" in repr(g)
    assert isinstance(g, sk.types.Graph)
    assert isinstance(g, CudaGraph)
    assert "ready" in repr(g)
    assert g.to_dot().startswith("digraph")
    assert g.to_svg().startswith("<svg")
    assert g.to_svg() == g._repr_svg_()
    with pytest.raises(TypeError, match="belongs to this process"):
        __import__("copy").copy(g)
    g.close()
    g.close()
    assert g.closed
    assert g._repr_svg_() is None
    assert "closed" in repr(g)
    for use in (g.launch, g.upload, g.to_dot, g.to_svg, lambda: g.nodes, lambda: g.keep(1)):
        with pytest.raises(sk.errors.StreamClosedError):
            use()


def test_a_fork_joins_and_comes_back(cells):
    a, b = cells(1), cells(1)
    with stream_for() as side:
        with sk.capture() as g:
            side.wait(g.stream)
            fill(a, 2, side.handle)
            with side:
                assert sk.current_stream("warp") == side
                fill(b, 3, side.handle)
            g.stream.wait(side)
        assert not side.is_capturing
        g.launch(side)
        side.sync()
        assert (a.read(), b.read()) == (2, 3)


# -- which stream a launch takes --------------------------------------------------------------


def test_a_launch_is_on_the_default_stream_of_the_graphs_device(cells, gate):
    """Its handle means another stream where the other device is current."""
    cell, stream = cells(1), sk.new_stream(1, nonblocking=True)
    with sk.capture(stream) as g:
        fill(cell, 2, stream.handle)
    with on_device(1):
        gate.hold(1)
    with on_device(0):
        g.launch(sk.default_stream(1))
        check(driver.cuCtxSynchronize())
    assert cell.read() == 1
    gate.open()
    sk.default_stream(1).sync()
    assert cell.read() == 2


def test_a_launch_in_a_scope_is_on_its_stream(cells, gate):
    cell = cells(1)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    stream = sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    with stream:
        g.launch()
    assert busy(stream.handle)
    assert not busy(g.stream.handle)
    gate.open()
    stream.sync()
    assert cell.read() == 2


def test_a_launch_outside_any_scope_has_the_order_of_a_call(warp, cells, gate):
    """After what Warp's current stream was given, and before what it is given next."""
    first, second = cells(1), cells(1)
    with sk.capture() as g:
        check(driver.cuMemcpyDtoDAsync(second.pointer, first.pointer, 4, g.stream.handle))
    current = warp.get_stream("cuda:0").cuda_stream
    gate.hold(current)
    fill(first, 2, current)
    g.launch()
    fill(first, 3, current)
    assert busy(g.stream.handle)
    gate.open()
    check(driver.cuCtxSynchronize())
    assert (first.read(), second.read()) == (3, 2)


def test_a_launch_outside_any_scope_moves_nothing(warp, cells):
    """Warp is on one stream for all threads: another's scope must not keep a launch out."""
    cell, elsewhere = cells(1), sk.new_stream()
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    with elsewhere:
        within(g.launch)
        assert sk.current_stream("warp") == elsewhere
        elsewhere.sync()
    assert cell.read() == 2


def test_what_follows_a_launch_waits_though_an_interrupt_comes_when_the_run_is_queued(
    warp, cells, gate, monkeypatch
):
    cell = cells(1)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    current, launch = warp.get_stream("cuda:0").cuda_stream, CudaGraph._launch

    def interrupted(graph, target, others):
        gate.hold(target.handle)
        launch(graph, target, others)
        raise KeyboardInterrupt

    monkeypatch.setattr(CudaGraph, "_launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        g.launch()
    assert busy(g.stream.handle)
    assert held(current)
    gate.open()
    check(driver.cuStreamSynchronize(current))
    assert cell.read() == 2


@pytest.mark.parametrize("of", ["graph", "library"])
def test_a_launch_outside_any_scope_leaves_somebodys_capture_whole(warp, cells, undo, of):
    cell, raw = cells(1), Foreign(make_stream())
    undo.callback(destroy_stream, raw.handle)
    with sk.capture(raw) as g:
        fill(cell, 2, raw.handle)
    if of == "library":
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
        undo.enter_context(warp.ScopedStream(sk.wrap(raw).to("warp"), sync_enter=False))
    previous = warp.get_stream("cuda:0").cuda_stream
    sk.wrap(warp.get_stream("cuda:0")).record()
    check(driver.cuStreamBeginCapture(raw.handle, driver.CUstreamCaptureMode(1)))
    try:
        with pytest.raises(sk.errors.CaptureError, match="which captures"):
            g.launch()
        assert capturing(raw.handle) == 1
        assert capturing(g.stream.handle) == (of == "graph")
        assert capturing(previous) == (of == "library")
    finally:
        code, graph = driver.cuStreamEndCapture(raw.handle)
    assert not code
    check(driver.cuGraphDestroy(graph))
    g.launch()
    g.stream.sync()
    assert cell.read() == 2
    g.close()


def test_control_a_launch_on_a_stream_has_no_such_order(warp, cells, gate):
    first, second = cells(1), cells(1)
    with sk.capture() as g:
        check(driver.cuMemcpyDtoDAsync(second.pointer, first.pointer, 4, g.stream.handle))
    current = warp.get_stream("cuda:0").cuda_stream
    gate.hold(current)
    fill(first, 2, current)
    g.launch(g.stream)
    g.stream.sync()
    gate.open()  # a read waits for what it holds
    assert second.read() == 1


def test_a_graph_is_not_uploaded_where_something_is_captured(cells, undo):
    cell = cells(1)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    raw = make_stream()
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    with pytest.raises(sk.errors.CaptureError, match="which captures"):
        g.upload(Foreign(raw))
    with sk.capture(foreign(undo)) as other:
        fill(cell, 3, other.stream.handle)
        with pytest.raises(sk.errors.CaptureError, match="which captures"):
            g.upload()
        with pytest.raises(sk.errors.CaptureError, match="still being captured"):
            other.launch()
        with pytest.raises(sk.errors.CaptureError, match="still being captured"):
            other.close()
        elsewhere = sk.new_stream()
        g.launch(elsewhere)
    elsewhere.sync()
    assert cell.read() == 2
    assert capturing(raw) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    del other
    gc.collect()
    destroy_stream(raw)


def test_a_graph_is_uploaded_to_a_default_stream_where_no_context_is_current(cells):
    cell, target, before = cells(1), sk.default_stream(), current_context()
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    try:
        check(driver.cuCtxSetCurrent(driver.CUcontext(0)))
        g.upload(target)
    finally:
        check(driver.cuCtxSetCurrent(driver.CUcontext(before)))


def test_a_graph_stays_on_its_device(cells):
    cell = cells(1)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    with pytest.raises(sk.errors.DeviceMismatchError):
        g.launch(sk.new_stream(1))
    with pytest.raises(sk.errors.DeviceMismatchError):
        g.launch(sk.new_stream("cpu"))


def test_a_graph_of_the_other_device():
    stream = sk.new_stream(1, nonblocking=True)
    with sk.capture(stream) as g:
        stream.record(sk.new_event(device=1), external=True)
    g.launch()
    with stream:
        g.launch()
    stream.sync()


# -- completeness -----------------------------------------------------------------------------


def test_an_empty_section_is_found_and_says_where_work_is(cells, gate):
    cell = cells(1)
    elsewhere = sk.new_stream(nonblocking=True, name="elsewhere")
    with sk.capture() as g:
        with g.section("fill"):
            fill(cell, 2, g.stream.handle)
        gate.hold(elsewhere.handle)
        with pytest.raises(sk.errors.CaptureError, match="'lost' added no node") as refused:
            with g.section("lost"):
                fill(cell, 3, elsewhere.handle)
        assert f"{elsewhere.handle:#x}" in str(refused.value)
        assert "pending" in str(refused.value)
    gate.open()
    g.launch(elsewhere)
    elsewhere.sync()
    assert cell.read() == 2
    with pytest.raises(sk.errors.CaptureError, match="not being captured"), g.section("late"):
        pass


def test_an_empty_capture_is_refused():
    with pytest.raises(sk.errors.CaptureError, match="nothing was captured") as refused:
        with sk.capture() as g:
            pass
    assert "pending" not in str(refused.value)
    assert g.closed
    assert not g.stream.is_capturing


def test_an_error_of_a_section_passes():
    with pytest.raises(KeyError), sk.capture() as g, g.section("broken"):
        raise KeyError


def test_the_search_for_escaped_work_leaves_another_capture_whole():
    other = sk.new_stream(nonblocking=True)
    check(driver.cuStreamBeginCapture(other.handle, driver.CUstreamCaptureMode(2)))
    with pytest.raises(sk.errors.CaptureError, match="nothing was captured"), sk.capture():
        pass
    assert capturing(other.handle) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(other.handle))))


@pytest.mark.parametrize("nonblocking", [True, False])
def test_an_unjoined_fork_is_named(cells, nonblocking):
    """Beside a known legacy stream, which a capture on a blocking one forbids to ask."""
    cell, legacy = cells(1), sk.default_stream(0)
    side = sk.new_stream(nonblocking=nonblocking)
    with pytest.raises(sk.errors.CaptureError, match="not joined again") as refused:
        with sk.capture() as g:
            side.wait(g.stream)
            fill(cell, 2, side.handle)
    assert f"{side.handle:#x}" in str(refused.value)
    assert not side.is_capturing
    assert not g.stream.is_capturing
    assert legacy.is_default
    side.sync()
    assert cell.read() == 1


def test_an_unjoined_fork_of_nobody_known(cells):
    cell, raw = cells(1), make_stream()
    with pytest.raises(sk.errors.CaptureError, match="another stream took part"):
        with sk.capture() as g:
            event = g.stream.record()
            check(driver.cuStreamWaitEvent(raw, event.handle, 0))
            fill(cell, 2, raw)
    destroy_stream(raw)


def fork_that_records(g, cell, *, goes_back):
    """A fork fills the cell, is waited for, and records an event for others, as NCCL's streams do.

    NCCL then takes its stream back to before that record.
    """
    raw, begun, done = make_stream(), g.stream.record(), sk.new_event()
    check(driver.cuStreamWaitEvent(raw, begun.handle, 0))
    fill(cell, 2, raw)
    check(driver.cuEventRecord(done.handle, raw))
    g.stream.wait(done)
    found = graphs.captured(raw)
    mark = sk.new_event()
    check(driver.cuEventRecordWithFlags(mark.handle, raw, 1))
    g.keep(mark)
    if goes_back:
        nodes = [driver.CUgraphNode(node) for node in found.frontier]
        edges = (None,) if driver.CUDA_VERSION >= 13000 else ()
        check(driver.cuStreamUpdateCaptureDependencies(raw, nodes, *edges, len(nodes), 1))
    return raw


def test_a_record_for_others_that_cuda_takes_for_joined_is_no_loose_end(cells):
    cell = cells(1)
    with sk.capture() as g:
        raw = fork_that_records(g, cell, goes_back=True)
    destroy_stream(raw)
    g.launch()
    g.stream.sync()
    assert cell.read() == 2


def test_what_is_joined_the_driver_decides(cells):
    cell, forks = cells(1), []
    with pytest.raises(sk.errors.CaptureError, match=r"UNJOINED .* has to be waited for"):
        with sk.capture() as g:
            forks.append(fork_that_records(g, cell, goes_back=False))
    assert not g.stream.is_capturing
    destroy_stream(*forks)


def test_a_fork_without_work_needs_no_join(cells):
    cell, side = cells(1), sk.new_stream(nonblocking=True)
    with sk.capture() as g:
        side.wait(g.stream)
        fill(cell, 2, g.stream.handle)
    assert not side.is_capturing


# -- what is illegal inside -------------------------------------------------------------------

ILLEGAL = {
    "done": lambda g, event: g.stream.done,
    "sync": lambda g, event: g.stream.sync(),
    "sync with a timeout": lambda g, event: g.stream.sync(1),
    "event done": lambda g, event: event.done,
    "event sync": lambda g, event: event.sync(),
    "event sync with a timeout": lambda g, event: event.sync(1),
    "capture": lambda g, event: sk.capture(g.stream).__enter__(),
    "private capture": lambda g, event: sk.capture().__enter__(),
}


@MODES
@pytest.mark.parametrize("name", ILLEGAL)
def test_what_would_break_the_capture_is_refused_and_it_stays_whole(cells, mode, name):
    cell = cells(1)
    with sk.capture(mode=mode) as g:
        fill(cell, 2, g.stream.handle)
        event = g.stream.record()
        with pytest.raises(sk.errors.CaptureError):
            ILLEGAL[name](g, event)
        assert capturing(g.stream.handle) == 1
        assert sk.new_stream(nonblocking=True).done
    g.launch(g.stream)
    g.stream.sync()
    assert cell.read() == 2


def test_an_event_that_somebody_else_recorded_is_not_asked_inside(warp, cells):
    cell, event = cells(1), warp.Event("cuda:0")
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
        check(driver.cuEventRecord(event.cuda_event, g.stream.handle))
        with pytest.raises(sk.errors.CaptureError):
            sk.wrap_event(event).done  # noqa: B018 - it raises
        assert capturing(g.stream.handle) == 1


@pytest.mark.parametrize("nonblocking", [True, False])
def test_a_broken_capture_says_so(cells, nonblocking):
    cell = cells(1)
    with stream_for(nonblocking) as stream:
        with pytest.raises(sk.errors.CaptureError, match="or for a stream outside") as refused:
            with sk.capture(stream):
                fill(cell, 2, stream.handle)
                with pytest.raises(sk.errors.DriverError, match="905"):
                    stream.wait(sk.new_stream())
        assert ("legacy" in str(refused.value)) is not nonblocking
        assert not capturing(stream.handle)
        with sk.capture(stream) as g:
            fill(cell, 2, stream.handle)
        g.launch(stream)
        stream.sync()
        assert cell.read() == 2
        del g


@pytest.mark.parametrize("nonblocking", [True, False])
def test_legacy_work_of_another_thread_breaks_a_blocking_capture(
    cells, primary_context, nonblocking
):
    cell, other, codes = cells(1), cells(1), []

    def fill_on_legacy():
        check(driver.cuCtxSetCurrent(primary_context))
        codes.extend(driver.cuMemsetD32Async(other.pointer, 0x40000000, 1, 1))

    with stream_for(nonblocking) as stream, contextlib.ExitStack() as refused:
        if not nonblocking:
            refused.enter_context(pytest.raises(sk.errors.CaptureError, match=r"blocking one.*any"))
        with sk.capture(stream):
            fill(cell, 2, stream.handle)
            within(fill_on_legacy)
    assert (codes == [0]) is nonblocking
    assert other.read() == (2 if nonblocking else 1)


def test_a_broken_section_says_so(cells):
    cell = cells(1)
    with pytest.raises(sk.errors.CaptureError, match="something illegal broke"):
        with sk.capture() as g, g.section("broken"):
            fill(cell, 2, g.stream.handle)
            driver.cuStreamQuery(g.stream.handle)


def test_an_error_that_broke_the_capture_is_chained():
    class LibraryError(Exception):
        pass

    with pytest.raises(sk.errors.CaptureError, match="LibraryError inside the capture") as refused:
        with sk.capture() as g:
            driver.cuStreamQuery(g.stream.handle)
            raise LibraryError("had enough\nand more")
    assert isinstance(refused.value.__cause__, LibraryError)
    assert "and more" not in str(refused.value)


class OfTheProgramError(RuntimeError):
    """An error of the program's own, whatever it says."""


def of_a_library(name):
    """An error of a class of Warp's, the library that takes part here."""
    return type(name, (RuntimeError,), {"__module__": "warp.config"})


class WithoutModuleError(RuntimeError):
    __module__ = None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("captured by a user"),
        RuntimeError("no frame was captured"),
        KeyboardInterrupt(),
        OfTheProgramError("the CUDA graph cache of this program is full"),
        type("Other", (RuntimeError,), {"__module__": "warp_helpers"})("a CUDA graph"),
        WithoutModuleError("stream capture"),
        of_a_library("OutOfMemoryError")("40 MiB are in private pools (e.g., CUDA Graphs)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_blocks_own_error_passes(cells, error):
    cell = cells(1)
    with pytest.raises(type(error)) as raised:
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            raise error
    assert raised.value is error
    assert g.closed
    assert not g.stream.is_capturing


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: operation not permitted when stream is capturing",
        "CUDA error: operation failed due to a previous error during capture",
        "operation would result in a merge of separate capture sequences",
        "capture was not ended in the same stream as it began",
        "capturing stream has unjoined work",
        "dependency created on uncaptured work in another stream",
        "operation would make the legacy stream depend on a capturing blocking stream",
        "operation not permitted on an event last recorded in a capturing stream",
        "attempt to terminate a thread-local capture sequence from another thread",
        "cudaErrorStreamCaptureUnsupported",
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.",
    ],
)
def test_an_error_that_names_the_capture_is_explained(cells, said):
    cell = cells(1)
    with pytest.raises(sk.errors.CaptureError, match="inside the capture"), sk.capture() as g:
        fill(cell, 2, g.stream.handle)
        raise RuntimeError(said)


def test_a_librarys_error_that_names_the_capture_is_explained(warp, cells):
    cell, error = cells(1), of_a_library("LibraryError")("not during stream capture")
    with pytest.raises(sk.errors.CaptureError, match="LibraryError inside the capture"):
        with sk.capture() as g:
            fill(cell, 2, g.stream.handle)
            raise error


def test_a_capture_that_was_ended_inside_says_so():
    with pytest.raises(sk.errors.CaptureError, match="was ended inside"):
        with sk.capture() as g:
            check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(g.stream.handle))))


def test_what_cannot_be_captured_says_why():
    with pytest.raises(sk.errors.UnsupportedStreamError, match="host stream, which has no graphs"):
        sk.capture(sk.new_stream("cpu"))
    with pytest.raises(sk.errors.CaptureError, match="legacy default stream"):
        sk.capture(sk.default_stream())
    with pytest.raises(ValueError, match="not a capture mode"):
        sk.capture(mode="strict")
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.capture(7)


def test_a_capture_of_somebody_else_is_left_alone(warp, cells):
    cell, raw = cells(1), make_stream()
    stream = warp.Stream("cuda:0", cuda_stream=raw)
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    with pytest.raises(sk.errors.CaptureError, match="captures already"):
        sk.capture(stream).__enter__()
    with warp.ScopedStream(stream, sync_enter=False):
        with pytest.raises(sk.errors.CaptureError, match="captures already"):
            sk.capture().__enter__()
    fill(cell, 2, raw)
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    del stream
    gc.collect()
    destroy_stream(raw)


def test_two_threads_capture_at_once(cells):
    """Without Warp, which is on one stream for all threads."""
    here, there, made = cells(1), cells(1), []
    hidden = pytest.MonkeyPatch()
    hidden.setattr(loaded_libraries, "_found", ())
    hidden.setattr(loaded_libraries, "_missing", {})

    def second():
        with sk.capture() as g:
            fill(there, 3, g.stream.handle)
        made.append(g)

    with hidden.context(), sk.capture() as g:
        fill(here, 2, g.stream.handle)
        within(second)
        assert not gc.isenabled()
        assert g.stream.is_capturing
    hidden.undo()
    for graph in (g, *made):
        graph.launch(g.stream)
    g.stream.sync()
    assert (here.read(), there.read()) == (2, 3)


@MODES
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_the_mode_says_whose_unsafe_calls_break_the_capture(cells, mode, where):
    """An allocation of the driver's own, in the thread of the capture or in another one."""
    cell, made = cells(1), []

    def allocate():
        with on_device(0):
            code, pointer = driver.cuMemAlloc(4)
        made.extend([pointer] if not code else [])

    def work():
        with sk.capture(mode=mode) as g:
            fill(cell, 2, g.stream.handle)
            allocate() if where == "here" else within(allocate)

    breaks = mode == "global" or (mode == "thread_local" and where == "here")
    if breaks:
        with pytest.raises(sk.errors.CaptureError, match="something illegal broke"):
            work()
    else:
        work()
    assert bool(made) is not breaks
    for pointer in made:
        check(driver.cuMemFree(pointer))


# -- lifetime ---------------------------------------------------------------------------------


def test_a_graph_dropped_inside_a_capture_does_not_disturb_it(cells):
    cell = cells(1)
    stream = sk.new_stream(nonblocking=True)
    count = emulator.live("executables")
    for _ in range(4):
        with sk.capture(stream) as g:  # drops the one before, inside
            fill(cell, 2, stream.handle)
        g.launch(stream)
    stream.sync()
    assert cell.read() == 2
    g.close()
    settle()
    assert emulator.live("executables") == count


def test_a_graph_dropped_inside_a_capture_that_fails_goes_at_its_end(cells):
    cell, count = cells(1), emulator.live("executables")
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    with contextlib.suppress(KeyError), sk.capture():
        del g
        assert emulator.live("executables") == count + 1
        raise KeyError
    assert emulator.live("executables") == count


def test_a_graph_that_is_closed_while_another_thread_captures_goes_afterwards(cells):
    cell, count = cells(1), emulator.live("executables")
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    with active_captures.noted((), []):  # as the other thread's capture does
        g.close()
        assert emulator.live("executables") == count + 1
    settle()
    assert emulator.live("executables") == count


def abandon(stream):
    with contextlib.suppress(KeyError), sk.capture():
        raise KeyError


LATER = {
    "a capture": abandon,
    "done": lambda stream: stream.done,
    "sync": lambda stream: stream.sync(),
    "another stream": lambda stream: sk.new_stream(),
    "the end of one": lambda stream: sk.new_stream().close(),
}


@pytest.mark.parametrize("later", LATER)
def test_a_graph_that_ran_when_it_was_dropped_goes_with_a_later_call(cells, gate, later):
    cell, stream = cells(1), sk.new_stream(nonblocking=True)
    count = emulator.live("executables")
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    gate.hold(stream.handle)
    g.launch(stream)
    del g
    assert emulator.live("executables") == count + 1
    gate.open()
    check(driver.cuStreamSynchronize(stream.handle))
    LATER[later](stream)
    assert emulator.live("executables") == count


@pytest.mark.parametrize("call", ["cuGraphExecDestroy", "cuGraphDestroy"])
def test_a_graph_that_could_not_be_destroyed_is_with_a_later_call(cells, call):
    cell, before = cells(1), (emulator.live("graphs"), emulator.live("executables"))
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    emulator.fail(call, 999)
    g.close()
    assert (emulator.live("graphs"), emulator.live("executables")) != before
    sk.new_stream()
    assert (emulator.live("graphs"), emulator.live("executables")) == before


@pytest.mark.parametrize(
    ("call", "look"), [("count", "nodes"), ("dot", "to_dot"), ("structure", "to_svg")]
)
def test_a_graph_is_not_closed_while_another_thread_looks_at_it(cells, monkeypatch, call, look):
    cell = cells(1)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
    closing, ask = threading.Thread(target=g.close), getattr(graphs, call)

    def ask_late(graph):
        closing.start()
        closing.join(0.2)
        return ask(graph)

    monkeypatch.setattr(graphs, call, ask_late)
    found = getattr(g, look)
    assert found() if callable(found) else found == 1
    closing.join()
    assert g.closed


def test_a_failed_capture_lets_go_of_what_it_kept():
    kept, seen = thing()
    with contextlib.suppress(ValueError), sk.capture() as g:
        g.keep(kept)
        raise ValueError
    del kept
    assert seen() is None


def test_a_stream_may_be_closed_before_its_graph(cells):
    cell, stream = cells(1), sk.new_stream(nonblocking=True)
    with sk.capture(stream) as g:
        fill(cell, 2, stream.handle)
    stream.close()
    other = sk.new_stream()
    g.launch(other)
    other.sync()
    assert cell.read() == 2


def end_well(cell):
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
        sk.new_stream(nonblocking=True).wait(g.stream)
    g.launch(g.stream)
    g.stream.sync()


def end_by_error(cell):
    with contextlib.suppress(KeyError), sk.capture() as g:
        fill(cell, 2, g.stream.handle)
        raise KeyError


def end_unjoined(cell):
    side = sk.new_stream(nonblocking=True)
    with contextlib.suppress(sk.errors.CaptureError), sk.capture() as g:
        side.wait(g.stream)
        fill(cell, 2, side.handle)


def end_broken(cell):
    with contextlib.suppress(sk.errors.CaptureError), sk.capture() as g:
        driver.cuStreamQuery(g.stream.handle)


def never_end(cell):
    g = sk.capture().__enter__()  # and nobody holds what would end it
    fill(cell, 2, g.stream.handle)
    g.stream.sync()


@pytest.mark.parametrize(
    "end", [end_well, end_by_error, end_unjoined, end_broken, never_end], ids=lambda f: f.__name__
)
def test_nothing_is_left_alive(cells, end):
    cell = cells(1)

    def once():
        end(cell)
        check(driver.cuCtxSynchronize())  # a parked stream that is busy yet is not taken again

    once()
    gc.collect()
    settle()
    before = alive()
    for _ in range(30):
        once()
    gc.collect()
    settle()
    sk.new_stream()  # lets go of what was kept
    assert alive() == before


def test_captures_hold_the_collector_back_and_count():
    gc.enable()
    with garbage.held_back():
        with garbage.held_back():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with garbage.held_back():
        pass
    assert not gc.isenabled()
    gc.enable()


def test_a_child_forked_in_a_capture_collects_again():
    gc.enable()
    with garbage.held_back():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    assert os.waitpid(child, 0)[1] == 0


# -- external records and waits ---------------------------------------------------------------


def test_an_external_record_is_made_by_each_launch(cells, gate):
    """As Warp's ``record_event(event, external=True)``: others wait for a point of the graph."""
    cell, copy = cells(1), cells(1)
    event, other = sk.new_event(), sk.new_stream(nonblocking=True)
    with sk.capture() as g:
        fill(cell, 2, g.stream.handle)
        g.stream.record(event, external=True)
    for _ in range(2):
        cell.write(1)
        gate = Gate()
        gate.hold(g.stream.handle)
        g.launch(g.stream)
        other.wait(event)
        check(driver.cuMemcpyDtoDAsync(copy.pointer, cell.pointer, 4, other.handle))
        gate.open()
        other.sync()
        assert copy.read() == 2
        gate.free()


def test_an_external_wait_is_for_the_last_record_outside(cells, gate):
    cell, copy = cells(1), cells(1)
    event, other = sk.new_event(), sk.new_stream(nonblocking=True)
    with sk.capture() as g:
        g.stream.wait(event, external=True)
        check(driver.cuMemcpyDtoDAsync(copy.pointer, cell.pointer, 4, g.stream.handle))
    gate.hold(other.handle)
    fill(cell, 3, other.handle)
    other.record(event)
    g.launch(g.stream)
    assert busy(g.stream.handle)
    gate.open()
    g.stream.sync()
    assert copy.read() == 3


def by_a_record(stream):
    stream.record(external=True)


def by_a_wait(stream):
    stream.wait(sk.new_event(), external=True)


def by_a_wait_for_a_stream(stream):
    stream.wait(sk.new_stream(nonblocking=True), external=True)


@pytest.mark.parametrize("names", [by_a_record, by_a_wait, by_a_wait_for_a_stream])
def test_a_graph_keeps_the_event_that_a_node_names(names):
    def captured():
        with sk.capture(stream) as g:
            names(stream)
        gc.collect()
        return g

    stream = sk.new_stream(nonblocking=True)
    captured().close()  # the first one makes events that stay
    events = emulator.live("events")
    g = captured()
    assert emulator.live("events") == events + 1
    g.close()
    assert emulator.live("events") == events


@pytest.fixture
def undo():
    with contextlib.ExitStack() as stack:
        yield stack
