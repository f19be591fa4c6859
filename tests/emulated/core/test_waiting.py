"""Waiting for queues of an emulated driver: await, then and sync."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import events  # who asks
from streamkit._queues import (  # what is learned, events to be used again, limits, held calls
    dispatcher,
    identity,
    lifetime,
    ordering,
    points,
    waits,
)
from support.emulated.state_snapshot import drop_spare_events
from support.emulated.waits import WAITED, Later, wait_for, warm_up, watches
from support.gpu.raw import (
    another_context,
    busy,
    check,
    destroy_stream,
    driver,
    make_stream,
)
from support.queues import LONG, eventually, together, within

pytestmark = pytest.mark.usefixtures("handles")


# -- await ------------------------------------------------------------------------------------


@WAITED
def test_await_of_what_has_run_does_not_suspend(of):
    waited = of(sk.new_stream())
    waited.sync()
    assert list(waited.__await__()) == []


def test_awaits_in_loops_of_several_threads(held, gate):
    streams = [held() for _ in range(6)]
    opener = threading.Timer(0.05, gate.open)
    opener.start()

    def work(number):
        async def main():
            await asyncio.gather(*(wait_for(streams[number]) for _ in range(20)))

        asyncio.run(main())

    together(6, work)
    opener.join()


@pytest.mark.parametrize("count", [2, 1000])
def test_while_tasks_look_other_callbacks_and_io_go_on(held, gate, monkeypatch, count):
    monkeypatch.setattr(waits, "LOOK", LONG)
    monkeypatch.setattr(dispatcher, "watch", lambda *arguments: False)  # nobody comes to that
    streams = [held() for _ in range(min(count, 64))]

    async def main():
        tasks = [asyncio.create_task(wait_for(streams[n % len(streams)])) for n in range(count)]
        await asyncio.sleep(0)
        loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
        with here, there:
            here.setblocking(False)
            called = loop.create_future()
            loop.call_later(0.001, called.set_result, "called")
            threading.Thread(target=there.send, args=(b"read",)).start()
            assert await loop.sock_recv(here, 10) == b"read"
            assert await called == "called"
        assert not any(task.done() for task in tasks)
        gate.open()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    asyncio.run(main())


def test_a_look_that_is_cancelled_ends_at_once(held, gate, monkeypatch):
    monkeypatch.setattr(waits, "LOOK", LONG)
    stream = held()

    async def main():
        task = asyncio.create_task(wait_for(stream))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert gate.closed


def test_sixteen_awaited_queues_that_stand_still_hold_up_nobody(held, gate):
    """No stream of StreamKit's waits for them: at 8 such CUDA could run no other queue's work."""
    stuck = [held() for _ in range(16)]
    warm_up()
    quick = [sk.new_stream(nonblocking=True) for _ in range(2)]

    async def main():
        tasks = [asyncio.create_task(wait_for(stream)) for stream in stuck]
        futures = [stream.then(int) for stream in stuck]
        assert await asyncio.to_thread(eventually, lambda: all(map(watches, stuck)))
        with contextlib.closing(Later()) as later:
            for stream in quick:
                later.hold(stream)
            task, future = asyncio.create_task(wait_for(quick[0])), quick[1].then(int)
            await asyncio.sleep(0.01)
            assert not task.done()
            assert not future.done()
            later.open()
            await asyncio.wait_for(task, LONG)
            assert await asyncio.wait_for(asyncio.wrap_future(future), LONG) == 0
            assert gate.closed
            assert not any(task.done() for task in tasks)
            assert not any(future.done() for future in futures)
            for call in ("cuStreamCreateWithPriority", "cuLaunchHostFunc", "cuStreamWaitEvent"):
                assert emulator.calls(call) == 0
            gate.open()  # before the other is freed, which waits for all work
        await asyncio.wait_for(asyncio.gather(*tasks, *map(asyncio.wrap_future, futures)), LONG)

    emulator.reset_calls()
    asyncio.run(main())


@WAITED
def test_a_cancelled_await_ends_at_once_and_others_go_on(held, gate, of):
    async def main():
        stream = held()
        waited = of(stream)
        first, second = (asyncio.create_task(wait_for(waited)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_for(waited), 0.01)
        assert busy(stream.handle)
        gate.open()
        await asyncio.wait_for(second, LONG)
        await waited

    asyncio.run(main())


def test_awaits_that_time_out_over_and_over_leave_nothing(held, gate, monkeypatch):
    monkeypatch.setattr(waits, "LOOK", 0)
    stream = held()
    first = stream.then(int)  # which holds those behind it
    most = emulator.live("events") + 2 * dispatcher._MANY + lifetime._MOST_SPARE

    async def main():
        for _ in range(12):
            for _ in range(60):
                task = asyncio.create_task(wait_for(stream))
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.sleep(0)
            assert eventually(lambda: emulator.live("events") <= most)

    asyncio.run(main())
    assert gate.closed
    assert not first.done()


def test_a_loop_that_is_busy_is_woken_once():
    calls = []
    loop = waits.Loop(SimpleNamespace(call_soon_threadsafe=lambda *call: calls.append(call)))
    for _ in range(3):
        loop.stir()
    (call,) = calls
    call[0](*call[1:])
    loop.stir()
    assert len(calls) == 2


def test_a_loop_that_has_closed_meanwhile_is_left_alone(held, gate):
    stream = held()

    async def main():
        task = asyncio.create_task(wait_for(stream))
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_soon(task.cancel)

    asyncio.run(main())
    other = stream.then(int)
    gate.open()
    assert other.result(LONG) == 0


def test_await_of_an_event_that_never_was_recorded_and_of_a_borrowed_one(held, gate):
    raw = check(driver.cuEventCreate(2))
    stream = held()
    check(driver.cuEventRecord(raw, stream.handle))

    async def main():
        await sk.new_event()
        task = asyncio.create_task(wait_for(sk.wrap_event(raw)))
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.open()
        await asyncio.wait_for(task, LONG)

    asyncio.run(main())
    check(driver.cuEventDestroy(raw))


def test_a_closed_event_is_awaited_all_the_same(held, gate):
    async def main():
        event = held().record()
        task = asyncio.create_task(wait_for(event))
        await asyncio.sleep(0.01)
        event.close()
        gc.collect()
        gate.open()
        await asyncio.wait_for(task, LONG)

    asyncio.run(main())


def test_await_needs_a_running_loop(held):
    with pytest.raises(RuntimeError, match="loop"):
        held().__await__().send(None)


# -- then -------------------------------------------------------------------------------------


def test_the_functions_of_one_queue_keep_their_order_whoever_holds_it(held, gate):
    raw, seen = make_stream(), []
    gate.hold(raw)
    futures = []
    for number in range(20):
        futures.append(sk.from_handle(raw, owner=object()).then(seen.append, number))
        gc.collect()
    gate.open()
    for future in futures:
        future.result(LONG)
    assert seen == list(range(20))
    destroy_stream(raw)


@pytest.fixture
def later():
    gate = Later()
    yield gate
    gate.close()


def late_then(stream, module, call, meanwhile, monkeypatch):
    """Call ``then`` in a thread, which lets ``meanwhile`` run after ``call`` of the module."""
    real, reached, goes_on, result = getattr(module, call), threading.Event(), threading.Event(), []

    def slow(*arguments, **options):
        outcome = real(*arguments, **options)
        if threading.current_thread() is thread:
            reached.set()
            assert goes_on.wait(LONG)
        return outcome

    thread = threading.Thread(target=lambda: result.append(stream.then(list)))
    monkeypatch.setattr(module, call, slow)
    thread.start()
    assert reached.wait(LONG)
    meanwhile()
    goes_on.set()
    thread.join(LONG)
    return result[0]


@pytest.mark.parametrize("other", ["then", "await"])
def test_a_function_has_its_place_before_another_thread_can_record(
    held, gate, later, monkeypatch, other
):
    """Else it would lose it to a function after its mark is made, to an ``await`` meanwhile."""
    stream, second, others = held(), [], []

    def go_second():
        future = stream.then(int) if other == "then" else wait_for(stream)
        second.append(future.result(LONG) if other == "then" else asyncio.run(future))

    def meanwhile():
        later.hold(stream)
        others.append(threading.Thread(target=go_second))
        others[0].start()
        others[0].join(0.1)  # it waits for the first, which has recorded and has no place yet

    module = points if other == "then" else ordering
    first = late_then(stream, module, "mark", meanwhile, monkeypatch)
    assert not eventually(first.done, seconds=0.05)
    gate.open()
    assert first.result(LONG) == []
    assert not second  # the control: what comes after the later gate waits for it
    later.open()
    others[0].join(LONG)
    assert second


def test_an_await_is_not_held_back_by_what_is_watched_while_it_looks(held, gate, later):
    """Of several tasks; each looks for a moment itself before it lets the dispatcher watch."""
    stream = held()

    async def main():
        tasks = [asyncio.create_task(wait_for(stream)) for _ in range(3)]
        await asyncio.sleep(0)  # each has recorded its point
        later.hold(stream)
        second = stream.then(int)
        assert await asyncio.to_thread(eventually, lambda: watches(stream))
        after = asyncio.create_task(wait_for(stream))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        gate.open()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)
        assert not second.done()
        assert not after.done()
        later.open()
        await asyncio.wait_for(after, LONG)
        return second

    assert asyncio.run(main()).result(LONG) == 0


def test_a_function_that_runs_holds_up_those_of_its_queue_whoever_holds_that(monkeypatch):
    raw, release = make_stream(), threading.Event()
    first = sk.from_handle(raw, owner=object()).then(release.wait, LONG)
    assert eventually(first.running)
    monkeypatch.setattr(identity, "_learned", {})  # as after many other streams
    gc.collect()
    second = sk.from_handle(raw, owner=object()).then(int)
    assert sk.new_stream().then(int).result(LONG) == 0
    assert not eventually(second.done, seconds=0.1)
    release.set()
    assert second.result(LONG) == 0
    destroy_stream(raw)


def test_functions_that_wait_for_one_another_are_refused(held, gate):
    one, two, both, futures = held(), held(), threading.Barrier(2), {}

    def ask(name):
        both.wait(LONG)
        return futures[name].result()

    futures["one"] = one.then(ask, "two")
    futures["two"] = two.then(ask, "one")
    gate.open()
    errors = [within(future.exception) for future in futures.values()]
    assert [type(error) for error in errors] == [sk.errors.ScopeError] * 2
    named = [f"'then' of {stream!r}" for stream in (one, two)]
    assert all(name in str(error) for error in errors for name in named)


def test_await_of_then_gives_the_result_when_the_work_has_run(held, gate):
    async def main():
        future = held().then(int, "7")
        task = asyncio.ensure_future(future)
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done  # the control: the queue is held
        gate.open()
        assert await task == 7
        return future

    assert asyncio.run(main()).result(10) == 7


def test_a_task_that_is_cancelled_calls_a_waiting_function_off(held, gate):
    log, stream = [], held()

    async def main():
        future = stream.then(log.append, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.05)
        gate.open()
        await stream.then(log.append, 2)
        return future.cancelled()

    assert asyncio.run(main())
    assert log == [2]


@pytest.mark.parametrize("device", [0, 1])
def test_a_function_may_call_cuda_with_the_streams_device_current(device):
    stream = sk.new_stream(device)

    def work():
        inner = sk.new_stream()
        with stream:
            stream.record().sync()
        return inner.device_id, int(check(driver.cuCtxGetCurrent()))

    assert stream.then(work).result(LONG) == (device, stream.context)
    assert sk.new_stream(1 - device).then(work).result(LONG)[0] == 1 - device


def test_a_function_has_the_streams_device_current_whatever_the_one_before_has_left(held, gate):
    """They run one after the other, in one thread."""
    stream = held(0)
    other, seen = sk.new_stream(1).context, []

    def leave_another():
        seen.append(int(check(driver.cuCtxGetCurrent())))
        check(driver.cuCtxSetCurrent(other))

    futures = [stream.then(leave_another) for _ in range(4)]
    gate.open()
    for future in futures:
        future.result(LONG)
    assert seen == [stream.context] * 4


def test_a_burst_of_functions_asks_seldom_and_enters_the_context_once(held, gate, monkeypatch):
    warm_up()
    stream, asked, query = held(), [], events.query

    def ask(event):
        asked.append(threading.current_thread().name)
        return query(event)

    monkeypatch.setattr(events, "query", ask)
    futures = [stream.then(int) for _ in range(100)]
    emulator.reset_calls()
    gate.open()
    for future in futures:
        assert future.result(LONG) == 0
    for call in ("cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"):
        assert emulator.calls(call) <= 4  # once in a thread
    assert emulator.calls("cuCtxPushCurrent") == emulator.calls("cuEventRecord") == 0
    assert asked.count("streamkit-then") < 50  # seven tell how far it is; each one would be 100


def test_then_of_a_stream_in_another_context():

    def where():
        return threading.current_thread(), int(check(driver.cuCtxGetCurrent()))

    with another_context() as context:
        raw = make_stream()
        stream = sk.from_handle(raw)
        thread, current = stream.then(where).result(LONG)
        assert current == context
        assert eventually(lambda: not thread.is_alive()), "it has the context, which ends below"
        asyncio.run(wait_for(stream))
        destroy_stream(raw)
        del stream
        gc.collect()


def test_the_default_streams():
    legacy, own = sk.default_stream(), sk.default_stream(per_thread=True)

    async def main():
        await legacy
        await own

    asyncio.run(main())
    assert legacy.then(int).result(LONG) == own.then(int).result(LONG) == 0
    for call in (own.__await__, lambda: own.then(int)):
        with pytest.raises(sk.errors.ScopeError):
            within(call)


def test_a_stream_may_be_dropped_before_its_function_is_called(held, gate):
    stream = held()
    queue = weakref.ref(stream._queue)
    future = stream.then(int)
    del stream
    gc.collect()
    assert queue() is not None
    gate.open()
    assert future.result(LONG) == 0
    assert eventually(lambda: queue() is None)


# -- sync -------------------------------------------------------------------------------------


@WAITED
def test_sync_waits_without_asking_over_and_over(held, gate, of):
    stream = held()
    waited = of(stream)
    threading.Timer(0.3, gate.open).start()
    emulator.reset_calls()
    waited.sync()
    asked = emulator.calls("cuStreamQuery") + emulator.calls("cuEventQuery")
    assert not busy(stream.handle)
    assert asked < 20_000, "it asked all the time"
    # the first question, and all the others together
    assert emulator.calls("cuThreadExchangeStreamCaptureMode") == 4


@WAITED
def test_sync_that_spins_asks_all_the_time(held, gate, of, monkeypatch):
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        time.sleep(seconds)

    waited = of(held())
    monkeypatch.setattr(waits, "sleep", sleep)
    monkeypatch.setattr(waits, "LOOK", 0)
    with pytest.raises(TimeoutError):
        waited.sync(timeout=0.01, spin=True)
    threading.Timer(0.05, gate.open).start()
    waited.sync(spin=True)
    assert naps == []


@WAITED
def test_sync_is_for_what_was_submitted_before_it(held, gate, of):
    """Else it would never end beside a thread that always submits more."""
    stream = sk.new_stream(nonblocking=True)
    with contextlib.closing(Later()) as first:
        first.hold(stream)
        waited = of(stream)
        emulator.reset_calls()

        def hold_and_open():
            assert eventually(lambda: emulator.calls("cuEventQuery") > 3)
            gate.hold(stream.handle)
            first.open()

        thread = threading.Thread(target=hold_and_open)
        thread.start()
        waited.sync(timeout=LONG)
        thread.join()
        assert busy(stream.handle)
        gate.open()


def test_waits_one_after_another_use_one_event(held, gate):
    stream = held()
    with pytest.raises(TimeoutError):
        stream.sync(timeout=0)
    before = emulator.live("events")
    emulator.reset_calls()
    for _ in range(10):
        with pytest.raises(TimeoutError):
            stream.sync(timeout=0)
    assert emulator.calls("cuEventRecord") == 10
    assert emulator.calls("cuEventCreate") == 0
    assert emulator.live("events") == before


def test_an_event_that_goes_in_a_circle_of_garbage_is_used_again_whole():
    """The collector ends all of a circle, also what the end of another one would keep."""
    drop_spare_events()
    circle = [points.mark(sk.new_stream()._queue, None, "a test")]
    circle.append(circle)
    del circle
    gc.collect()
    assert lifetime._spare_events[sk.new_stream().context]
    assert sk.new_stream().then(int).result(LONG) == 0


def test_few_events_wait_to_be_used_again(held, gate):
    drop_spare_events()
    stream, before = held(), emulator.live("events")
    futures = [stream.then(int) for _ in range(2 * lifetime._MOST_SPARE)]
    gate.open()
    for future in futures:
        assert future.result(LONG) == 0
    del futures, future
    assert eventually(lambda: emulator.live("events") == before + lifetime._MOST_SPARE)


def test_an_event_of_another_context_is_used_again_on_its_queue():
    """The thread that waits cannot end the event, because the context may have come to an end."""
    with another_context():
        raw = make_stream()
        before = emulator.live("events")
        stream = sk.from_handle(raw)
        record = stream._queue.first_record()
        for _ in range(4):
            assert stream.then(int).result(LONG) == 0
            assert eventually(lambda: len(record.wait_events) == 1)  # noqa: F821 - deleted below
        assert emulator.live("events") == before + 1
        destroy_stream(raw)
        del stream, record
        gc.collect()


@WAITED
@pytest.mark.parametrize("timeout", [0, 0.0001, 0.05])
def test_a_timeout_names_the_object_and_stops_no_work(held, gate, of, timeout):
    stream = held()
    waited = of(stream)
    with pytest.raises(TimeoutError) as caught:
        waited.sync(timeout=timeout)
    assert repr(waited) in str(caught.value)
    assert busy(stream.handle)
    gate.open()
    waited.sync(timeout=LONG)
    waited.sync(timeout=1e30)


@WAITED
def test_sync_in_many_threads(held, gate, of):
    streams = [held() for _ in range(8)]
    threading.Timer(0.05, gate.open).start()
    together(16, lambda number: of(streams[number % 8]).sync(timeout=LONG))
