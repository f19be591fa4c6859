"""``audit`` on host streams: what it records, what its report answers, and how it ends."""

from __future__ import annotations

import contextlib
import functools
import json
import threading

import pytest

import streamkit as sk
from streamkit._queues import trace  # no public name tells who listens
from streamkit.diagnostics.audit.audit import AuditReport  # reports are made up here
from streamkit.diagnostics.races.host_recorder import RaceRecorder  # made to fail here
from streamkit.diagnostics.recording.host_recorder import HostRecorder  # made to fail here
from streamkit.diagnostics.recording.operations import AuditedQueue, Operation  # made up here

pytestmark = pytest.mark.usefixtures("no_driver")


def first():
    pass


def second():
    pass


def host_waits(report):
    return [(one.name, one.queue and one.queue.name) for one in report.synchronisations]


def test_functions_are_recorded_with_their_names_queues_and_places(stream, other):
    with sk.audit() as report:
        stream.submit(first)
        thread = threading.Thread(target=other.submit, args=(functools.partial(second),))
        thread.start()
        thread.join()
        stream.submit("".join, [])
    assert {(one.name, one.queue.name) for one in report.work} == {
        ("first", "s"),
        ("second", "other"),
        ("str.join", "s"),
    }
    assert [one.place for one in report.work] == [0, 1, 2]
    assert {queue.id for queue in report.queues} == {stream.id, other.id}
    assert report.unfinished == 0


def test_the_end_waits_for_every_stream(stream, other, hold):
    """Whichever it waits for first: each opens last once."""
    for last in ((stream, other), (other, stream)):
        gates, is_over = [hold(one) for one in last], threading.Event()

        def open_in_turn(gates=gates, is_over=is_over):
            gates[0].open()
            is_over.wait(0.2)  # an audit that waits for that one alone ends here
            gates[1].open()

        opener = threading.Thread(target=open_in_turn)
        with sk.audit() as report:
            stream.submit(first)
            other.submit(second)
            opener.start()
        is_over.set()
        opener.join()
        assert report.unfinished == 0
        assert {one.name for one in report.work} == {"first", "second"}


def test_what_ran_before_and_after_is_left_out(stream):
    stream.submit(first)
    stream.sync()
    with sk.audit() as report:
        pass
    stream.submit(second)
    stream.sync()
    assert report.operations == ()
    assert trace.listeners == []


def test_a_wait_names_its_queue_and_lies_between_what_it_orders(stream, other, hold):
    gate = hold(stream)
    with sk.audit() as report:
        stream.submit(first)
        other.wait(stream)
        other.submit(second)
        threading.Timer(0.1, gate.open).start()
    (wait,) = report.waits
    before, after = report.work
    assert (wait.after, wait.queue) == (before.queue, after.queue)
    assert (before.place, wait.since, wait.place, after.place) == (0, 1, 1, 1)
    assert [one.kind for one in report.operations].count("record") == 1


def test_the_body_of_a_scope_is_work_and_a_sync_holds_the_host(stream):
    with sk.audit() as report:
        with stream:
            pass
        stream.record().sync()
        stream.sync()
    assert [one.kind for one in report.work] == ["scope"]
    assert host_waits(report) == [("event sync", "s"), ("sync", "s")]


def test_a_scope_that_has_to_wait_for_its_turn_holds_the_host(stream, other, hold):
    gate = hold(stream)
    with sk.audit() as report:
        stream.submit(first)
        threading.Timer(0.1, gate.open).start()
        with stream, other:  # the other one is idle
            pass
    ran, body, _ = report.work
    (wait,) = report.synchronisations
    assert host_waits(report) == [("with", "s")]
    assert ran.place < wait.place
    assert {body.queue.name, ran.queue.name} == {"s"}


def test_an_event_is_on_the_queue_that_recorded_it_last(stream, other):
    event, never = stream.record(), sk.new_event(device="cpu")
    other.record(event)
    gone = sk.new_stream("cpu").record()
    with sk.audit() as report:
        for one in (event, never, gone):
            one.sync()
    names = [queue for _, queue in host_waits(report)]
    assert names == ["other", None, None]


def test_all_is_in_the_order_in_which_it_was_given_whatever_ran_first(stream, other, hold):
    gate = hold(stream)
    with sk.audit() as report:
        stream.submit(first)
        event = stream.record()
        other.submit(second)
        other.sync()  # so that the first one runs last
        gate.open()
        other.wait(event)
        other.submit(first)
    kinds = [(one.kind, one.place) for one in report.operations]
    assert kinds == [
        ("function", 0),
        ("record", 1),
        ("function", 1),
        ("synchronisation", 2),
        ("wait", 3),
        ("function", 3),
    ]
    (wait,) = report.waits
    assert (wait.since, wait.place) == (1, 3)


