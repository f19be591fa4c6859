"""What an audit sees on hardware: each known program's kernels, copies, waits, on their queues."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit.diagnostics.recording.recorder import subscription  # nothing is to be left of it
from streamkit.testing import assert_follows
from support.gpu.raw import (
    Cell,
    check,
    current_context,
    driver,
    make_stream,
    on_device,
    stream_id,
)
from support.libraries import cuda_devices, need
from support.programs import python
from support.queues import within


@pytest.fixture(scope="module")
def torch():
    torch = need("torch")
    torch.zeros(1, device="cuda").fill_(0)
    torch.cuda.synchronize()
    return torch


def test_before_three_libraries_are_on_three_queues_and_after_on_one(subjects, program):
    torch, s = subjects("torch").torch, subjects("torch").new_stream()
    with sk.audit() as report, torch.cuda.stream(s):
        program()
    assert [one.library for one in report.work] == ["torch", "cupy", "warp"]
    assert len(report.queues) == 3
    assert {one.library for one in report.off_queue(s)} == {"cupy", "warp"}
    assert [one.library for one in report.legacy_work] == ["cupy"]
    with pytest.raises(sk.errors.OneQueueError, match=r"(?s)cupy_add.*\[cupy\] on legacy default"):
        report.assert_one_queue(s)
    with sk.audit() as report, sk.use(s):
        program()
    report.assert_one_queue(s)
    report.assert_one_queue(sk.wrap(s))
    assert (report.legacy_work, report.synchronisations, report.waits) == ([], [], [])


def test_waits_and_synchronisations_are_told_from_questions(torch, cells):
    a, b = sk.new_stream(name="a"), sk.new_stream(name="b")
    cell, event = cells(0), torch.cuda.Event()
    with sk.audit() as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, a.handle))
        b.wait(a)
        check(driver.cuStreamSynchronize(b.handle))
        event.record(a.to("torch"))
        event.synchronize()
        _ = event.query(), driver.cuStreamQuery(a.handle)
        torch.cuda.synchronize()
        a.sync()
    (wait,) = report.waits
    assert [queue.name for queue in (wait.after, wait.queue)] == ["a", "b"]
    assert [(one.name, one.queue and one.queue.name) for one in report.synchronisations] == [
        ("cuStreamSynchronize", "b"),
        ("cuEventSynchronize", "a"),
        ("cuCtxSynchronize", None),
        ("sync", "a"),
    ]


def test_blocking_copies_hold_the_host(cells):
    cell = cells(3)
    with sk.audit() as report:
        cell.read()
    (copy,) = report.work
    assert (copy.kind, copy.blocks_host) == ("copy", True)


def test_a_graph_is_one_operation_and_what_escapes_its_capture_is_seen(torch):
    x, y = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    elsewhere, launching = torch.cuda.Stream(), sk.new_stream(name="launching")
    x.add_(1), y.mul_(2)
    with sk.capture():  # the first one of a process makes what no other does
        x.add_(1)
    torch.cuda.synchronize()
    with sk.audit() as report, sk.capture() as g:
        x.add_(1)
        with torch.cuda.stream(elsewhere):
            y.mul_(2)
    assert [one.kind for one in report.off_queue(g.stream)] == ["kernel"]
    with sk.audit() as report:
        g.launch(launching)
    assert [one.name for one in report.work] == ["CUDA graph"]
    report.assert_one_queue(launching)


def test_other_threads_and_nested_audits(torch):
    s = torch.cuda.Stream()
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()

    def fill():
        with torch.cuda.stream(s):
            x.fill_(1)

    with sk.audit() as outer:
        fill()
        with sk.audit() as inner:
            within(fill)
        fill()
    assert (len(inner.work), len(outer.work)) == (1, 3)
    outer.assert_one_queue(s)
    before = subscription._number("count").value
    fill()
    assert subscription._number("count").value == before  # nothing is left behind


@pytest.mark.parametrize("kind", ["pageable", "pinned"])
@pytest.mark.parametrize("to_host", [True, False])
def test_a_copy_of_pageable_memory_holds_the_host_and_one_of_pinned_memory_does_not(
    torch, kind, to_host
):
    """As numba/numba issue 5130 asks: the copy is told, with its line and what to do."""
    s, x = sk.new_stream(name="s"), torch.zeros(1 << 20, device="cuda")
    host = torch.zeros(1 << 20, pin_memory=kind == "pinned")
    x.copy_(host), host.copy_(x)
    torch.cuda.synchronize()
    with sk.audit() as report, sk.use(s, libraries=["torch"]):
        (host.copy_(x, non_blocking=True) if to_host else x.copy_(host, non_blocking=True))
    s.sync()
    copies = [one for one in report.synchronisations if one.kind == "copy"]
    assert len(copies) == (kind == "pageable"), report.operations
    assert all("pinned memory" in one.remedy for one in copies)
    assert {one.file for one in copies} <= {__file__}
    assert len(report.work) == 1


@pytest.mark.parametrize("kind", ["pageable", "pinned"])
def test_numbas_copies_are_told_too(torch, subjects, kind):
    subjects("numba")
    from numba import cuda

    stream, array = cuda.stream(), cuda.device_array(1 << 16, "f4")
    target = cuda.pinned_array(1 << 16, "f4") if kind == "pinned" else array.copy_to_host()
    with sk.audit() as report:
        array.copy_to_host(target, stream=stream)
    stream.synchronize()
    held = [one for one in report.synchronisations if one.remedy]
    assert len(held) == (kind == "pageable"), report.operations


def test_assert_follows_names_a_copy_that_holds_the_host(torch):
    x, pageable = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20)
    pinned = torch.zeros(1 << 20, pin_memory=True)

    def download(target):
        target.copy_(x, non_blocking=True)

    assert_follows(download, pinned, library="torch")
    with pytest.raises(AssertionError, match=r"(?s)the host waits.*test_audit.*pinned memory"):
        assert_follows(download, pageable, library="torch")


def test_a_queue_of_a_stream_that_has_ended_has_its_device_and_is_no_other(torch):
    handle = make_stream()
    s = sk.new_stream(name="s")
    x = torch.zeros(8, device="cuda")
    number = int(check(driver.cuStreamGetId(handle)))
    with sk.audit() as report:
        check(driver.cuMemsetD8Async(x.data_ptr(), 0, 8, handle))
        check(driver.cuStreamDestroy(handle))
        check(driver.cuMemsetD8Async(x.data_ptr(), 0, 8, s.handle))
    (ended,) = report.off_queue(s)
    assert (ended.queue.device, ended.queue.id) == ("cuda:0", number)
    with pytest.raises(sk.errors.OneQueueError, match=f"stream id={number}, which has ended"):
        report.assert_one_queue(s)


def test_raw_work_is_counted_and_placed(cells):
    streams = make_stream(), make_stream(nonblocking=False)
    a, b = cells(1), cells(2)
    with sk.audit() as report:
        check(driver.cuMemsetD32Async(a.pointer, 0, 1, streams[0]))
        check(driver.cuMemcpyDtoDAsync(b.pointer, a.pointer, 4, streams[1]))
        check(driver.cuMemsetD32Async(a.pointer, 0, 1, 1))
        check(driver.cuMemsetD32Async(a.pointer, 0, 1, 2))
    assert [one.kind for one in report.work] == ["fill", "copy", "fill", "fill"]
    assert len(report.queues) == 4
    for handle, one in zip(streams, report.work, strict=False):
        assert len(report.off_queue(sk.from_handle(handle))) == 3
        assert one not in report.off_queue(sk.from_handle(handle))
    assert len(report.off_queue(sk.default_stream(per_thread=True))) == 3
    assert [one.queue.name for one in report.work[2:]] == [
        "legacy default stream",
        "per-thread default stream",
    ]
    assert report.legacy_work == [report.work[2]]


def test_where_streamkit_waits_is_told_and_how_is_not(gate):
    s = sk.new_stream(name="s")
    opener = threading.Timer(0.05, gate.open)  # long enough for the wait to leave the processor
    gate.hold(s.handle)
    with sk.audit() as report:
        opener.start()
        s.sync()
    assert [(sync.name, sync.queue.name) for sync in report.synchronisations] == [("sync", "s")]
    assert report.waits == []


def test_threads_and_graphs_run_on_while_audits_begin_and_end(torch):
    """Other threads are inside CUDA calls while CUPTI's records are switched on and off."""
    stop, sums = threading.Event(), {}

    def work(number):
        s, event, n = torch.cuda.Stream(), torch.cuda.Event(), 0
        with torch.cuda.stream(s):
            x = torch.zeros(256, device="cuda")
            while not stop.is_set():
                x.add_(1)
                event.record(s)
                n += 1
                (s, event)[number % 2].synchronize()
            sums[number] = float(x[0]), n

    count = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    s, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=s):
        count.add_(1)
    queue = sk.wrap(s)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with torch.cuda.stream(s):
                with sk.audit() as report:
                    graph.replay()
                graph.replay()
            assert len([one for one in report.work if one not in report.off_queue(queue)]) == 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    torch.cuda.synchronize()
    assert float(count[0]) == 40
    assert len(sums) == len(threads)
    assert all(found == n > 0 for found, n in sums.values())


