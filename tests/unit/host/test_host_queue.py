"""What a host stream does as a queue, beside its order: that is the model's (``test_model``)."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

import streamkit as sk
from support.queues import LONG, eventually, pending, together, within

pytestmark = pytest.mark.portable


def test_submit_passes_arguments_and_keywords(stream):
    seen = []
    work = stream.submit(lambda *args, **kwargs: seen.append((args, kwargs)), 1, 2, fn=3, self=4)
    assert work is None
    stream.sync()
    assert seen == [((1, 2), {"fn": 3, "self": 4})]


def test_of_two_workers_that_are_started_at_once_one_works(stream):
    """As by a destructor that submits while its thread submits, which the lock lets through."""
    second, together = threading.Event(), []

    def submit():
        with stream._work._lock:  # private: until it is left no worker can begin
            stream.submit(lambda: together.append(second.wait(0.3)))
            stream.submit(second.set)

    within(submit)
    within(stream.sync)
    assert together == [False]


# -- events -----------------------------------------------------------------------------------


def test_an_event_that_was_never_recorded_is_done_and_no_wait(stream):
    event = sk.new_event(device="cpu")
    assert event.done
    within(event.sync)
    stream.wait(event)
    within(stream.sync)


@pytest.fixture
def pass_time(monkeypatch):
    """Let so many milliseconds pass on the clock of timed events, which stands still otherwise."""
    now = [time.perf_counter_ns()]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])

    def pass_time(milliseconds):
        now[0] += int(milliseconds * 1e6)

    return pass_time


def test_two_timed_events_measure_the_milliseconds_between(stream, pass_time):
    start = stream.record(timing=True)
    stream.submit(pass_time, 1.5)
    end = stream.record(timing=True)
    end.sync()
    assert end - start == 1.5
    assert start - end == -1.5


def test_timed_events_measure_the_queue_and_not_the_host(stream, hold, pass_time):
    gate = hold(stream)
    start = stream.record(timing=True)
    pass_time(300)
    end = stream.record(timing=True)
    gate.open()
    end.sync()
    assert end - start == 0


def test_an_event_without_timing_and_something_else_measure_nothing(stream):
    timed, plain = stream.record(timing=True), stream.record()
    plain.sync()
    for end, start in ((timed, plain), (plain, timed)):
        with pytest.raises(ValueError, match="timing=True"):
            end - start
    with pytest.raises(TypeError):
        timed - 1.0


def test_timing_belongs_to_a_new_event_only(stream):
    with pytest.raises(ValueError, match="timing"):
        stream.record(sk.new_event(device="cpu", timing=True), timing=True)


def test_a_closed_event_is_refused_everywhere(stream):
    event = stream.record(timing=True)
    event.sync()
    event.close()
    assert event.closed
    for use in (
        lambda: event.done,
        event.sync,
        lambda: stream.wait(event),
        lambda: stream.record(event),
        lambda: event - event,
    ):
        with pytest.raises(sk.errors.StreamClosedError, match="HostEvent closed"):
            use()


def test_a_wait_that_is_queued_survives_the_close_of_its_event(stream, other, hold):
    gate = hold(stream)
    event = stream.record()
    other.wait(event)
    event.close()
    assert not other.done
    gate.open()
    within(other.sync)


def test_the_repr_of_an_event_tells_its_state(stream, hold):
    assert "unrecorded" in repr(sk.new_event(device="cpu"))
    gate = hold(stream)
    event = stream.record(timing=True)
    assert "pending" in repr(event)
    assert "timing" in repr(event)
    gate.open()
    event.sync()
    assert "done" in repr(event)
    event.close()
    assert "closed" in repr(event)


# -- done and sync ----------------------------------------------------------------------------


OF = pytest.mark.parametrize("of", [lambda s: s, lambda s: s.record()], ids=["stream", "event"])


@OF
def test_it_is_done_when_the_work_before_has_run(stream, hold, of):
    gate = hold(stream)
    waited = of(stream)
    assert not waited.done
    gate.open()
    waited.sync()
    assert waited.done


def test_a_stream_is_done_as_soon_as_a_sync_returns(stream, slow_workers):
    stream.sync(timeout=0)  # an idle one needs no time
    for number in range(6):
        stream.submit(int)
        (stream.record() if number % 2 else stream).sync()
        assert stream.done


def test_sync_waits_for_work_submitted_before_it_only(stream, hold):
    second = []
    gate = hold(stream)
    syncing = threading.Thread(target=stream.sync, daemon=True)
    syncing.start()
    assert eventually(lambda: pending(stream) == 2)  # what holds it, and what sync waits for
    late = hold(stream)
    stream.submit(second.append, 1)
    gate.open()
    syncing.join(LONG)
    assert not syncing.is_alive()
    assert second == []
    late.open()


@OF
def test_sync_times_out_naming_what_it_waits_for_and_the_work_goes_on(stream, hold, of):
    gate, seen = hold(stream), []
    stream.submit(seen.append, 1)
    waited = of(stream)
    named = "'s'" if waited is stream else "HostEvent"
    with pytest.raises(TimeoutError, match=rf"{named}.*0\.01 s.*goes on"):
        waited.sync(timeout=0.01)
    gate.open()
    waited.sync(timeout=LONG)
    assert seen == [1]


@OF
@pytest.mark.parametrize("timeout", [1e12, 1e30, float("inf")])
def test_a_sync_longer_than_a_lock_can_wait(stream, hold, of, timeout):
    gate = hold(stream)
    waited = of(stream)
    threading.Timer(0.02, gate.open).start()
    within(lambda: waited.sync(timeout=timeout))


# -- errors of submitted functions ------------------------------------------------------------


def fail(text):
    raise RuntimeError(text)


def test_a_sync_that_times_out_does_not_lose_the_error(stream, hold):
    gate = hold(stream)
    stream.submit(fail, "first")
    with pytest.raises(TimeoutError):
        stream.sync(timeout=0.01)
    gate.open()
    with pytest.raises(RuntimeError, match="first"):
        stream.sync()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, TimeoutError])
def test_whatever_a_function_raises_is_told_as_its_own_and_the_queue_goes_on(stream, error):
    def work():
        raise error("mine")

    seen = []
    stream.submit(work)
    with pytest.raises(error, match="mine"):
        stream.sync(timeout=LONG)
    stream.submit(seen.append, 1)
    stream.sync()
    assert seen == [1]


# -- a submitted function uses its own stream, as on CUDA --------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.sync(timeout=LONG / 5),
        lambda s: s.record().sync(timeout=LONG / 5),
        lambda s: s.wait(s.record()),
        lambda s: s.done,
        lambda s: s.submit(int),
        lambda s: s.__enter__() and s.__exit__(None, None, None),
    ],
    ids=["sync", "record", "wait", "done", "submit", "with"],
)
def test_a_submitted_function_may_use_its_own_stream(stream, use):
    stream.submit(use, stream)
    within(stream.sync, seconds=LONG / 2)


def test_in_a_submitted_function_its_stream_is_current_and_another_may_be_used(stream, other):
    seen = []

    def work():
        seen.append(sk.current_stream(device="cpu"))
        other.submit(seen.append, 1)
        other.sync()
        with other:
            seen.append(2)

    stream.submit(work)
    within(stream.sync)
    assert seen == [stream, 1, 2]


# -- many threads -----------------------------------------------------------------------------


def test_many_threads_lose_and_double_nothing(stream, eager_switching):
    seen = []

    def work(number):
        for step in range(300):
            stream.submit(seen.append, (number, step))

    together(8, work)
    stream.sync()
    assert len(seen) == 8 * 300
    for number in range(8):
        assert [step for who, step in seen if who == number] == list(range(300))


def increment(count):
    value = count[0]
    time.sleep(0)
    count[0] = value + 1


def test_control_without_the_queue_increments_are_lost(eager_switching):
    count = [0]
    together(8, lambda _: [increment(count) for _ in range(200)])
    assert count[0] < 8 * 200


def test_many_threads_submit_sync_record_and_enter(stream, eager_switching):
    count = [0]

    def work(number):
        for step in range(40):
            stream.submit(increment, count)
            if (number + step) % 3 == 0:
                stream.sync()
            elif (number + step) % 3 == 1:
                stream.record().sync()
            else:
                with stream:
                    increment(count)

    together(6, work)
    stream.sync()
    assert count[0] == 6 * 40 + sum((n + s) % 3 == 2 for n in range(6) for s in range(40))


def test_of_many_errors_in_many_threads_none_is_told_by_a_sync_begun_later(
    stream, eager_switching, reported
):
    """Those that wait at the same time may be told of one and the same."""
    raised = [[] for _ in range(4)]

    def work(number):
        for step in range(50):
            stream.submit(fail, f"{number}.{step}")
            try:
                stream.sync()
            except RuntimeError as error:
                raised[number].append(str(error))

    together(4, work)
    for errors in raised:
        assert len(errors) == len(set(errors))
        assert errors
    with contextlib.suppress(RuntimeError):
        stream.sync()
    stream.sync()


def test_an_idle_stream_has_no_thread():
    before = set(threading.enumerate())
    streams = [sk.new_stream("cpu") for _ in range(10)]
    assert set(threading.enumerate()) == before
    assert all(stream.done for stream in streams)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_closed_or_dropped_stream_still_runs_its_work(hold, is_closed):
    seen = []
    stream = sk.new_stream("cpu")
    gate = hold(stream)
    stream.submit(seen.append, 1)
    if is_closed:
        within(stream.close)
    else:
        del stream
    gate.open()
    assert eventually(lambda: seen == [1])