def test_a_wait_for_a_future_is_a_wait(stream, other):
    with sk.audit() as report:
        future = stream.then(first)
        other.wait(future)
        other.submit(second)
    (wait,) = report.waits
    assert [(one.name, one.queue.name) for one in report.work] == [("second", "other")]
    assert (wait.name, wait.queue.name, wait.after.name) == ("wait", "other", "s")


def test_a_wait_for_what_was_recorded_before_names_no_queue(stream, other):
    event = stream.record()
    stream.sync()
    with sk.audit() as report:
        stream.submit(first)
        other.wait(event)
    (wait,) = report.waits
    assert (wait.after, wait.since, wait.place) == (None, 1, 1)


def test_whose_function_it_is_tells_its_module(stream):
    numpy = pytest.importorskip("numpy")
    with sk.audit() as report:
        stream.submit(numpy.zeros, 3)
        stream.submit(numpy.zeros(3).sort)  # which has no module of its own
        stream.submit(first)
        with stream:
            pass
    assert [one.library for one in report.work] == ["numpy", "numpy", None, None]
    assert [one.blocks_host for one in report.work] == [False] * 4


def test_audits_nest(stream):
    with sk.audit() as outer:
        stream.submit(first)
        with sk.audit() as inner:
            stream.submit(second)
    assert [one.name for one in inner.work] == ["second"]
    assert [one.name for one in outer.work] == ["first", "second"]


def test_an_error_passes_and_the_report_holds_what_had_run(stream, hold):
    ran = threading.Event()
    with pytest.raises(KeyError), sk.audit() as report:  # noqa: PT012 - the rest is what is tested
        stream.submit(ran.set)
        stream.sync()
        hold(stream)
        stream.submit(second)
        raise KeyError
    assert [one.name for one in report.work if one.name == "second"] == []
    assert [one.name for one in report.work][:1] == ["Event.set"]
    assert report.unfinished >= 1
    assert trace.listeners == []


def test_inside_a_scope_of_a_host_stream_it_waits_for_the_others(stream, other, hold):
    gate = hold(other)
    with stream:
        with sk.audit() as report:
            stream.submit(first)
            other.wait(stream)  # reached at once: the body is where the stream is
            other.submit(second)
            thread = threading.Thread(target=stream.submit, args=(print,))
            thread.start()
            thread.join()
            threading.Timer(0.1, gate.open).start()
        assert [one.name for one in report.work] == ["first", "second"]
        assert report.unfinished == 1, "what another thread gave runs after the body"


def test_a_function_that_fails_is_recorded_and_its_error_kept_for_sync(stream):
    def fails():
        raise ValueError("too bad")

    with sk.audit() as report:
        stream.submit(fails)
    assert len(report.work) == 1
    with pytest.raises(ValueError, match="too bad"):
        stream.sync()


# -- the report -------------------------------------------------------------------------------


def test_the_report_is_not_there_before_the_end():
    with sk.audit() as report, pytest.raises(sk.errors.ScopeError, match="when the block ends"):
        report.assert_one_queue(sk.default_stream())
    assert report.operations == ()


def test_one_queue_is_asserted_and_strays_are_listed(stream, other):
    with sk.audit() as report:
        stream.submit(first)
        other.submit(second)
        other.submit(second)
    assert [one.name for one in report.off_queue(stream)] == ["second"] * 2
    with pytest.raises(sk.errors.OneQueueError) as raised:
        report.assert_one_queue(stream)
    assert "2 of 3 operations did not run on <streamkit.HostStream 's'" in str(raised.value)
    assert "  second on other (cpu) (2 times)\n" in str(raised.value)
    with pytest.raises(sk.errors.OneQueueError, match=r"1 of 3 .* on other \(cpu\):") as raised:
        report.assert_one_queue()  # whichever it is
    assert "  first on s (cpu)\n" in str(raised.value)
    with sk.audit() as report:
        stream.submit(first)
        stream.submit(second)
    report.assert_one_queue()
    stream.close()
    report.assert_one_queue(stream)  # closed or not


def test_that_nothing_ran_is_not_one_queue(stream):
    with sk.audit() as report:
        pass
    for of in (stream, None):
        with pytest.raises(sk.errors.OneQueueError, match="nothing ran in the audit"):
            report.assert_one_queue(of)


def test_a_queue_of_cuda_with_the_id_of_a_host_stream_is_another_one(stream):
    queues = [AuditedQueue(device, "s", stream.id) for device in ("cpu", "cuda:0")]
    report = AuditReport()
    report.complete([Operation("kernel", queue.device, queue) for queue in queues])
    assert [one.name for one in report.off_queue(stream)] == ["cuda:0"]


