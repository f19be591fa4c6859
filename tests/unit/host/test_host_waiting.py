"""Waiting for host streams: in a coroutine, by a function to call, with and without an engine."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError

import pytest

import streamkit as sk
from streamkit._streams.then import HostThenCalls  # another thread comes between
from streamkit.testing import adversarial, for_seeds
from support.garbage import its_thread_ran_again
from support.programs import needs_fork, python, run_program
from support.queues import (
    LONG,
    Gate,
    eventually,
    opened_once_all_sleep,
    pending,
    together,
    within,
)

pytestmark = pytest.mark.portable


async def wait_for(something):
    return await something


def fail(text):
    raise RuntimeError(text)


def count_of(kind):
    """How many objects of this class there are."""
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


WAITED = pytest.mark.parametrize("of", [lambda s: s, lambda s: s.record()], ids=["stream", "event"])


# -- await ------------------------------------------------------------------------------------


@WAITED
def test_await_ends_when_the_work_has_run_and_the_loop_goes_on(stream, hold, of):
    async def main():
        gate, seen = hold(stream), []
        stream.submit(seen.append, 1)
        task = asyncio.create_task(wait_for(of(stream)))
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.open()
        await asyncio.wait_for(task, LONG)
        assert seen == [1]

    asyncio.run(main())


@WAITED
def test_await_of_what_has_run_does_not_suspend(stream, of):
    waited = of(stream)
    waited.sync()
    assert list(waited.__await__()) == []
    assert list(sk.new_event(device="cpu").__await__()) == []


def test_await_is_for_what_was_submitted_before_it(stream, hold):
    async def main():
        first = hold(stream)
        task = asyncio.create_task(wait_for(stream))
        await asyncio.sleep(0)
        second = hold(stream)
        first.open()
        await asyncio.wait_for(task, LONG)
        assert not stream.done
        second.open()

    asyncio.run(main())


@WAITED
def test_a_cancelled_await_leaves_the_work_and_other_waiters_alone(stream, hold, of):
    async def main():
        gate, seen = hold(stream), []
        stream.submit(seen.append, 1)
        waited = of(stream)
        first, second = (asyncio.create_task(wait_for(waited)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waited, 0.01)
        gate.open()
        await asyncio.wait_for(second, LONG)
        assert seen == [1]

    asyncio.run(main())


def test_a_cancelled_await_holds_its_loop_no_longer(stream, hold):
    gate, event = hold(stream), stream.record()

    async def main():
        task = asyncio.create_task(wait_for(event))
        await asyncio.sleep(0.01)
        task.cancel()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None
    gate.open()


def test_awaits_in_loops_of_several_threads(hold):
    streams = [sk.new_stream("cpu") for _ in range(8)]
    gates = [hold(stream) for stream in streams]
    threading.Timer(0.05, lambda: [gate.open() for gate in gates]).start()

    def work(number):
        async def main():
            await asyncio.gather(*(wait_for(streams[number]) for _ in range(50)))

        asyncio.run(main())

    together(8, work)


def test_a_loop_that_is_closed_meanwhile_is_left_alone(stream, hold):
    """A second waiter shows that the worker has got past it."""
    gate = hold(stream)
    loop = asyncio.new_event_loop()
    waiting = stream.record().__await__()

    async def main():
        waiting.send(None)

    loop.run_until_complete(main())
    loop.close()
    gate.open()
    within(stream.sync)
    assert within(lambda: stream.then(int).result(LONG)) == 0
    waiting.close()


def test_a_thousand_awaits_over_64_streams_that_are_held(hold):
    """The loop goes on meanwhile, and there is no thread but each stream's own."""
    before = threading.active_count()
    streams = [sk.new_stream("cpu") for _ in range(64)]
    gates = [hold(stream) for stream in streams]

    async def main():
        tasks = [asyncio.create_task(wait_for(streams[n % 64])) for n in range(1000)]
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in tasks)
        assert threading.active_count() <= before + 64
        for gate in gates[1:]:
            gate.open()
        others = [task for number, task in enumerate(tasks) if number % 64]
        await asyncio.wait_for(asyncio.gather(*others), LONG)
        assert not any(task.done() for task in tasks[::64])
        gates[0].open()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    asyncio.run(main())


