"""How an audit with times begins and ends on CUDA, and its queues; CUPTI's part is played."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import threading
import warnings

import pytest

import streamkit as sk
from emulator.fake_cupti import Cupti, Kind
from streamkit._cuda import driver as driver_module  # its calls are made to fail
from streamkit.diagnostics.audit.cupti import collector  # it must not stay on
from streamkit.diagnostics.audit.cupti_recorder import (
    CudaRecorder,  # two recorders may begin at once
)
from support.gpu.raw import check, current_context, destroy_stream, driver, make_stream, stream_id

pytestmark = pytest.mark.filterwarnings("ignore:from now on every CUDA call:RuntimeWarning")


@pytest.fixture
def cupti(monkeypatch):
    """The stand-in; afterwards nothing may be recording."""
    cupti, sync = Cupti(), driver_module.sync_context

    def sync_context(context):
        sync(context)
        cupti.synchronised(context)

    monkeypatch.setattr(driver_module, "sync_context", sync_context)
    monkeypatch.setitem(sys.modules, "cupti", cupti)
    monkeypatch.setitem(sys.modules, "cupti.cupti", cupti)
    yield cupti
    assert cupti.enabled == set()
    assert collector._open == 0


def without_cupti(monkeypatch):
    """Let no import find it, nor the part of it that another test may have imported."""
    for name in ("cupti", "cupti.cupti"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("has_private", [False, True], ids=["", "with a private stream"])
def test_without_cupti_the_line_that_installs_it_is_named(monkeypatch, has_private):
    private = [(current_context(), make_stream())] if has_private else []
    monkeypatch.setattr(driver_module, "private_streams", private)
    without_cupti(monkeypatch)
    with (
        pytest.raises(sk.BackendNotInstalledError, match=r'"cupti-python>=13,<14"'),
        sk.audit(times=True),
    ):
        pass


def test_it_warns_once_that_cupti_stays_attached(cupti, monkeypatch):
    monkeypatch.setattr(collector, "_has_warned", False)
    with warnings.catch_warnings(record=True, action="always") as told:
        for _ in range(2):
            with sk.audit(times=True):
                pass
    (one,) = told
    assert "every CUDA call of this process costs more" in str(one.message)
    assert (one.category, one.filename) == (RuntimeWarning, __file__)


def test_a_warning_that_is_an_error_lets_no_audit_begin(cupti, monkeypatch):
    monkeypatch.setattr(collector, "_has_warned", False)
    with warnings.catch_warnings(action="error"):
        for _ in range(2):  # nothing has been attached
            with pytest.raises(RuntimeWarning), sk.audit(times=True):
                pytest.fail("it began")
    assert cupti.enabled == set()


def test_without_cupti_nothing_is_said_of_what_stays(monkeypatch):
    monkeypatch.setattr(collector, "_has_warned", False)
    without_cupti(monkeypatch)
    missing = pytest.raises(sk.BackendNotInstalledError)
    with warnings.catch_warnings(record=True, action="always") as told, missing:
        sk.audit(times=True).__enter__()
    assert told == []


def test_no_cupti_of_cuda_13_is_advised_among_libraries_of_cuda_12(monkeypatch, tmp_path):
    folder = tmp_path / "cuda_bindings-12.9.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: cuda-bindings\nVersion: 12.9.2\n")
    only_here = functools.partial(importlib.metadata.distributions, path=[str(tmp_path)])
    monkeypatch.setattr(importlib.metadata, "distributions", only_here)
    without_cupti(monkeypatch)
    with (
        pytest.raises(sk.BackendNotInstalledError, match="Those here are of CUDA 12"),
        sk.audit(times=True),
    ):
        pass


def test_work_is_on_the_queue_that_ran_it(cupti):
    context, s, raw = current_context(), sk.new_stream(name="mine"), make_stream()
    with sk.audit(times=True) as report:
        for handle in (s.handle, raw, 1, 2):
            cupti.ran("cupy_add", context, handle)
    names = [one.queue.name for one in report.work]
    assert names[0] == "mine"
    assert names[1].startswith("stream #")
    assert names[2:] == ["legacy default stream", "per-thread default stream"]
    assert {one.queue.device for one in report.work} == {"cuda:0"}
    assert [one.queue.id for one in report.work[:3]] == [s.id, None, stream_id(1)]
    assert report.legacy_work == [report.work[2]]
    for stream, one in zip((s, sk.from_handle(raw)), report.work, strict=False):
        assert one not in report.off_queue(stream)
        assert len(report.off_queue(stream)) == 3


@pytest.mark.parametrize("known", [True, False], ids=["made before", "made inside"])
def test_a_stream_that_is_closed_inside_keeps_its_name_and_its_work(cupti, known):
    made = sk.new_stream(name="mine") if known else None
    with sk.audit(times=True) as report:
        s = made or sk.new_stream(name="mine")
        cupti.ran("cupy_add", current_context(), s.handle)
        s.close()
    (queue,) = report.queues
    assert (queue.name, queue.device, queue.id) == ("mine", "cuda:0", s.id)
    report.assert_one_queue(s)


def test_meeting_a_stream_that_captures_leaves_the_capture_whole(cupti):
    raw = make_stream()
    mode = driver.CUstreamCaptureMode(0)
    held = sk.from_handle(raw, owner=object())
    check(driver.cuStreamBeginCapture(raw, mode))
    with sk.audit(times=True) as report:
        assert sk.from_handle(raw) == held
        assert int(check(driver.cuStreamIsCapturing(raw))) == 1
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
        cupti.ran("cupy_add", current_context(), raw)
    assert report.queues[0].id == held.id  # what could not be asked there is asked at the end


@pytest.mark.parametrize("closed", [False, True])
def test_a_sync_is_on_the_queue_of_its_stream(cupti, closed):
    s = sk.new_stream(name="mine")
    with sk.audit(times=True) as report:
        s.sync()
        sk.default_stream(0).sync()
        if closed:
            s.close()
    assert [(one.name, str(one.queue)) for one in report.synchronisations] == [
        ("sync", "mine (cuda:0)"),
        ("sync", "legacy default stream (cuda:0)"),
    ]


@pytest.mark.parametrize("quick", [False, True])
def test_an_events_sync_is_on_the_queue_that_recorded_it_last(cupti, quick):
    s, t, default = sk.new_stream(name="first"), sk.new_stream(name="last"), sk.default_stream(0)
    if quick:  # from its second record on
        t.record()
    event, never, on_default = s.record(), sk.new_event(), default.record()
    with sk.audit(times=True) as report:
        t.record(event)
        t.close()
        for one in (event, never, on_default):
            one.sync()
    names = [str(one.queue) for one in report.synchronisations]
    assert names == ["last (cuda:0)", "None", "legacy default stream (cuda:0)"]


def test_of_an_event_that_others_may_record_the_queue_is_not_guessed(cupti, warp):
    s = sk.new_stream()
    event, in_graph = sk.wrap_event(warp.Event("cuda:0")), s.record()
    s.record(event)
    check(driver.cuStreamBeginCapture(s.handle, driver.CUstreamCaptureMode(1)))
    s.record(in_graph, external=True)
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(s.handle))))
    with sk.audit(times=True) as report:
        event.sync()
        in_graph.sync()
    assert [one.queue for one in report.synchronisations] == [None, None]


def test_a_stream_of_another_library_is_called_by_it(cupti, warp):
    context, s = current_context(), sk.wrap(warp.get_stream("cuda:0"))
    with sk.audit(times=True) as report:
        cupti.ran("f_cuda_kernel_forward", context, s.handle)
    assert report.queues[0].name == f"Warp stream id={s.id}"
    owned = sk.new_stream()
    with sk.audit(times=True) as report:
        cupti.ran("f", context, owned.handle)
    assert report.queues[0].name == f"StreamKit stream id={owned.id}"


def test_the_work_of_streamkits_own_streams_is_left_out(cupti, monkeypatch):
    monkeypatch.setattr(driver_module, "private_streams", [])
    context, s = current_context(), sk.new_stream()
    own = driver_module.create_private_stream(0, nonblocking=True, priority=0)
    with sk.audit(times=True) as report:
        cupti.ran("set-up", context, own)
        cupti.ran("a", context, s.handle)
    assert [one.name for one in report.work] == ["a"]
    assert [queue.id for queue in report.queues] == [s.id]
    report.assert_one_queue(s)
    destroy_stream(own)


def test_the_end_waits_for_every_context_with_work(cupti, monkeypatch):
    waited, sync = [], driver_module.sync_context  # the stand-in's, which goes on
    monkeypatch.setattr(
        driver_module, "sync_context", lambda context: (waited.append(context), sync(context))
    )
    streams = [sk.new_stream(device) for device in range(2)]
    with sk.audit(times=True):
        pass
    assert {stream.context for stream in streams} <= set(waited)


def test_calls_that_put_nothing_on_a_queue_are_not_recorded(cupti):
    with sk.audit(times=True):
        assert cupti.left_out == [("driver", 1), ("runtime", 7)]
        assert cupti.enabled == set(Kind)


def test_audits_nest_and_the_first_and_last_alone_begin_and_end(cupti):
    context, s = current_context(), sk.new_stream()
    with sk.audit(times=True) as outer:
        cupti.ran("a", context, s.handle)
        with sk.audit(times=True) as inner:
            cupti.ran("b", context, s.handle)
        cupti.ran("c", context, s.handle)
    assert [one.name for one in inner.work] == ["b"]
    assert [one.name for one in outer.work] == ["a", "b", "c"]
    assert outer.synchronisations == []
    assert len(cupti.enabled_ever) == len(Kind)


def test_an_audit_that_begins_at_once_takes_no_records_away(cupti):
    first, second = CudaRecorder(), CudaRecorder()
    first.start()
    cupti.ran("a", current_context(), 1)
    first.sync()
    first.stop()
    second.start()  # in another thread, say
    try:
        assert [one.name for one in first.operations() if one.is_work] == ["a"]
    finally:
        second.stop()


def test_an_audit_that_begins_while_another_thread_ends_the_last_one_records(cupti, monkeypatch):
    first, second, disable = CudaRecorder(), CudaRecorder(), cupti.activity_disable
    beginning = threading.Thread(target=second.start)

    def disable_meanwhile(kind):
        if beginning.ident is None:
            beginning.start()
            beginning.join(0.05)  # long enough to begin, unless it waits for this end
        disable(kind)

    monkeypatch.setattr(cupti, "activity_disable", disable_meanwhile)
    first.start()
    first.stop()
    beginning.join()
    try:
        assert cupti.enabled == set(Kind)
    finally:
        second.stop()


def test_an_error_in_the_block_passes_and_recording_ends(cupti):
    with pytest.raises(KeyError), sk.audit(times=True) as report:  # noqa: PT012 - the rest is what is tested
        cupti.ran("a", current_context(), 1)
        raise KeyError
    assert [one.name for one in report.work] == ["a"]


def test_after_an_error_in_the_block_the_queues_have_their_names(cupti):
    s = sk.new_stream(name="mine")
    with pytest.raises(KeyError), sk.audit(times=True) as report:  # noqa: PT012 - the rest is what is tested
        cupti.ran("a", current_context(), s.handle)
        cupti.ran("b", current_context(), 1)
        raise KeyError
    assert [str(queue) for queue in report.queues] == [
        "mine (cuda:0)",
        "legacy default stream (cuda:0)",
    ]
    assert [one.name for one in report.legacy_work] == ["b"]
    s.close()
    assert [one.name for one in report.off_queue(s)] == ["b"]


def test_an_error_in_a_capture_leaves_the_capture_whole(cupti):
    raw = make_stream(nonblocking=False)
    sk.default_stream(0)
    with pytest.raises(KeyError), sk.audit(times=True):  # noqa: PT012 - the rest is what is tested
        check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(0)))
        raise KeyError
    assert int(check(driver.cuStreamIsCapturing(raw))) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))


CALLS = ("activity_enable", "activity_disable", "activity_flush_all", "get_timestamp",
         "get_context_id", "get_stream_id_ex", "activity_register_callbacks")  # fmt: skip


def is_left(audit, error):
    """Whether the end of an audit says that this is a forked child, or passes the block's error."""
    try:
        swallowed = audit.__exit__(error and type(error), error, None)
    except sk.ForkedProcessError:
        return error is None
    return error is not None and not swallowed


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("error", [None, ValueError("of the block")])
def test_a_forked_child_calls_nothing_of_cupti(cupti, error):
    stream, host, called = sk.new_stream(), sk.new_stream("cpu"), []
    audit = sk.audit(times=True)
    audit.__enter__()
    stream.record()
    child = os.fork()
    if not child:
        status = 1
        try:
            for name in CALLS:
                setattr(cupti, name, lambda *_, name=name: called.append(name))
            told = is_left(audit, error)
            with sk.audit(times=True) as report:  # of host streams, which a child can use
                host.submit(int)
            status = not (told and len(report.work) == 1 and not called)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    audit.__exit__(None, None, None)