def test_work_whose_queue_is_not_known_is_no_one_queue():
    report = AuditReport()
    report.complete([Operation("kernel", "k", None)])
    with pytest.raises(sk.errors.OneQueueError, match="1 of 1 operations did not run on a"):
        report.assert_one_queue()


def test_of_many_strays_some_are_listed_and_the_rest_counted(stream, other):
    with sk.audit() as report:
        for number in range(20):
            other.submit(type(f"F{number}", (), {"__call__": lambda _: None})())
    with pytest.raises(sk.errors.OneQueueError, match="and 8 more"):
        report.assert_one_queue(stream)


def test_queues_of_one_name_are_told_apart():
    queues = [sk.new_stream("cpu", name="worker") for _ in range(2)]
    with sk.audit() as report:
        for queue in queues:
            queue.submit(first)
    assert {one.name for one in report.queues} == {f"worker id={queue.id}" for queue in queues}
    assert len(report.off_queue(queues[0])) == len(report.off_queue(report.queues[0])) == 1


def test_a_name_that_is_no_text_is_written_out(tmp_path, capsys):
    stream = sk.new_stream("cpu", name="a\udc80")
    with sk.audit() as report:
        stream.submit(first)
    report.show()
    print(report, report.work[0])
    assert "a\\udc80" in capsys.readouterr().out
    assert "a\\udc80" in report.to_html(tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_data_lists_each_queue_once_and_the_operations_by_its_place(stream, other):
    with sk.audit() as report:
        stream.submit(first)
        other.wait(stream)
        other.submit(second)
        assert repr(report) == "<streamkit audit report, not over>"
    data = report.as_data()
    assert data["format"] == 1
    assert [one["name"] for one in data["queues"]] == [str(one.name) for one in report.queues]
    assert [(one["kind"], one["queue"], one["after"]) for one in data["operations"]] == [
        ("function", 0, None),
        ("record", 0, None),
        ("wait", 1, 0),
        ("function", 1, None),
    ]
    assert repr(report) == "<streamkit audit report: 2 operations on 2 queues>"


def test_the_data_has_the_types_of_json_and_the_page_has_the_order(stream, other, tmp_path):
    with sk.audit() as report:
        stream.submit(first)
        other.submit(second)
    assert json.loads(json.dumps(report.as_data()))["operations"] == report.as_data()["operations"]
    text = report.to_html(tmp_path / "page").read_text(encoding="utf-8")
    assert "2 operations on 2 queues, in the order in which they were given." in text
    assert "<iframe" in report._repr_html_()


@pytest.mark.parametrize("block", [sk.audit, sk.races])
def test_the_exception_of_the_block_passes_where_the_report_cannot_be_made(monkeypatch, block):
    def fails(recorder, *_):
        raise sk.errors.ScopeError("it cannot be told")

    error = RuntimeError("mine")
    for recorder in (HostRecorder, RaceRecorder):
        monkeypatch.setattr(recorder, "given_as", fails)
    with pytest.raises(RuntimeError) as caught, block():
        raise error
    assert caught.value is error
    assert "it cannot be told" in "".join(error.__notes__)
    with pytest.raises(sk.errors.ScopeError, match="it cannot be told"), block():
        pass


@pytest.mark.parametrize(("make", "name"), [(sk.audit, "audit"), (sk.races, "races")])
def test_it_is_no_decorator_because_its_report_would_be_lost(make, name):
    def decorated():
        raise AssertionError

    block = make()
    with pytest.raises(
        TypeError, match=rf"{name}\(\) is not a decorator.*with .*{name}\(\) as report:"
    ):
        block(decorated)
    with block:
        pass
    with pytest.raises(sk.errors.ScopeError, match="was entered before"), block:
        pass


@pytest.mark.parametrize(("make", "name"), [(sk.audit, "audit"), (sk.races, "races")])
def test_one_that_is_not_entered_warns_where_it_is_dropped(make, name):
    with pytest.warns(RuntimeWarning, match=rf"{name}\(\) was never entered.*as report") as warned:
        make()
    assert warned[0].filename == __file__
    assert not trace.listeners


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_what_a_listener_opens_around_a_function_is_closed_where_another_fails(
    monkeypatch, stream, fails
):
    opened, inside = [], []

    @contextlib.contextmanager
    def around(_):
        opened.append("open")
        try:
            yield
        finally:
            opened.append("closed")

    @contextlib.contextmanager
    def failing(_):
        if fails == "begin":
            raise KeyboardInterrupt
        yield
        raise KeyboardInterrupt

    def take(step):
        step.around += (around, failing)

    monkeypatch.setattr(trace, "listeners", [take])
    with pytest.raises(KeyboardInterrupt), trace.note(stream, "function", int):
        inside.append(trace.running())
    assert opened == ["open", "closed"]
    assert len(inside) == (fails == "end")
    assert trace.running() is None