@pytest.mark.parametrize("of", [lambda s: s, lambda s: s.record(), lambda s: s.then(int)])
def test_await_needs_a_running_loop(stream, hold, of):
    hold(stream)
    with pytest.raises(RuntimeError, match="no running event loop"):
        of(stream).__await__().send(None)


def test_await_inside_the_streams_own_scope_does_not_wait_for_itself(stream):
    async def main():
        with stream:
            await asyncio.wait_for(stream, LONG)

    asyncio.run(main())


def test_a_closed_one_and_another_threads_are_refused(stream):
    own, event = sk.default_stream("cpu", per_thread=True), stream.record()
    stream.close()
    event.close()
    for use in (lambda: asyncio.run(wait_for(stream)), lambda: stream.then(int),
                lambda: asyncio.run(wait_for(event))):  # fmt: skip
        with pytest.raises(sk.errors.StreamClosedError):
            use()
    for use in (lambda: asyncio.run(wait_for(own)), lambda: own.then(int)):
        with pytest.raises(sk.errors.ScopeError):
            within(use)


# -- then -------------------------------------------------------------------------------------


def test_then_calls_after_the_work_so_far_and_not_after_more(stream, hold):
    gate, seen = hold(stream), []
    stream.submit(seen.append, "work")
    future = stream.then(lambda a, *, b: (a, b, list(seen)), 1, b=2)
    hold(stream)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    gate.open()
    assert future.result(LONG) == (1, 2, ["work"])


def test_the_functions_of_one_stream_run_in_order_and_one_at_a_time(stream, hold):
    gate, seen = hold(stream), []

    def note(number):
        seen.append(number)
        time.sleep(0.0005)
        seen.append(number)

    futures = [stream.then(note, number) for number in range(40)]
    gate.open()
    for future in futures:
        future.result(LONG)
    assert seen == [number for number in range(40) for _ in range(2)]


def test_a_slow_function_holds_up_neither_the_queue_nor_other_streams(stream):
    release, seen, other = threading.Event(), [], sk.new_stream("cpu")
    slow = stream.then(release.wait, LONG)
    stream.submit(seen.append, 1)
    within(stream.sync)
    assert seen == [1]
    assert other.then(int).result(LONG) == 0
    release.set()
    assert slow.result(LONG)


def test_each_stream_has_a_thread_for_its_functions_which_ends_when_idle():
    streams, all_run = [sk.new_stream("cpu") for _ in range(20)], threading.Barrier(20)

    def work():
        all_run.wait(LONG)
        return threading.current_thread()

    futures = [stream.then(work) for stream in streams]
    threads = {future.result(LONG) for future in futures}
    assert len(threads) == 20
    assert eventually(lambda: not any(thread.is_alive() for thread in threads))
    assert streams[0].then(int).result(LONG) == 0


def test_a_dropped_stream_calls_its_functions_and_leaves_no_thread(hold):
    stream, seen = sk.new_stream("cpu"), []
    gate = hold(stream)
    for number in range(3):
        stream.then(lambda number: seen.append((number, threading.current_thread())), number)
    dead = weakref.ref(stream)
    del stream
    gate.open()
    assert eventually(lambda: len(seen) == 3)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert eventually(lambda: (gc.collect(), dead())[1] is None)
    assert eventually(lambda: not any(thread.is_alive() for _, thread in seen))


def test_a_function_may_give_its_own_stream_more(stream):
    """Which follow what others have given it meanwhile."""
    seen, given = [], threading.Event()

    def first():
        assert given.wait(LONG)
        seen.append("first")
        return stream.then(seen.append, "last")

    future = stream.then(first)
    stream.then(seen.append, "second")
    given.set()
    future.result(LONG).result(LONG)
    assert seen == ["first", "second", "last"]