def test_numbas_kernel_is_known_by_its_name(subjects, cells):
    subject, src, dst = subjects("numba"), cells(1), cells(0)
    stream = subject.new_stream()
    with sk.audit() as report:
        subject.add_one(stream, src.pointer, dst.pointer)
    (kernel,) = report.work
    assert (kernel.kind, kernel.library) == ("kernel", "numba"), kernel.name
    assert kernel.queue.id == stream_id(subject.handle_of(stream))
    report.assert_one_queue(stream)


def test_an_events_sync_is_on_the_queue_that_recorded_it(cells):
    s, cell = sk.new_stream(name="s"), cells(0)
    with sk.audit() as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, s.handle))
        s.record().sync()
    (fill,) = report.work
    assert [(sync.name, sync.queue) for sync in report.synchronisations] == [
        ("event sync", fill.queue)
    ]


def test_an_error_passes_and_what_ran_is_reported(torch):
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    with pytest.raises(KeyError), sk.audit() as report:  # noqa: PT012 - the rest is what is tested
        x.fill_(1)
        torch.cuda.synchronize()
        raise KeyError
    assert len(report.work) == 1
    with sk.audit() as report:
        x.fill_(1)
    assert len(report.work) == 1


PROGRAM = """
import torch
import streamkit as sk

def profiler():
    activities = torch.profiler.ProfilerActivity
    return torch.profiler.profile(activities=[activities.CPU, activities.CUDA], acc_events=True)

def kernels(profile):
    return sum(one.count for one in profile.key_averages() if str(one.device_type).endswith("CUDA"))

def fill():
    x.fill_(1)
    torch.cuda.synchronize()

x = torch.zeros(8, device="cuda")
with sk.audit() as report:
    fill()
assert len(report.work) == 1
with profiler() as profile:
    fill()
    try:
        with sk.audit():
            fill()
    except sk.errors.ScopeError as error:
        assert "another tool has CUPTI" in str(error)
    else:
        raise AssertionError("it was not refused")
    fill()
assert kernels(profile) >= 2, kernels(profile)
"""


