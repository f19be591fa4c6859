"""What an audit sees on hardware: each known program's kernels, copies, waits, on their queues."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import streamkit as sk
from support.gpu.raw import (
    Cell,
    check,
    current_context,
    driver,
    make_stream,
    on_device,
    stream_id,
    sync,
)
from support.libraries import cuda_devices, need
from support.programs import python

cupti = pytest.importorskip("cupti")
pytestmark = pytest.mark.filterwarnings("ignore:from now on every CUDA call:RuntimeWarning")


@pytest.fixture(scope="module")
def torch():
    torch = need("torch")
    torch.zeros(1, device="cuda").fill_(0)
    torch.cuda.synchronize()
    return torch


def where(operations):
    return [(one.library, one.queue.id) for one in operations]


def counted(report):
    kinds = [one.kind for one in report.operations]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


# -- the problem, and its solution ------------------------------------------------------------


def test_before_three_libraries_run_on_three_queues(subjects, program):
    torch, s = subjects("torch").torch, subjects("torch").new_stream()
    warps = stream_id(subjects("warp").handle_of(subjects("warp").current()))
    with sk.audit(times=True) as report, torch.cuda.stream(s):
        program()
    work = {one.library: one for one in report.work}
    assert len(report.work) == 3
    assert work["torch"].queue.key == report._key_of(sk.wrap(s))
    assert (work["cupy"].queue.id, work["cupy"].queue.is_legacy) == (stream_id(1), True)
    assert work["warp"].queue.id == warps
    assert report.legacy_work == [work["cupy"]]
    assert {one.library for one in report.off_queue(s)} == {"cupy", "warp"}
    with pytest.raises(sk.OneQueueError, match=r"(?s)cupy_add.*\[cupy\] on legacy default stream"):
        report.assert_one_queue(s)


def test_after_they_run_on_one(subjects, program):
    s = subjects("torch").new_stream()
    with sk.audit(times=True) as report, sk.use(s):
        program()
    assert where(report.work) == [
        (name, stream_id(s.cuda_stream)) for name in ("torch", "cupy", "warp")
    ]
    report.assert_one_queue(s)
    report.assert_one_queue(sk.wrap(s))
    assert (report.legacy_work, report.synchronisations, report.waits) == ([], [], [])


# -- each kind of operation -------------------------------------------------------------------


def test_raw_work_is_counted_and_placed(cells, gate):
    streams = make_stream(), make_stream(nonblocking=False)
    a, b = cells(1), cells(2)
    with sk.audit(times=True) as report:
        check(driver.cuMemsetD32Async(a.pointer, 0, 1, streams[0]))
        sync(streams[0])  # nothing else orders these, and the report is by start
        check(driver.cuMemcpyDtoDAsync(b.pointer, a.pointer, 4, streams[1]))
        sync(streams[1])
        check(driver.cuMemsetD32Async(a.pointer, 0, 1, 1))
        sync(1)
        check(driver.cuMemsetD32Async(a.pointer, 0, 1, 2))
    assert [one.kind for one in report.work] == ["fill", "copy", "fill", "fill"]
    assert len(report.queues) == 4
    for handle, one in zip(streams, report.work, strict=False):
        assert len(report.off_queue(sk.from_handle(handle))) == 3
        assert one not in report.off_queue(sk.from_handle(handle))
    assert len(report.off_queue(sk.per_thread_stream())) == 3
    assert [one.queue.name for one in report.work[2:]] == [
        "legacy default stream",
        "per-thread default stream",
    ]
    assert report.legacy_work == [report.work[2]]


def test_waits_and_synchronisations_are_told_from_questions(torch, cells):
    a, b = sk.new_stream(name="a"), sk.new_stream(name="b")
    cell, event = cells(0), torch.cuda.Event()
    with sk.audit(times=True) as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, a.handle))
        b.wait(a)
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, b.handle))
        check(driver.cuStreamSynchronize(b.handle))
        event.record(a.to("torch"))
        event.synchronize()
        _ = event.query(), driver.cuStreamQuery(a.handle)
        torch.cuda.synchronize()
    (wait,) = report.waits
    one, two = report.work
    assert (wait.after, wait.queue) == (one.queue, two.queue)
    assert [queue.name for queue in (one.queue, two.queue)] == ["a", "b"]
    assert one.end_ns <= wait.start_ns <= wait.end_ns <= two.start_ns
    assert [(sync.name, sync.queue) for sync in report.synchronisations] == [
        ("cuStreamSynchronize", two.queue),
        ("cudaEventSynchronize", one.queue),
        ("cudaDeviceSynchronize", None),
    ]
    assert counted(report)["record"] == 2


def test_where_streamkit_waits_is_told_and_how_is_not(gate):
    s = sk.new_stream(name="s")
    opener = threading.Timer(0.05, gate.open)  # long enough for the wait to leave the processor
    gate.hold(s.handle)
    with sk.audit(times=True) as report:
        opener.start()
        s.sync()
    assert [(sync.name, sync.queue.name) for sync in report.synchronisations] == [("sync", "s")]
    assert report.waits == []


def test_blocking_copies_hold_the_host(cells):
    cell = cells(3)
    with sk.audit(times=True) as report:
        cell.read()
    (copy,) = report.work
    assert (copy.kind, copy.blocks_host) == ("copy", True)
    assert report.synchronisations == [copy]


def test_a_graph_counts_on_the_queue_that_launches_it(torch):
    s, t, other = (torch.cuda.Stream() for _ in range(3))
    x, y = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=s):
        x.add_(1)
        t.wait_stream(s)
        with torch.cuda.stream(t):
            y.add_(1)
        x.mul_(2)
        s.wait_stream(t)
    with sk.audit(times=True) as report, torch.cuda.stream(other):
        graph.replay()
    assert [one.kind for one in report.work] == ["kernel"] * 3
    assert {one.graph is None for one in report.work} == {False}
    report.assert_one_queue(other)


def test_what_escapes_a_capture_is_seen(torch):
    x, y = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    elsewhere = torch.cuda.Stream()
    x.add_(1), y.mul_(2)
    with sk.capture():  # the first one of a process makes what no other does
        x.add_(1)
    torch.cuda.synchronize()
    with sk.audit(times=True) as report, sk.capture() as g:
        x.add_(1)
        with torch.cuda.stream(elsewhere):
            y.mul_(2)
    (escaped,) = report.off_queue(g.stream)  # torch begins by setting its seed, on g.stream
    assert (escaped.kind, escaped.queue.key) == ("kernel", report._key_of(sk.wrap(elsewhere)))
    assert g.nodes == 1


def test_other_threads_and_nested_audits(torch):
    s = torch.cuda.Stream()
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()

    def fill():
        with torch.cuda.stream(s):
            x.fill_(1)

    with sk.audit(times=True) as outer:
        fill()
        with sk.audit(times=True) as inner:
            thread = threading.Thread(target=fill)
            thread.start()
            thread.join()
        fill()
    assert (len(inner.work), len(outer.work)) == (1, 3)
    assert outer.synchronisations == []  # those of the audits themselves are left out
    fill()
    with sk.audit(times=True) as later:
        pass
    assert later.operations == ()


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
                with sk.audit(times=True) as report:
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


def test_more_work_than_a_buffer_holds(torch):
    x = torch.zeros(8, device="cuda")
    with sk.audit(times=True) as report:
        for _ in range(3000):
            x.fill_(1)
    assert len(report.work) == 3000


def test_numbas_kernel_is_known_by_its_name(subjects, cells):
    subject, src, dst = subjects("numba"), cells(1), cells(0)
    stream = subject.new_stream()
    with sk.audit(times=True) as report:
        subject.add_one(stream, src.pointer, dst.pointer)
    (kernel,) = report.work
    assert (kernel.kind, kernel.library) == ("kernel", "numba"), kernel.name
    assert kernel.queue.key == report._key_of(sk.wrap(stream))
    report.assert_one_queue(stream)


def test_an_events_sync_is_on_the_queue_that_recorded_it(cells):
    s, cell = sk.new_stream(name="s"), cells(0)
    with sk.audit(times=True) as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, s.handle))
        s.record().sync()
    (fill,) = report.work
    assert [(sync.name, sync.queue) for sync in report.synchronisations] == [
        ("event sync", fill.queue)
    ]


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
    with sk.audit(times=True) as report:
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
    with sk.audit(times=True) as report:
        check(driver.cuMemsetD32Async(cell.pointer, 0, 1, here.handle))
        there.stream.wait(here)
        with on_device(1):
            check(driver.cuMemsetD32Async(there.cell.pointer, 0, 1, there.handle))
    assert [(str(wait.after), str(wait.queue)) for wait in report.waits] == [
        ("here (cuda:0)", "there (cuda:1)")
    ]


def test_a_copy_to_another_device_is_on_the_queue_that_was_given_it(cells, there):
    here, cell = sk.new_stream(0, name="here"), cells(3)
    with sk.audit(times=True) as report:
        check(
            driver.cuMemcpyPeerAsync(
                there.cell.pointer, there.context, cell.pointer, current_context(), 4, here.handle
            )
        )
    # without access from one device to the other it goes by the host, on a queue of the driver's
    first, *staged = report.work
    assert (first.kind, str(first.queue), first.blocks_host) == ("copy", "here (cuda:0)", False)
    copies = [one.name for one in (first, *staged)]
    assert copies in (
        ["copy device to another, 4 bytes"],
        ["copy device to host, 4 bytes", "copy host to device, 4 bytes"],
    )
    with on_device(1):
        assert there.cell.read() == 3


# -- how it begins and ends -------------------------------------------------------------------


def test_an_error_passes_and_what_ran_is_reported(torch):
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    with pytest.raises(KeyError), sk.audit(times=True) as report:  # noqa: PT012 - the rest is what is tested
        x.fill_(1)
        torch.cuda.synchronize()
        raise KeyError
    assert len(report.work) == 1
    with sk.audit(times=True) as report:
        x.fill_(1)
    assert len(report.work) == 1


def test_ending_inside_a_capture_is_refused_and_leaves_it_valid(torch):
    s = torch.cuda.Stream()
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(sk.CaptureError, match="ending an audit")
    with torch.cuda.graph(graph, stream=s), refused, sk.audit(times=True):
        x.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert x[0].item() == 1
    with sk.audit(times=True) as report:
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
torch.cuda.synchronize()

# one after the other
for _ in range(2):
    with profiler() as profile:
        fill()
    assert kernels(profile) >= 1
    with sk.audit(times=True) as report:
        fill()
    assert len(report.work) == 1

# the audit inside: refused, and the profiler unharmed
with profiler() as profile:
    fill()
    try:
        with sk.audit(times=True):
            fill()
    except sk.ScopeError as error:
        assert "profiler is running" in str(error)
    else:
        raise AssertionError("it was not refused")
    fill()
assert kernels(profile) >= 2, kernels(profile)

# the profiler inside: noticed, and the next audit unharmed
try:
    with sk.audit(times=True):
        fill()
        with profiler():
            fill()
except sk.ScopeError as error:
    assert "took CUPTI" in str(error)
else:
    raise AssertionError("it was not noticed")
with sk.audit(times=True) as report:
    fill()
assert len(report.work) == 1
"""


def test_audits_and_torchs_profiler_one_after_the_other_and_not_at_once(torch):
    site = Path(cupti.__file__).parents[1]
    python(PROGRAM, options=["-W", "ignore"], path=[site])