def test_threads_that_use_then_of_one_stream_each_have_their_order(stream, eager_switching):
    """Each function comes after the work of its own thread, and none waits for later work."""
    seen, count, threads = [], 100, 4

    def work(index):
        for number in range(count):
            stream.submit(seen.append, (index, number, "work"))
            stream.then(seen.append, (index, number, "then"))

    together(threads, work)
    stream.then(int).result(LONG)
    for index in range(threads):
        places = {(number, kind): place
                  for place, (one, number, kind) in enumerate(seen) if one == index}  # fmt: skip
        assert len(places) == 2 * count
        then = [places[number, "then"] for number in range(count)]
        assert then == sorted(then)
        assert all(places[number, "work"] < then[number] for number in range(count))


def test_a_function_waits_for_no_work_that_is_given_while_it_gets_its_place(stream, monkeypatch):
    """Another thread's ``then`` comes between its mark and its place among the functions."""
    freed = threading.Event()
    others, put = [], HostThenCalls.put

    def other():
        stream.submit(freed.wait, LONG)
        others.append(stream.then(int))

    def slowly(calls, *items):
        if thread.ident is None:  # it has not begun
            thread.start()
            thread.join(0.2)  # which ends early where nothing keeps it out
        put(calls, *items)

    thread = threading.Thread(target=other)
    monkeypatch.setattr(HostThenCalls, "put", slowly)
    assert stream.then(freed.set).exception(LONG / 2) is None
    thread.join(LONG)
    assert others[0].result(LONG) == 0


def test_a_future_that_is_cancelled_ends_the_waits_for_it(stream, hold):
    hold(stream)
    future = stream.then(int)
    threading.Timer(0.05, future.cancel).start()
    with pytest.raises(CancelledError):
        within(future.result)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_a_futures_own_callback_raises_stops_no_stream(stream, error, caplog):
    def fail(_):
        raise error

    gate = Gate(stream)
    future = stream.then(int, 1)
    future.add_done_callback(fail)
    gate.open()
    assert future.result(LONG) == 1
    futures = [s.then(int, 2) for s in (stream, *(sk.new_stream("cpu") for _ in range(8)))]
    try:
        assert [future.result(LONG) for future in futures] == [2] * 9
    finally:
        for future in futures:  # one without a thread would hold up the end of the program
            future.cancel()
    assert error.__name__ in caplog.text


def test_what_a_function_raises_is_in_its_future_alone(stream):
    with pytest.raises(ZeroDivisionError):
        stream.then(divmod, 1, 0).result(LONG)
    with pytest.raises(SystemExit):
        stream.then(sys.exit).result(LONG)
    stream.sync()
    assert stream.then(int).result(LONG) == 0


def test_an_error_of_the_work_is_the_futures_and_stays_for_sync(stream, hold):
    gate, seen = hold(stream), []
    stream.submit(fail, "first")
    futures = [stream.then(seen.append, number) for number in range(3)]
    gate.open()
    futures.append(stream.then(seen.append, 3))
    assert {str(future.exception(LONG)) for future in futures} == {"first"}
    with pytest.raises(RuntimeError, match="first"):
        stream.sync()
    assert stream.then(int).result(LONG) == 0
    assert not seen


def test_a_future_holds_neither_its_function_nor_its_error_in_a_cycle(stream):
    class Thing:
        def __call__(self):
            raise ValueError

    thing = Thing()
    dead = weakref.ref(thing)
    future = stream.then(thing)
    assert isinstance(future.exception(LONG), ValueError)
    del thing
    gc.disable()
    try:
        del future
        assert eventually(lambda: its_thread_ran_again(stream) and dead() is None)
    finally:
        gc.enable()


def test_without_a_thread_then_says_so_and_leaves_nothing(stream):
    python("""
import threading
import streamkit as sk
from streamkit._streams import host_queue  # no public name tells which queues have items

def refuse(self):
    raise RuntimeError("can't start new thread")

start, seen = threading.Thread.start, []
for is_busy in (False, True):  # so that the stream's own thread is there
    stream, release = sk.new_stream("cpu"), threading.Event()
    if is_busy:
        stream.submit(release.wait)
    threading.Thread.start = refuse
    try:
        stream.then(seen.append, 1)
    except RuntimeError as error:
        assert "sync()" in str(error), error
    else:
        raise AssertionError
    threading.Thread.start = start
    release.set()
    stream.sync()
    while stream._work in host_queue._working:
        pass
    assert not host_queue._working
    assert stream.then(int).result(10) == 0
assert not seen
""")