def test_cupti_that_refuses_is_told_and_nothing_is_left_on(cupti):
    cupti.refuses = Kind.CUDA_EVENT
    with (
        pytest.raises(sk.ScopeError, match=r"CUPTI cannot record here .*SUBSCRIBERS"),
        sk.audit(times=True),
    ):
        pytest.fail("it began")


def test_that_it_cannot_be_switched_off_does_not_hide_why_cupti_refused(cupti, monkeypatch):
    def disable(kind):
        cupti.enabled.discard(kind)
        raise RuntimeError("ERROR_INVALID_OPERATION")

    cupti.refuses = Kind.CUDA_EVENT
    monkeypatch.setattr(cupti, "activity_disable", disable)
    with (
        pytest.raises(sk.ScopeError, match=r"CUPTI cannot record here .*SUBSCRIBERS"),
        sk.audit(times=True),
    ):
        pytest.fail("it began")


def test_records_that_another_tool_got_are_missed(cupti):
    with pytest.raises(sk.ScopeError, match="took CUPTI"), sk.audit(times=True):
        cupti.is_taken = True


@pytest.mark.parametrize("known", [True, False], ids=["known and non-blocking", "unknown"])
def test_ending_in_a_capture_is_refused_and_leaves_it_whole(cupti, known):
    raw = make_stream(nonblocking=known)
    _held = sk.from_handle(raw, owner=object()) if known else sk.default_stream(0)
    mode = driver.CUstreamCaptureMode(1)
    with pytest.raises(sk.CaptureError, match="ending an audit"), sk.audit(times=True):
        check(driver.cuStreamBeginCapture(raw, mode))
    assert int(check(driver.cuStreamIsCapturing(raw))) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    with sk.audit(times=True) as report:
        pass
    assert report.operations == ()


def test_a_library_that_captures_on_a_stream_nobody_wrapped_is_noticed(cupti, warp):
    raw = make_stream()
    mode = driver.CUstreamCaptureMode(1)
    view = warp.Stream("cuda:0", cuda_stream=raw)
    with warp.ScopedStream(view, sync_enter=False):
        with pytest.raises(sk.CaptureError, match="ending an audit"), sk.audit(times=True):
            check(driver.cuStreamBeginCapture(raw, mode))
        assert int(check(driver.cuStreamIsCapturing(raw))) == 1
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
