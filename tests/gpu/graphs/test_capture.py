"""A capture that somebody else began: nothing here breaks it."""

from __future__ import annotations

import gc

import pytest

import streamkit as sk
from streamkit._queues import lifetime  # which event a wait used
from support.gpu.library_subjects import WITH_CURRENT
from support.gpu.places import one_stream_current
from support.gpu.raw import check, destroy_stream, driver, make_stream, stream_id

MODES = pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread_local", "relaxed"])


class Capture:
    def __init__(self, handle, mode):
        self.handle = handle
        check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(mode)))

    def end(self):
        graph = check(driver.cuStreamEndCapture(self.handle))
        check(driver.cuGraphDestroy(graph))


@MODES
@pytest.mark.parametrize("nonblocking", [True, False])
def test_looking_at_a_capturing_stream_leaves_it_valid(mode, nonblocking):
    raw = make_stream(nonblocking=nonblocking)
    other = sk.new_stream(nonblocking=True)
    sk.default_stream()  # its id is read before a blocking capture forbids that
    capture = Capture(raw, mode)
    stream = sk.from_handle(raw)
    assert stream.is_capturing
    assert not other.is_capturing
    assert isinstance(stream, sk.Stream)
    assert stream == sk.from_handle(raw)
    assert hash(stream) == hash(sk.from_handle(raw))
    assert stream != other
    assert stream != sk.default_stream()
    assert stream.id == sk.from_handle(raw).id
    repr(stream), stream.priority, stream.context, stream.device
    for illegal in (stream.sync, lambda: stream.sync(1), lambda: stream.done,
                    lambda: stream.is_nonblocking):  # fmt: skip
        with pytest.raises(sk.errors.CaptureError, match="not tried"):
            illegal()
    assert other.done
    other.sync()
    sk.new_stream(nonblocking=True).close()
    capture.end()
    assert stream.id == stream_id(raw)
    assert stream.is_nonblocking is nonblocking
    assert stream == sk.from_handle(raw)
    stream.sync()
    destroy_stream(raw)


@MODES
def test_a_spare_event_that_a_capture_recorded_last_serves_other_queues(mode):
    """While that capture goes on: the new record is outside of it, and takes no stream along."""
    raw = make_stream(nonblocking=True)
    stream = sk.from_handle(raw)
    fork, first, second = (sk.new_stream(nonblocking=True) for _ in range(3))
    for waiting, source in ((fork, stream), (stream, fork), (second, first)):
        waiting.wait(source)  # what a first wait makes is there
    spare = lifetime.spare_events(stream._queue)
    capture = Capture(raw, mode)
    fork.wait(stream)
    recorded_inside = spare[-1]
    second.wait(first)
    assert spare[-1] is recorded_inside
    assert fork.is_capturing
    assert not first.is_capturing
    assert not second.is_capturing
    stream.wait(fork)
    capture.end()
    second.sync()
    destroy_stream(raw)


@MODES
def test_a_known_stream_keeps_its_identity_while_it_captures(mode):
    stream = sk.new_stream(nonblocking=True)
    number = stream.id
    capture = Capture(stream.handle, mode)
    assert sk.from_handle(stream.handle) == stream
    assert sk.wrap(stream.to("cuda.bindings")).id == number
    capture.end()


def test_fork_and_join_inside_a_capture(cells):
    cell = cells(0)
    stream, side = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    capture = Capture(stream.handle, 1)
    side.wait(stream)
    assert side.is_capturing
    check(driver.cuMemsetD32Async(cell.pointer, 0, 1, side.handle))
    stream.wait(side)
    capture.end()
    assert not side.is_capturing


def test_control_an_unjoined_fork_breaks_the_capture(cells):
    cell = cells(0)
    stream, side = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    side.wait(stream)
    check(driver.cuMemsetD32Async(cell.pointer, 0, 1, side.handle))
    code, _ = driver.cuStreamEndCapture(stream.handle)
    assert code == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED


def test_external_records_and_waits_are_nodes():
    stream, event = sk.new_stream(nonblocking=True), sk.new_event()
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    stream.record(event, external=True)
    stream.wait(event, external=True)
    graph = check(driver.cuStreamEndCapture(stream.handle))
    _, count = check(driver.cuGraphGetNodes(graph))
    assert count == 2
    check(driver.cuGraphDestroy(graph))


def test_the_legacy_stream_beside_a_blocking_capture():
    stream, legacy = sk.new_stream(), sk.default_stream()
    capture = Capture(stream.handle, 1)
    assert legacy == sk.from_handle(0)
    assert not legacy.is_capturing
    with pytest.raises(sk.errors.CaptureError):
        legacy.sync()
    capture.end()
    legacy.sync()


@MODES
def test_a_scope_inside_a_capture_adds_nothing_to_it(subjects, mode):
    for name in ("torch", "cupy", "warp"):
        subjects(name)
    stream = sk.new_stream(nonblocking=True)
    sk.current_streams()
    with stream:  # builds the views
        pass
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(mode)))
    with stream, sk.use(stream, ordered=False):
        assert sk.current_stream() is stream
    graph = check(driver.cuStreamEndCapture(stream.handle))
    _, count = check(driver.cuGraphGetNodes(graph))
    assert count == 0
    check(driver.cuGraphDestroy(graph))


def test_an_error_in_cupys_own_capture_leaves_none(subjects):
    """The stream is dropped, and parked for CuPy's pool remembers its handle."""
    subjects("cupy")

    def fail():
        stream = sk.new_stream(nonblocking=True)
        stream.to("cupy").begin_capture()
        stream.wait(sk.new_stream(nonblocking=True))  # which is outside

    with pytest.raises(sk.errors.DriverError):
        fail()
    gc.collect()
    check(driver.cuCtxSynchronize())


def written_by(node):
    return int(check(driver.cuGraphMemsetNodeGetParams(node)).dst)


def edges_of(graph):
    """Which fill comes directly after which, each known by what it writes."""
    newest = hasattr(driver, "cuGraphGetEdges_v2")  # the first may not know the edges' data
    ask = driver.cuGraphGetEdges_v2 if newest else driver.cuGraphGetEdges
    before, after, *_ = check(ask(graph, int(check(ask(graph))[-1])))
    return {(written_by(one), written_by(other)) for one, other in zip(before, after, strict=True)}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("library", WITH_CURRENT)
def test_only_an_ordered_scope_inside_a_capture_is_edges_of_its_graph(
    three, cells, library, ordered
):
    origin, stream = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    event = check(driver.cuEventCreate(2))
    before, inside, after = (cells(0).pointer for _ in range(3))

    def fill(place, queue):
        check(driver.cuMemsetD32Async(place, 0, 1, queue.handle))

    def order(later, earlier):
        check(driver.cuEventRecord(event, earlier.handle))
        check(driver.cuStreamWaitEvent(later.handle, event, 0))

    with one_stream_current(three, library, 0, origin.to(library)):
        with sk.use(stream, ordered=True):  # makes what it needs
            pass
        check(driver.cuStreamBeginCapture(origin.handle, driver.CUstreamCaptureMode(1)))
        order(stream, origin)  # both take part, whatever the scope does
        fill(before, origin)
        with sk.use(stream, ordered=ordered):
            fill(inside, stream)
        fill(after, origin)
        order(origin, stream)
        graph = check(driver.cuStreamEndCapture(origin.handle))

    edges = edges_of(graph)
    assert (before, after) in edges
    assert ((before, inside) in edges) is ordered
    assert ((inside, after) in edges) is ordered
    check(driver.cuGraphDestroy(graph))
    check(driver.cuEventDestroy(event))