# -- sync -------------------------------------------------------------------------------------


@pytest.mark.skipif("sys.platform != 'linux'", reason="reads /proc")
@WAITED
@pytest.mark.parametrize("timeout", [None, 6 * LONG])
def test_a_long_sync_leaves_the_processor_to_others(stream, hold, of, timeout):
    """Every thread of the process sleeps: no other one asks over and over either."""
    gate = hold(stream)
    waited = of(stream)
    slept = opened_once_all_sleep(gate)
    waited.sync(timeout)
    assert slept.result(LONG)


@pytest.mark.skipif("sys.platform != 'linux'", reason="reads /proc")
def test_control_a_thread_that_asks_over_and_over_is_seen(stream, hold):
    gate = hold(stream)
    slept = opened_once_all_sleep(gate, looks=100)
    while not stream.done:
        pass
    assert not slept.result(LONG)


@pytest.mark.skipif("sys.platform != 'linux'", reason="reads /proc")
@pytest.mark.skipif("not hasattr(os, 'sched_yield')", reason="this system lets others run by a nap")
@WAITED
def test_a_sync_that_spins_asks_over_and_over(stream, hold, of):
    gate = hold(stream)
    waited = of(stream)
    slept = opened_once_all_sleep(gate, looks=100)
    waited.sync(spin=True)
    assert not slept.result(LONG)


@WAITED
def test_a_sync_that_spins_lets_the_worker_have_the_gil(stream, hold, of):
    """Of its own accord, long before the interpreter takes the GIL from it."""
    gate, interval = hold(stream), sys.getswitchinterval()
    waited = of(stream)
    sys.setswitchinterval(6 * LONG)
    try:
        gate.open()
        waited.sync(timeout=LONG, spin=True)
    finally:
        sys.setswitchinterval(interval)


@WAITED
def test_a_sync_that_spins_waits_and_its_timeout_names_the_object(stream, hold, of):
    gate, seen = hold(stream), []
    stream.submit(seen.append, 1)
    waited = of(stream)
    with pytest.raises(TimeoutError) as caught:
        waited.sync(timeout=0.01, spin=True)
    assert repr(waited) in str(caught.value)
    threading.Timer(0.02, gate.open).start()
    waited.sync(spin=True)
    assert seen == [1]


@WAITED
def test_a_sync_that_spins_raises_the_error_of_a_function(stream, of):
    stream.submit(divmod, 1, 0)
    waited = of(stream)
    with pytest.raises(ZeroDivisionError):
        waited.sync(spin=True)


def test_waits_that_time_out_leave_nothing_with_the_event(stream, hold):
    hold(stream)
    event, before = stream.record(), count_of(threading.Event)
    for _ in range(50):
        with pytest.raises(TimeoutError):
            event.sync(timeout=0)
    assert count_of(threading.Event) < before + 25


def test_under_an_engine_a_sync_that_spins_runs_things():
    with adversarial(1):
        stream, seen = sk.new_stream("cpu"), []
        stream.submit(seen.append, 1)
        stream.sync(spin=True)
        assert seen == [1]


@pytest.mark.parametrize(
    "waits",
    [
        "s.sync()",
        "s.sync(60)",
        "s.sync(spin=True)",
        "event.sync()",
        "event.sync(60)",
        "asyncio.run(wait_for(event))",
    ],
)
def test_ctrl_c_ends_a_wait_of_any_length(waits):
    out = python(f"""
import asyncio, os, signal, threading
import streamkit as sk

async def wait_for(something):
    await something

s, release = sk.new_stream("cpu"), threading.Event()
s.submit(release.wait)
event = s.record()
try:
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    {waits}
except KeyboardInterrupt:
    print("interrupted", s.done, event.done)
release.set()
event.sync()
s.sync()
print(s.done)
""")
    assert out == "interrupted False False\nTrue\n"


# -- an error and who is told of it -----------------------------------------------------------


