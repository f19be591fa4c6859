"""``audit()``: what is given to the driver; CUPTI's callbacks are played."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import driver as driver_module  # its own streams are made up here
from streamkit._cuda import loader  # it may find no driver
from streamkit.diagnostics.audit.audit import program_audit  # the command's
from streamkit.diagnostics.recording import places, recorder  # CUPTI is played by no user's code
from streamkit.diagnostics.recording.driver_recorder import DriverRecording  # its end
from support.cupti import NUMBER, PER_THREAD
from support.gpu.raw import (
    another_context,
    check,
    current_context,
    destroy_stream,
    driver,
    make_stream,
    on_device,
)
from support.played_driver import PlayedDriver

pytestmark = pytest.mark.usefixtures("handles")  # what is noted of a queue is kept by handle

ARRAY = 1 << 20


class Calls(PlayedDriver):
    """Plays what a library asks of the driver."""

    def __init__(self):
        super().__init__()
        self.functions = {}

    def launch(self, stream, symbol=b"cupy_add"):
        function = self.functions.setdefault(symbol, len(self.functions) + 1)
        fields = struct.pack("<Q32xQQ", function, int(stream), 0)
        self.call(NUMBER["cuLaunchKernel"], fields, symbol=symbol)

    def fill(self, stream, array=ARRAY, *, is_per_thread=False):
        fields = struct.pack("<Q8xQQ", array, 100, int(stream))
        numbers = PER_THREAD if is_per_thread else NUMBER
        self.call(numbers["cuMemsetD32Async"], fields)


@pytest.fixture
def cupti(monkeypatch):
    played = Calls()
    monkeypatch.setattr(recorder, "_find", lambda: played)
    for module in ("support.cupti", "support.played_driver"):
        monkeypatch.setitem(places._is_users, module, False)
    yield played
    assert played.callback is None


def told(operations):
    return [(one.kind, one.name, one.queue and one.queue.name) for one in operations]


def test_each_kind_of_work_is_on_the_queue_that_was_given_it(cupti):
    s, raw = sk.new_stream(name="mine"), make_stream()
    with sk.audit() as report:
        cupti.launch(s)
        cupti.launch(raw, b"_Z9my_kernelPf")
        cupti.fill(1)
        cupti.fill(0, is_per_thread=True)
        cupti.ask("cuMemcpyDtoDAsync", ARRAY, ARRAY, 8, s.handle)
        cupti.ask("cuMemcpyHtoD", ARRAY, ARRAY, 8)
        cupti.ask("cuMemcpyDtoH", ARRAY, ARRAY, 8)
        cupti.ask("cuGraphLaunch", 5, s.handle)
        cupti.ask("cuMemsetD2D8", 5)
        cupti.ask("cuMemcpy3D", 5)
        cupti.ask("cuLaunchHostFunc", s.handle, 5, 5)
        cupti.ask("cuMemFreeAsync", ARRAY, s.handle)
    raws = sk.from_handle(raw)
    legacy, other = "legacy default stream", f"stream id={raws.id}"
    assert told(report.work) == [
        ("kernel", "cupy_add", "mine"),
        ("kernel", "my_kernel", other),
        ("fill", "fill, 400 bytes", legacy),
        ("fill", "fill, 400 bytes", "per-thread default stream"),
        ("copy", "copy device to device, 8 bytes", "mine"),
        ("copy", "copy host to device, 8 bytes", legacy),
        ("copy", "copy device to host, 8 bytes", legacy),
        ("graph", "CUDA graph", "mine"),
        ("fill", "fill", legacy),
        ("copy", "copy of an array", legacy),
        ("function", "host function", "mine"),
    ]
    assert [one.library for one in report.work[:2]] == ["cupy", None]
    assert {one.queue.device for one in report.work} == {"cuda:0"}
    assert [one.place for one in report.work] == [*range(len(report.work))]
    assert [one.name for one in report.synchronisations] == [
        "copy host to device, 8 bytes",
        "copy device to host, 8 bytes",
        "copy of an array",
    ]
    assert len(report.legacy_work) == 5
    mine = sk.default_stream(per_thread=True)
    strays = [(s, 7), (raws, 10), (mine, 10), (sk.default_stream(0), 6)]
    assert [(stream, len(report.off_queue(stream))) for stream, _ in strays] == strays
    with pytest.raises(sk.errors.OneQueueError, match=r"my_kernel \[library unknown\] on str"):
        report.assert_one_queue(s)


@pytest.fixture
def memory():
    """Memory of the device, pinned memory of the host, and pageable memory."""
    device, pinned = int(check(driver.cuMemAlloc(64))), int(check(driver.cuMemHostAlloc(64, 0)))
    pageable = ctypes.create_string_buffer(64)
    yield device, pinned, ctypes.addressof(pageable)
    check(driver.cuMemFree(device))
    check(driver.cuMemFreeHost(pinned))


def rows(to, pageable):
    """A copy of rows between memory of the device and of the host."""
    host, device = (0, 0, 1, pageable, 0, 0, 8), (0, 0, 2, 0, to, 0, 8)
    side = "QQI4xQQ8xQ"
    values = [value for one in (device, host) for value in (*one[:5], one[6])]
    return ctypes.create_string_buffer(struct.pack(f"<{side}{side}QQ", *values, 8, 2), 128)


def test_a_copy_of_pageable_memory_holds_the_host_at_a_line_and_has_a_remedy(cupti, memory):
    s, (device, pinned, pageable) = sk.new_stream(name="s"), memory
    copied = rows(device, pageable)
    for how in (
        lambda: cupti.ask("cuMemcpyDtoHAsync", pageable, device, 16, s.handle),
        lambda: cupti.ask("cuMemcpyHtoDAsync", device, pageable, 16, s.handle),
        lambda: cupti.ask("cuMemcpyAsync", pageable, device, 16, s.handle),
        lambda: cupti.ask("cuMemcpy2DAsync", ctypes.addressof(copied), s.handle),
    ):
        with sk.audit() as report:
            how()
        (copy,) = report.synchronisations
        assert (copy.kind, copy.blocks_host, copy.queue.name) == ("copy", True, "s")
        assert (copy.file, copy.line > 0) == (__file__, True)
        assert "pinned memory" in copy.remedy
        assert f"on s (cuda:0), {__file__}:{copy.line}: the host waits because" in str(copy)
    with sk.audit() as report:
        cupti.ask("cuMemcpyDtoHAsync", pinned, device, 16, s.handle)
        cupti.ask("cuMemcpyHtoDAsync", device, pinned, 16, s.handle)
        cupti.ask("cuMemcpyAsync", pinned, device, 16, s.handle)
        cupti.ask("cuMemcpyDtoDAsync", device, device, 16, s.handle)
        cupti.ask("cuMemcpyDtoHAsync", pageable, device, 0, s.handle)
    assert len(report.work) == 5
    assert report.synchronisations == []


def test_memory_that_was_pinned_at_the_time_of_the_copy_holds_nothing(cupti, memory):
    s, (device, *_), place = sk.new_stream(), memory, ctypes.c_uint64()

    def make():
        place.value = int(check(driver.cuMemHostAlloc(64, 0)))

    with sk.audit() as report:
        cupti.ask("cuMemHostAlloc", ctypes.addressof(place), 64, meanwhile=make)
        pinned = place.value
        cupti.ask("cuMemcpyDtoHAsync", pinned, device, 16, s.handle)
        cupti.ask("cuMemFreeHost", pinned, meanwhile=lambda: check(driver.cuMemFreeHost(pinned)))
        cupti.ask("cuMemcpyDtoHAsync", pinned, device, 16, s.handle)
    assert [one.blocks_host for one in report.work] == [False, True]


def test_what_holds_the_host_is_told_with_its_line(cupti):
    s = sk.new_stream()
    with sk.audit() as report:
        cupti.ask("cuStreamSynchronize", s.handle)
    (sync,) = report.synchronisations
    assert (sync.file, sync.remedy) == (__file__, "")


def test_calls_that_could_not_be_read_are_work_of_no_known_queue(cupti):
    s = sk.new_stream(name="mine")
    with sk.audit() as report:
        cupti.launch(s)
        ctypes.c_uint64.in_dll(recorder.load(), "recorder_lost").value = 1
    with pytest.raises(sk.errors.OneQueueError, match="could not be read: 1 on a whole device"):
        report.assert_one_queue(s)


def test_queues_of_which_no_id_is_known_are_told_apart(cupti):
    """Of which the driver says nothing when they are first met."""
    handles = make_stream(), make_stream()
    with sk.audit() as report:
        for handle in handles:
            emulator.fail("cuStreamGetId", 999)
            cupti.launch(handle)
    first, second = report.work
    assert (first.queue.id, second.queue.id) == (None, None)
    assert report.off_queue(first.queue) == [second]
    with pytest.raises(sk.errors.OneQueueError, match="1 of 2"):
        report.assert_one_queue(second.queue)


@pytest.mark.parametrize("recorded", ["again outside", "for outside"])
def test_a_wait_for_what_a_capture_has_no_longer_is_no_part_of_it(cupti, recorded):
    a, b, c = (sk.new_stream(name=name) for name in "abc")
    event = sk.new_event()
    with sk.audit() as report:
        cupti.begin(a)
        cupti.really("cuEventRecordWithFlags", event, a, int(recorded == "for outside"))
        if recorded == "again outside":
            cupti.really("cuEventRecord", event, c)
        cupti.really("cuStreamWaitEvent", b, event, 0)
        cupti.launch(b)
        cupti.end(a)
    ((after, queue),) = ((str(one.after), str(one.queue)) for one in report.waits)
    assert (after, queue) == ("c (cuda:0)" if "again" in recorded else "None", "b (cuda:0)")
    assert told(report.work) == [("kernel", "cupy_add", "b")]


@pytest.mark.parametrize("end", ["cuEventDestroy", "cuIpcOpenEventHandle", "cuEventCreate"])
def test_a_wait_for_an_event_that_has_the_handle_of_another_is_not_for_that_ones_queue(cupti, end):
    a, b = sk.new_stream(name="a"), sk.new_stream(name="b")
    place = ctypes.c_uint64(500)
    with sk.audit() as report:
        cupti.ask("cuEventRecord", 500, a.handle)
        cupti.ask(end, 500 if "Destroy" in end else ctypes.addressof(place))
        cupti.ask("cuStreamWaitEvent", b.handle, 500)
    assert [one.after for one in report.waits] == [None]


def test_work_on_one_stream_is_there_and_later_calls_are_not_seen(cupti):
    s = sk.new_stream()
    with sk.audit() as report:
        cupti.launch(s)
    assert cupti.enabled == set()
    cupti.launch(1)
    report.assert_one_queue(s)
    assert len(report.operations) == 1


def test_waits_and_synchronisations_are_told_from_questions(cupti):
    a, b = sk.new_stream(name="a"), sk.new_stream(name="b")
    with sk.audit() as report:
        cupti.ask("cuStreamWaitEvent", b.handle, 500)
        cupti.ask("cuEventRecord", 500, a.handle)
        cupti.ask("cuStreamWaitEvent", b.handle, 500)
        cupti.ask("cuStreamSynchronize", b.handle)
        cupti.ask("cuEventSynchronize", 500)
        cupti.ask("cuCtxSynchronize")
        cupti.ask("cuStreamQuery", b.handle)
        cupti.ask("cuEventQuery", 500)
        cupti.ask("cuMemFree", ARRAY)
    assert [(str(one.after), str(one.queue)) for one in report.waits] == [
        ("None", "b (cuda:0)"),
        ("a (cuda:0)", "b (cuda:0)"),
    ]
    assert told(report.synchronisations) == [
        ("synchronisation", "cuStreamSynchronize", "b"),
        ("synchronisation", "cuEventSynchronize", "a"),
        ("synchronisation", "cuCtxSynchronize", None),
    ]
    assert told(report.operations)[1] == ("record", "record", "a")
    assert report.work == []


@pytest.mark.parametrize("code", [0, 901])
def test_work_in_a_capture_is_none_until_its_end_which_can_fail(cupti, code):
    s = sk.new_stream(nonblocking=True, name="mine")
    with sk.audit() as report:
        cupti.begin(s)
        cupti.launch(s)
        cupti.launch(1, b"cupy_escaped")
        if code:
            driver.cuStreamQuery(s.handle)  # which breaks the capture
        cupti.end(s, code)
        cupti.launch(s)
    escaped = "kernel", "cupy_escaped", "legacy default stream"
    assert told(report.work) == [escaped, ("kernel", "cupy_add", "mine")]


@pytest.mark.parametrize("block", [sk.audit, sk.races])
def test_a_stream_or_context_that_ends_before_the_report_is_made_is_asked_for_nothing(
    cupti, handles, monkeypatch, block
):
    """As by the collector, by another thread, or by the program itself."""
    ends, stop = contextlib.ExitStack(), DriverRecording.stop

    def stop_and_end(recording):
        stop(recording)
        destroy_stream(stream)
        ends.close()

    monkeypatch.setattr(DriverRecording, "stop", stop_and_end)
    ends.enter_context(another_context())
    stream, legacy = make_stream(), int(check(driver.cuStreamGetId(1)))
    with block() as report:
        cupti.fill(stream)
        cupti.fill(1)
    named = [(one.name, one.id, one.device) for one in getattr(report, "queues", ())]
    mine = f"stream id={legacy - 1}", legacy - 1, "cuda:0"
    assert named == [mine, ("legacy default stream", legacy, "cuda:0")][: 2 * (block is sk.audit)]


def test_it_ends_while_a_stream_captures_and_leaves_the_capture_whole(cupti):
    s, other = sk.new_stream(nonblocking=True), sk.new_stream(name="other")
    check(driver.cuStreamBeginCapture(s.handle, driver.CUstreamCaptureMode(0)))
    with sk.audit() as report:
        cupti.launch(s)
        cupti.launch(other)
    assert int(check(driver.cuStreamIsCapturing(s.handle))) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(s.handle))))
    assert told(report.work) == [("kernel", "cupy_add", "other")]


def test_streams_that_end_inside_are_told_apart(cupti):
    emulator.recycle(True)
    with sk.audit() as report:
        cupti.launch(1)  # so that the stream is made later than the audit begins
        handle = make_stream()
        s = sk.from_handle(handle)
        cupti.launch(handle)
        destroy_stream(handle)
        cupti.ask("cuStreamDestroy", handle)
        assert make_stream() == handle
        number = int(check(driver.cuStreamGetId(handle)))
        cupti.launch(handle)
        destroy_stream(handle)
        cupti.ask("cuStreamDestroy", handle)
    report.off_queue(s)
    others = ["legacy default stream", f"stream id={number}, which has ended"]
    assert [one.queue.name for one in report.work] == [
        others[0], f"stream id={s.id}", others[1],
    ]  # fmt: skip
    assert [one.queue.name for one in report.off_queue(s)] == others


def test_the_work_of_streamkits_own_streams_is_left_out(cupti, monkeypatch):
    s, own = sk.new_stream(name="s"), make_stream()
    monkeypatch.setattr(driver_module, "private_streams", [(current_context(), own)])
    with sk.audit() as report:
        cupti.launch(own)
        cupti.launch(s)
    assert told(report.work) == [("kernel", "cupy_add", "s")]
    destroy_stream(own)


@pytest.mark.parametrize("closed", [False, True])
def test_a_sync_is_on_the_queue_of_its_stream(cupti, closed):
    del cupti
    s = sk.new_stream(name="mine")
    with sk.audit() as report:
        s.sync()
        if closed:
            s.close()
    assert told(report.synchronisations) == [("synchronisation", "sync", "mine")]


def test_audits_and_races_nest(cupti):
    s, t = sk.new_stream(), sk.new_stream()
    array = int(check(driver.cuMemAlloc(400)))
    with sk.audit() as outer:
        cupti.fill(s, array)
        with sk.races() as races, sk.audit() as inner:
            cupti.fill(s, array)
            cupti.fill(t, array)
        cupti.fill(s, array)
    assert (len(outer.work), races.coverage.total, len(inner.work)) == (4, 2, 2)
    (race,) = races.races  # the audit around it asks for no lines
    assert race.first.file == race.second.file == __file__
    check(driver.cuMemFree(array))


def test_a_cupti_that_another_tool_has_is_told(cupti):
    cupti.code = 39
    with pytest.raises(sk.errors.ScopeError, match="serves one at a time"), sk.audit():
        pass


def test_without_cupti_the_line_that_installs_it_is_named(monkeypatch):
    def find():
        raise recorder.NoCallbacksError("there is no libcupti: pip install it")

    monkeypatch.setattr(recorder, "_find", find)
    missing = pytest.raises(
        sk.errors.BackendNotInstalledError, match=r"CUPTI and the recorder: .* install it\."
    )
    with missing, sk.audit():
        pass


@pytest.mark.parametrize("per_thread", [False, True])
def test_work_and_a_wait_of_a_default_stream_are_on_one_queue(cupti, per_thread):
    s = sk.default_stream(per_thread=per_thread)
    with sk.audit() as report:
        cupti.fill(s.handle)
        s.sync()
    (queue,) = {one.queue for one in report.operations}
    assert queue.device == "cuda:0"


@pytest.mark.parametrize("mine", [False, True])
def test_a_default_stream_is_that_of_its_device_though_another_is_current_at_the_end(cupti, mine):
    s, other = (sk.default_stream(device, per_thread=mine) for device in (0, 1))
    with on_device(1), sk.audit() as report, on_device(0):
        cupti.fill(s.handle)
    report.assert_one_queue(s)
    assert len(report.off_queue(other)) == 1


def test_host_queues_beside_cuda_are_in_their_place_of_the_order(cupti):
    gpu, other, host = sk.new_stream("cuda"), sk.new_stream("cuda"), sk.new_stream("cpu")
    with sk.audit() as report:
        host.submit(sum, [1])
        cupti.fill(gpu)
        cupti.ask("cuEventRecord", 500, gpu.handle)
        host.submit(len, "ab")
        cupti.ask("cuStreamWaitEvent", other.handle, 500, 0)
        cupti.fill(other)
    found = [(one.name.partition(",")[0], one.place) for one in report.work]
    assert found == [("sum", 0), ("fill", 1), ("len", 2), ("fill", 3)]
    (wait,) = report.waits  # from after the first fill to before the second one
    assert (wait.since, wait.place, wait.after.id) == (2, 3, gpu.id)


@pytest.mark.parametrize("known", [True, False], ids=["made before", "made inside"])
def test_a_stream_that_is_closed_inside_keeps_its_name_and_its_work(cupti, known):
    made = sk.new_stream(name="mine") if known else None
    with sk.audit() as report:
        s = made or sk.new_stream(name="mine")
        cupti.launch(s)
        s.close()
    (queue,) = report.queues
    assert (queue.name, queue.device, queue.id) == ("mine", "cuda:0", s.id)
    report.assert_one_queue(s)


def test_meeting_a_stream_that_captures_leaves_the_capture_whole(cupti):
    raw = make_stream()
    held = sk.from_handle(raw, owner=object())
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(0)))
    with sk.audit() as report:
        assert sk.from_handle(raw) == held
        assert int(check(driver.cuStreamIsCapturing(raw))) == 1
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
        cupti.launch(raw)
    assert report.queues[0].id == held.id


@pytest.mark.parametrize("quick", [False, True])
def test_an_events_sync_is_on_the_queue_that_recorded_it_last(cupti, quick):
    del cupti
    s, t = sk.new_stream(name="first"), sk.new_stream(name="last")
    if quick:  # from its second record on
        t.record()
    event, never = s.record(), sk.new_event()
    with sk.audit() as report:
        t.record(event)
        t.close()
        event.sync()
        never.sync()
    assert [str(one.queue) for one in report.synchronisations] == ["last (cuda:0)", "None"]


def test_of_an_event_that_others_may_record_the_queue_is_not_guessed(cupti, warp):
    del cupti
    s = sk.new_stream()
    event, in_graph = sk.wrap_event(warp.Event("cuda:0")), s.record()
    s.record(event)
    check(driver.cuStreamBeginCapture(s.handle, driver.CUstreamCaptureMode(1)))
    s.record(in_graph, external=True)
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(s.handle))))
    with sk.audit() as report:
        event.sync()
        in_graph.sync()
    assert [one.queue for one in report.synchronisations] == [None, None]


def test_a_wait_has_no_source_once_a_node_of_a_graph_records_its_event(cupti):
    recorded = 6, 7  # the sorts of nodes that wait for an event, and that record one
    a, b, event = sk.new_stream(), sk.new_stream(), 500
    with sk.audit() as report:
        for sort in (0, *recorded):  # at first a node without an event
            node = ctypes.create_string_buffer(struct.pack("<i12xQ", sort, event))
            cupti.ask("cuEventRecord", event, a.handle)
            cupti.ask("cuGraphAddNode", 0, 0, 0, 0, ctypes.addressof(node))
            cupti.ask("cuStreamWaitEvent", b.handle, event, 0)
    assert [one.after and one.after.id for one in report.waits] == [a.id, None, None]


def test_a_stream_of_another_library_is_called_by_it(cupti, warp):
    s, owned = sk.wrap(warp.get_stream("cuda:0")), sk.new_stream()
    with sk.audit() as report:
        cupti.launch(s)
        cupti.launch(owned)
    names = [f"Warp stream id={s.id}", f"StreamKit stream id={owned.id}"]
    assert [queue.name for queue in report.queues] == names


def test_after_an_error_in_the_block_the_queues_have_their_names(cupti):
    s = sk.new_stream(name="mine")
    with pytest.raises(KeyError), sk.audit() as report:  # noqa: PT012 - the rest is what is tested
        cupti.launch(s)
        cupti.launch(1)
        raise KeyError
    names = ["mine (cuda:0)", "legacy default stream (cuda:0)"]
    assert [str(queue) for queue in report.queues] == names
    s.close()
    assert report.off_queue(s) == report.legacy_work == report.work[1:]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("error", [None, ValueError("of the block")])
def test_a_forked_child_calls_nothing_of_cupti(cupti, monkeypatch, error):
    stream, called = sk.new_stream(), []
    audit = sk.audit()
    audit.__enter__()
    stream.record()
    child = os.fork()
    if not child:
        status = 1
        try:
            for name in ("cuptiSubscribe", "cuptiEnableCallback", "cuptiUnsubscribe"):
                monkeypatch.setattr(cupti, name, lambda *_, name=name: called.append(name))
            told = is_left(audit, error)
            with sk.audit() as report:  # of host streams, which a child can make and use
                sk.new_stream("cpu").submit(int)
            status = not (told and len(report.work) == 1 and not called)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    audit.__exit__(None, None, None)


def is_left(audit, error):
    """Whether the end of an audit says that this is a forked child, or passes the block's error."""
    try:
        swallowed = audit.__exit__(error and type(error), error, None)
    except sk.errors.ForkedProcessError:
        return error is None
    return error is not None and not swallowed


def test_a_program_is_audited_before_it_initialises_cuda(cupti, monkeypatch):
    """Nothing asks the driver before the program does, which may first choose its devices."""
    monkeypatch.setattr(driver_module, "is_available", lambda: pytest.fail("it was asked"))
    stream = sk.new_stream("cuda")
    with program_audit() as report:
        cupti.fill(stream)
    assert [one.queue.id for one in report.work] == [stream.id]
    monkeypatch.setattr(loader, "driver_version", lambda: 0)
    with program_audit() as report:
        sk.new_stream("cpu").submit(int)
    assert [one.name for one in report.work] == ["int"]