def test_inside_torchs_profiler_it_is_refused_and_the_profiler_unharmed(torch):
    python(PROGRAM)


# -- two devices ------------------------------------------------------------------------------


@pytest.fixture
def there():
    """A stream of the second device, and a cell there."""
    if cuda_devices() < 2:
        pytest.skip("one CUDA device")
    stream = sk.new_stream(1, name="there")
    with on_device(1):
        cell, context = Cell(0), current_context()
    yield SimpleNamespace(stream=stream, handle=stream.handle, cell=cell, context=context)
    with on_device(1):
        check(driver.cuCtxSynchronize())
        cell.free()


def test_the_work_of_two_devices_is_in_one_audit(cells, there):
    here, cell = sk.new_stream(0, name="here"), cells(0)
    with sk.audit() as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, here.handle))
        with on_device(1):
            check(driver.cuMemsetD32Async(there.cell.pointer, 0, 1, there.handle))
            check(driver.cuMemsetD32Async(there.cell.pointer, 0, 1, 1))
    assert sorted((one.kind, str(one.queue)) for one in report.work) == [
        ("fill", "here (cuda:0)"),
        ("fill", "legacy default stream (cuda:1)"),
        ("fill", "there (cuda:1)"),
    ]
    assert {one.queue.device for one in report.off_queue(here)} == {"cuda:1"}
    assert len(report.off_queue(there.stream)) == 2
    assert [one.queue.device for one in report.legacy_work] == ["cuda:1"]
    assert len(report.off_queue(sk.default_stream(0))) == 3
    assert len(report.off_queue(sk.default_stream(1))) == 2


def test_a_wait_across_devices_names_both_queues(cells, there):
    here, cell = sk.new_stream(0, name="here"), cells(0)
    with sk.audit() as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, here.handle))
        there.stream.wait(here)
        with on_device(1):
            check(driver.cuMemsetD32Async(there.cell.pointer, 0, 1, there.handle))
    assert [(str(wait.after), str(wait.queue)) for wait in report.waits] == [
        ("here (cuda:0)", "there (cuda:1)")
    ]


def test_a_copy_to_another_device_is_on_the_queue_that_was_given_it(cells, there):
    here, cell = sk.new_stream(0, name="here"), cells(3)
    with sk.audit() as report:
        check(
            driver.cuMemcpyPeerAsync(
                there.cell.pointer, there.context, cell.pointer, current_context(), 4, here.handle
            )
        )
    (copy,) = report.work
    assert (copy.kind, str(copy.queue), copy.blocks_host) == ("copy", "here (cuda:0)", False)
    assert copy.name == "copy device to another, 4 bytes"
    with on_device(1):
        assert there.cell.read() == 3