def told_of(stream, then_open):
    """The errors of 50 awaits of a stream, 50 of an event, and 50 futures."""
    event, seen = stream.record(), []

    async def main():
        tasks = [asyncio.create_task(wait_for(what)) for what in [stream] * 50 + [event] * 50]
        futures = [stream.then(seen.append, "called") for _ in range(50)]
        await asyncio.sleep(0)  # each has begun to wait
        then_open()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)
        return found + [future.exception(LONG) for future in futures]

    found = asyncio.run(main())
    assert not seen
    return [str(error) for error in found]


def test_an_error_reaches_every_waiter(stream, hold):
    gate, told = hold(stream), []
    stream.submit(fail, "first")

    def block(what):
        with pytest.raises(RuntimeError) as caught:
            what.sync(LONG)
        told.append(str(caught.value))

    threads = [threading.Thread(target=block, args=(what,))
               for what in [stream] * 4 + [stream.record()] * 4]  # fmt: skip
    for thread in threads:
        thread.start()

    # what holds it, what fails, two events, and a mark of each other one that waits
    def then_open():
        assert eventually(lambda: pending(stream) == 2 + 2 + 4 + 50 + 50)
        gate.open()

    assert told_of(stream, then_open) == ["first"] * 150
    for thread in threads:
        thread.join(LONG)
    assert told == ["first"] * 8
    stream.sync()


def test_an_error_of_no_work_before_it_reaches_no_waiter(stream, hold):
    """The control: what fails was submitted after the points that are waited for."""
    before, event = hold(stream), stream.record()
    future = stream.then(int)
    waiting = threading.Thread(target=lambda: outcome.append(stream.sync(LONG)))
    outcome = []
    waiting.start()
    assert eventually(lambda: pending(stream) == 4)
    stream.submit(fail, "later")
    before.open()
    waiting.join(LONG)
    event.sync(LONG)
    assert (outcome, future.result(LONG), event.done) == ([None], 0, True)
    with pytest.raises(RuntimeError, match="later"):
        stream.sync()


def test_a_wait_without_an_error_leaves_a_later_one_for_the_next(stream, hold):
    async def main():
        gate, waiting = hold(stream), stream.__await__()
        waiting.send(None)
        stream.submit(fail, "later")
        gate.open()
        assert await asyncio.to_thread(eventually, lambda: pending(stream) == 0)
        await asyncio.sleep(0)  # the loop settles what it waits for
        with pytest.raises(StopIteration):
            waiting.send(None)
        with pytest.raises(RuntimeError, match="later"):
            await stream

    asyncio.run(main())


@pytest.mark.parametrize("wait", [lambda e: e.sync(LONG), lambda e: e.done,
                                  lambda e: asyncio.run(wait_for(e))],
                         ids=["sync", "done", "await"])  # fmt: skip
def test_an_events_wait_tells_the_error_and_leaves_it_for_the_stream(stream, wait):
    stream.submit(fail, "first")
    event = stream.record()
    assert eventually(lambda: pending(stream) == 0)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="first"):
            wait(event)
    with pytest.raises(RuntimeError, match="first"):
        stream.sync()
    later = stream.record()
    later.sync()
    assert later.done
    stream.sync()


def test_the_first_error_is_told_also_after_a_second_and_a_sync(stream, hold, reported):
    gate = hold(stream)
    stream.submit(fail, "first")
    first = stream.record()
    stream.wait(sk.new_stream("cpu").then(fail, "second"))
    last = stream.record()
    gate.open()
    with pytest.raises(RuntimeError, match="first"):
        stream.sync()
    stream.submit(fail, "third")
    third = stream.record()
    for event, text in ((first, "first"), (last, "first"), (third, "third")):
        with pytest.raises(RuntimeError, match=text):
            event.sync(LONG)
    with pytest.raises(RuntimeError, match="third"):
        stream.sync()


