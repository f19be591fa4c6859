"""``audit()`` on hardware, by callbacks: the queues are those of an audit with times."""

from __future__ import annotations

import threading

import pytest

import streamkit as sk
from streamkit.diagnostics.recording.callbacks import subscription  # nothing is to be left of it
from streamkit.testing import assert_follows
from support.gpu.raw import check, driver, make_stream
from support.libraries import need


@pytest.fixture(scope="module")
def torch():
    torch = need("torch")
    torch.zeros(1, device="cuda").fill_(0)
    torch.cuda.synchronize()
    return torch


def told(report):
    return [(one.kind, one.library, one.queue.id) for one in report.work]


def test_before_three_libraries_are_on_three_queues_and_after_on_one(subjects, program):
    torch, s = subjects("torch").torch, subjects("torch").new_stream()
    with sk.audit() as report, torch.cuda.stream(s):
        program()
    assert [one.library for one in report.work] == ["torch", "cupy", "warp"]
    assert len(report.queues) == 3
    assert {one.library for one in report.off_queue(s)} == {"cupy", "warp"}
    assert [one.library for one in report.legacy_work] == ["cupy"]
    with pytest.raises(sk.OneQueueError, match=r"(?s)cupy_add.*\[cupy\] on legacy default stream"):
        report.assert_one_queue(s)
    with sk.audit() as report, sk.use(s):
        program()
    report.assert_one_queue(s)
    report.assert_one_queue(sk.wrap(s))
    assert (report.legacy_work, report.synchronisations, report.waits) == ([], [], [])


@pytest.mark.filterwarnings("ignore:from now on every CUDA call:RuntimeWarning")
def test_it_sees_what_an_audit_with_times_sees(subjects, program):
    pytest.importorskip("cupti")
    torch, s = subjects("torch").torch, subjects("torch").new_stream()
    with sk.audit(times=True) as with_times, sk.audit() as without, torch.cuda.stream(s):
        program()
    assert sorted(told(with_times)) == sorted(told(without))
    assert {one.name for one in with_times.work} == {one.name for one in without.work}


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
            thread = threading.Thread(target=fill)
            thread.start()
            thread.join()
        fill()
    assert (len(inner.work), len(outer.work)) == (1, 3)
    outer.assert_one_queue(s)
    before = len(subscription.facts)
    fill()
    assert len(subscription.facts) == before  # nothing is left behind


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
    with sk.audit() as report:
        check(driver.cuMemsetD8Async(x.data_ptr(), 0, 8, handle))
        check(driver.cuStreamDestroy(handle))
        check(driver.cuMemsetD8Async(x.data_ptr(), 0, 8, s.handle))
    (ended,) = report.off_queue(s)
    assert (ended.queue.device, ended.queue.id) == ("cuda:0", None)
    with pytest.raises(sk.OneQueueError, match="which has ended"):
        report.assert_one_queue(s)