def test_an_old_error_hides_no_later_one(stream, hold, reported):
    """Of two that wait for the first error, one is told when another error is there."""
    gate = hold(stream)
    stream.submit(fail, "first")
    awaits = [stream.__await__() for _ in range(2)]

    async def main():
        for waiting in awaits:
            assert waiting.send(None) is not None  # it waits
        stream.submit(fail, "second")
        gate.open()
        assert await asyncio.to_thread(eventually, lambda: pending(stream) == 0)
        with pytest.raises(RuntimeError, match="first"):
            stream.sync()
        stream.submit(fail, "third")
        assert await asyncio.to_thread(eventually, lambda: pending(stream) == 0)
        await asyncio.sleep(0)  # the loop settles what the two wait for
        for waiting in awaits:
            with pytest.raises(RuntimeError, match="first"):
                waiting.send(None)
        with pytest.raises(RuntimeError, match="third"):
            await stream

    asyncio.run(main())


def test_inside_a_scope_an_event_takes_the_error_of_what_was_submitted_there(stream):
    with stream:
        before = stream.record()
        stream.submit(fail, "first")
        event = stream.record()
    before.sync()
    with pytest.raises(RuntimeError, match="first"):
        event.sync()
    with pytest.raises(RuntimeError, match="first"):
        stream.sync()


def test_an_error_told_hundreds_of_times_does_not_grow(stream):
    def frames(error):
        trace, count = error.__traceback__, 0
        while trace is not None:
            trace, count = trace.tb_next, count + 1
        return count

    stream.submit(fail, "first")
    event, counts = stream.record(), set()
    futures = [stream.then(int) for _ in range(300)]
    for wait in [lambda: event.sync(LONG), lambda: asyncio.run(wait_for(event))] * 20 + [
        functools.partial(future.result, LONG) for future in futures
    ]:
        with pytest.raises(RuntimeError) as caught:
            wait()
        counts.add(frames(caught.value))
    assert max(counts) < 20


# -- under an engine --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_under_an_engine_an_error_reaches_every_waiter(seed):
    with adversarial(seed):
        stream = sk.new_stream("cpu")
        stream.submit(fail, "first")
        assert told_of(stream, int) == ["first"] * 150
        stream.sync()


@pytest.mark.parametrize("seed", range(20))
def test_under_an_engine_await_runs_what_it_waits_for(seed):
    async def main():
        stream, other, seen = sk.new_stream("cpu"), sk.new_stream("cpu"), []
        stream.submit(seen.append, 1)
        event = stream.record()
        stream.submit(seen.append, 2)
        other.wait(stream)
        other.submit(seen.append, 3)
        await event
        assert seen[:1] == [1]
        await other
        assert seen == [1, 2, 3]

    with adversarial(seed):
        asyncio.run(main())


def test_a_missing_await_is_found():
    """The control awaits, and passes under every seed."""

    def program(*, awaits):
        async def main():
            loader, seen = sk.new_stream("cpu"), []
            loader.submit(seen.append, 1)
            other = sk.new_stream("cpu")
            other.submit(int)
            await (loader if awaits else other)
            assert seen == [1]

        asyncio.run(main())

    for_seeds(lambda: program(awaits=True), 40)
    with pytest.raises(AssertionError):
        for_seeds(lambda: program(awaits=False), 40)


def test_under_an_engine_other_tasks_submit_before_an_await_runs_things():
    """Some seed runs what a task submits after another one has begun to wait."""
    orders = set()

    async def main():
        one, two, seen = sk.new_stream("cpu"), sk.new_stream("cpu"), []

        async def first():
            one.submit(seen.append, 1)
            await one

        async def second():
            two.submit(seen.append, 2)
            await two

        await asyncio.gather(first(), second())
        orders.add(tuple(seen))

    for seed in range(20):
        with adversarial(seed):
            asyncio.run(main())
    assert orders == {(1, 2), (2, 1)}


def asked_by_result(future):
    future.result(LONG)


def asked_by_exception(future):
    assert future.exception(LONG) is None


def asked_by_a_loop(future):
    async def main():
        await asyncio.wrap_future(future)

    asyncio.run(main())


def asked_over_and_over(future):
    while not future.done():
        pass


@pytest.mark.parametrize(
    "ask", [asked_by_result, asked_by_exception, asked_by_a_loop, asked_over_and_over]
)
@pytest.mark.parametrize("seed", range(10))
def test_under_an_engine_whoever_asks_a_future_runs_its_function(seed, ask):
    seen = []
    with adversarial(seed):
        stream = sk.new_stream("cpu")
        stream.submit(seen.append, 1)
        first = stream.then(seen.append, 2)
        stream.submit(int)
        second = stream.then(seen.append, 3)
        assert not seen
        ask(second)
        assert seen == [1, 2, 3]
        assert first.done()


def test_under_an_engine_functions_run_at_any_time_after_the_work():
    orders = set()

    def program():
        stream, seen = sk.new_stream("cpu"), []
        stream.submit(seen.append, 1)
        stream.then(seen.append, "then")
        stream.submit(seen.append, 2)
        stream.submit(seen.append, 3)
        future = stream.then(int)
        future.result()
        orders.add(tuple(seen))

    for_seeds(program, 100)
    assert orders == {(1, "then", 2, 3), (1, 2, "then", 3), (1, 2, 3, "then")}


def test_under_an_engine_the_end_of_the_block_runs_what_nobody_asked_for():
    seen = []
    with adversarial(1):
        stream = sk.new_stream("cpu")
        future = stream.then(seen.append, 1)
        cancelled = stream.then(seen.append, 2)
        assert cancelled.cancel()
    assert seen == [1]
    assert future.result(0) is None
    with pytest.raises(CancelledError):
        cancelled.result(0)


def test_under_an_engine_a_timeout_of_a_future_is_kept():
    """The work is held by another thread's scope."""
    with adversarial(0):
        stream, entered, leave = sk.new_stream("cpu"), threading.Event(), threading.Event()

        def holder():
            with stream:
                entered.set()
                leave.wait(LONG)

        thread = threading.Thread(target=holder)
        thread.start()
        assert entered.wait(LONG)
        future = stream.then(int)
        with pytest.raises(TimeoutError):
            future.result(0.01)
        leave.set()
        assert future.result(LONG) == 0
        thread.join()


# -- the process ------------------------------------------------------------------------------


@needs_fork
def test_a_function_that_forks_leaves_those_behind_it_to_the_parent():
    done = run_program(
        """
import os, threading, time
import streamkit as sk

ready, called = threading.Event(), []

def fork():
    ready.wait()
    time.sleep(0.05)  # the others are ready too
    child = os.fork()
    if child == 0:
        threading.Timer(0.3, lambda: os._exit(len(called))).start()
        return None
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

stream = sk.new_stream("cpu")
futures = [stream.then(fork), *(stream.then(called.append, n) for n in range(3))]
ready.set()
print(futures[0].result(10), [future.result(10) for future in futures[1:]], called)
"""
    )
    assert (done.stdout, done.stderr) == ("0 [None, None, None] [0, 1, 2]\n", "")


@needs_fork
def test_in_a_forked_child_a_pending_future_says_that_the_parent_calls_its_function():
    """Also where a thread of the parent's, which the child has not, holds the future's own lock."""
    out = python(
        """
import contextlib, os, threading
import streamkit as sk

release, locked, running = threading.Event(), threading.Event(), sk.new_stream("cpu")
futures = [running.then(release.wait), running.then(int, 1)]
held = sk.new_stream("cpu")
held.submit(release.wait)
futures.append(held.then(int, 1))
cancelled = held.then(int, 1)
cancelled.cancel()
done = sk.new_stream("cpu").then(int, 2)
done.result(10)
while not futures[0].running():
    pass
called = []
for future in futures:
    future.add_done_callback(called.append)

def hold():
    with contextlib.ExitStack() as stack:
        for future in futures:
            stack.enter_context(future._condition)
        locked.set()
        release.wait()

def child():
    for future in futures:
        for ask in (future.result, lambda: (_ for _ in ()).throw(future.exception())):
            try:
                ask()
            except sk.errors.ForkedProcessError as error:
                assert "parent" in str(error)
            else:
                raise AssertionError
    assert cancelled.cancelled()
    assert done.result() == 2
    assert not called

def fork(child):
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def itself():
    own, = forking
    assert own.running()

thread = threading.Thread(target=hold)
thread.start()
locked.wait()
print(fork(child))
forking, known = [], threading.Event()
forking.append(sk.new_stream("cpu").then(lambda: known.wait() and fork(itself)))
known.set()
print(forking[0].result(10))
release.set()
print([future.result(10) for future in futures], len(called))
""",
        options=("-W", "ignore"),
    )
    assert out == "0\n0\n[True, 1, 1] 3\n"


@needs_fork
@pytest.mark.parametrize("where", ["beside", "in a scope", "in the worker", "in a function"])
def test_in_a_forked_child_what_is_the_parents_is_refused(where):
    """The parent has its threads, and runs what was submitted; the child runs what is its own."""
    out = python(
        f"""
import asyncio, contextlib, os, threading, time
import streamkit as sk

s, other, idle, release = *(sk.new_stream("cpu") for _ in "123"), threading.Event()
default, own = (sk.default_stream("cpu", per_thread=mine) for mine in (False, True))
reached = idle.record()
reached.sync()
for _ in range(2):
    s.submit(release.wait)
event, future, after = s.record(), s.then(int), other.then(release.wait)

async def wait_for(what):
    await what

def refused(call, *arguments):
    try:
        call(*arguments)
    except sk.errors.ForkedProcessError as error:
        assert "'spawn'" in str(error), error
    else:
        raise AssertionError(call)

def child():
    for stream in (s, other, default, own, idle):
        for call in (stream.sync, stream.record, stream.__enter__, lambda: stream.done):
            refused(call)
        for call in (stream.submit, stream.then):
            refused(call, int)
        refused(stream.keep, object())
        refused(asyncio.run, wait_for(stream))
        refused(sk.new_stream("cpu").wait, stream)
    for one in (event, reached):
        for call in (one.sync, lambda: one.done, lambda: sk.new_stream("cpu").wait(one)):
            refused(call)
        refused(asyncio.run, wait_for(one))
        refused(sk.new_stream("cpu").record, one)
        repr(one)
    refused(future.result)
    for stream in (s, idle):
        stream.close()
        repr(stream)
    defaults = (sk.default_stream("cpu", per_thread=mine) for mine in (False, True))
    for new in (sk.new_stream("cpu"), *defaults):
        seen = []
        new.submit(time.sleep, 0.05)
        new.submit(seen.append, 1)
        assert not new.done
        new.record().sync(timeout=10)
        with new:
            assert seen == [1]
        assert new.then(int, 1).result(10) == 1

def fork(inside=None):
    pid = os.fork()
    if pid == 0:
        try:
            if inside:
                assert sk.current_stream() is inside
                refused(inside.submit, int)
                scope.__exit__(None, None, None)
            child()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

third, where = sk.new_stream("cpu"), {where!r}
if where == "beside":
    print(fork())
elif where == "in a scope":
    with (scope := sk.use(third)):
        print(fork(third))
elif where == "in the worker":
    third.submit(lambda: print(fork()))
    third.sync()
else:
    third.then(lambda: print(fork())).result(20)
assert not event.done
assert not future.done()
release.set()
print(future.result(10), after.result(10), event.done)
for stream in (s, other, default, own, idle, third):
    stream.submit(int)
    stream.sync(timeout=10)
""",
        options=("-W", "ignore"),
    )
    assert out == "0\n0 True True\n"


@needs_fork
def test_a_child_that_a_function_forks_runs_nothing_more_of_the_parents():
    """It returns from the function, and its one thread, which was the worker's, ends."""
    out = python(
        """
import os, threading
import streamkit as sk

s, ready, seen, children = sk.new_stream("cpu"), threading.Event(), [], []

def fork():
    ready.wait()
    pid = os.fork()
    if pid:
        children.append(pid)

s.submit(fork)
s.submit(lambda: seen.append(os.getpid()))
s.submit(os.write, 1, b"once\\n")
ready.set()
s.sync(timeout=10)
print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]), seen == [os.getpid()])
""",
        options=("-W", "ignore"),
    )
    assert out == "once\n0 True\n"
