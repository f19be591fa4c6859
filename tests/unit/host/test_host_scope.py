"""``with s:`` on a host stream: the body is the queue's next item, run inline."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import threading
import time
import warnings

import pytest

import streamkit as sk
from support.interrupts import count, do_not_count, interrupt_everywhere
from support.programs import python
from support.queues import LONG, eventually, pending, together, within

pytestmark = [pytest.mark.portable, pytest.mark.quick]


def ordered(stream):
    return sk.use(stream, ordered=True)


@pytest.mark.parametrize(
    ("of_default", "scope", "waits"),
    [
        (False, sk.use, True),
        (False, contextlib.nullcontext, False),
        (True, ordered, True),
        (True, sk.use, False),
    ],
)
def test_the_body_runs_after_what_was_queued_before(stream, hold, of_default, scope, waits):
    queue = sk.default_stream("cpu") if of_default else stream
    gate, seen = hold(queue), []
    queue.submit(seen.append, "queued")
    if waits:
        threading.Timer(0.02, gate.open).start()
    with scope(stream):
        seen.append("body")
    gate.open()
    queue.sync()
    assert seen == (["queued", "body"] if waits else ["body", "queued"])


@pytest.mark.parametrize("scoped", [True, False])
def test_what_other_threads_submit_meanwhile_follows_the_body(stream, scoped):
    seen, inside = [], threading.Event()

    def submit():
        inside.wait()
        stream.submit(seen.append, "later")

    thread = threading.Thread(target=submit)
    thread.start()

    def body():
        inside.set()
        thread.join()
        time.sleep(0.05) if scoped else stream.sync()
        seen.append("body")

    if scoped:
        with stream:
            body()
    else:
        body()
    stream.sync()
    assert seen == (["body", "later"] if scoped else ["later", "body"])


def test_the_body_and_what_it_submits_run_at_once_in_the_thread_that_entered(stream):
    here, seen = threading.get_ident(), []
    with stream as entered:
        assert entered is stream
        stream.submit(lambda: seen.append(threading.get_ident()))
        assert seen == [here]
    stream.submit(lambda: seen.append(threading.get_ident()))
    stream.sync()
    assert seen[1] != here


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.sync(),
        lambda s: s.sync(timeout=0),
        lambda s: s.record().sync(),
        lambda s: s.wait(s),
        lambda s: s.wait(s.record()),
        lambda s: s.submit(int),
        lambda s: s.submit(s.sync),
        lambda s: s.submit(s.submit, int),
        lambda s: s.close(),
    ],
    ids=[
        "sync", "sync at once", "record", "wait stream", "wait event", "submit", "submit sync",
        "submit submit", "close",
    ],
)  # fmt: skip
def test_the_body_may_use_its_own_stream(stream, use):
    def body():
        with stream:
            use(stream)
        assert sk.current_stream(device="cpu") is not stream

    within(body)


def test_the_stream_is_done_in_its_own_body_and_as_soon_as_that_is_left(stream, slow_workers):
    for _ in range(3):
        with stream:
            assert stream.done
        assert stream.done


def test_the_stream_is_busy_for_other_threads_until_the_outermost_scope_is_left(stream):
    with stream:
        with stream:
            assert not within(lambda: stream.done)
        assert not within(lambda: stream.done)
        with pytest.raises(TimeoutError):
            within(lambda: stream.sync(timeout=0.01))
    assert within(lambda: stream.sync() or stream.done)


@pytest.mark.parametrize("wait", ["stream.wait(other)", "other.sync()"])
def test_a_body_that_waits_waits_on_the_host_and_an_item_stays_behind_it(stream, other, hold, wait):
    gate, seen = hold(other), []
    other.submit(seen.append, "other")
    with stream:
        within(lambda: stream.submit(seen.append, "behind"))
        threading.Timer(0.02, gate.open).start()
        stream.wait(other) if wait == "stream.wait(other)" else other.sync()
        assert seen == ["other"]
        time.sleep(0.02)
        seen.append("body")
    stream.sync()
    assert seen == ["other", "body", "behind"]


@pytest.mark.parametrize("told", [True, False])
def test_another_stream_waits_for_the_body_if_it_is_told(stream, other, told):
    seen = []
    with stream:
        if told:
            within(lambda: other.wait(stream))
        other.submit(seen.append, "other")
        time.sleep(0.02) if told else other.sync()
        seen.append("body")
    other.sync()
    assert seen == (["body", "other"] if told else ["other", "body"])


def test_scopes_of_several_streams_nest(stream, other):
    with stream:
        with other:
            with stream:
                assert sk.current_stream() is stream
            assert sk.current_stream() is other
        assert sk.current_stream() is stream
        within(other.sync)
    within(stream.sync)


def test_one_use_object_may_be_entered_again_and_inside_itself(stream):
    scope = sk.use(stream)
    for _ in range(2):
        with scope, scope:
            assert sk.current_stream() is stream
    within(stream.sync)


def test_one_use_object_serves_several_threads(stream):
    scope, seen = sk.use(stream), []

    def work(_):
        for _ in range(50):
            with scope:
                seen.append(1)

    together(4, work)
    assert len(seen) == 200
    within(stream.sync)


@pytest.mark.parametrize("options", [{"ordered": True}, {"libraries": []}, {"libraries": "torch"}])
def test_the_options_of_use_are_taken_on_the_host_too(stream, options):
    with sk.use(stream, **options) as current:
        assert current is sk.current_stream() is stream


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_the_current_stream_is_that_of_the_scope_in_its_own_thread(stream, no_driver, options):
    default = sk.default_stream(**options)
    assert sk.current_stream(**options) is default
    with stream:
        assert sk.current_stream(**options) is stream
        assert within(lambda: sk.current_stream(**options)) is default
    assert sk.current_stream(**options) is default


# -- how a scope ends -------------------------------------------------------------------------


def test_an_exception_leaves_the_scope(stream):
    with pytest.raises(KeyError, match="mine"), stream:
        raise KeyError("mine")
    assert sk.current_stream(device="cpu") is not stream
    within(stream.sync)


def test_ctrl_c_in_a_function_that_the_body_submits_ends_the_body(stream):
    """Else it would end one function of a loop that submits, and no second one the loop."""
    seen = []

    def work():
        with stream:
            for number in range(3):
                stream.submit(seen.append, number)
                stream.submit(signal.raise_signal, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == [0]
    stream.sync()
    assert stream.done


def test_leaving_out_of_order_raises_and_holds_no_queue(stream, other):
    stream.__enter__()
    other.__enter__()
    with pytest.raises(sk.errors.ScopeError, match="'other'"):
        stream.__exit__(None, None, None)
    assert sk.current_stream(device="cpu") is sk.default_stream("cpu")
    within(stream.sync)
    within(other.sync)
    with pytest.raises(sk.errors.ScopeError, match="not open in this"):  # it ended with the outer
        other.__exit__(None, None, None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("mine")])
@pytest.mark.parametrize("scope", [lambda s: s, sk.use])
def test_a_scope_left_out_of_order_by_an_exception_lets_it_pass(stream, other, scope, error):
    def fails():
        other.__enter__()
        raise error

    with pytest.raises(type(error)) as caught, scope(stream):
        fails()
    assert caught.value is error
    assert "'other'" in "".join(error.__notes__)
    assert sk.current_stream(device="cpu") is sk.default_stream("cpu")


def test_the_error_of_a_function_that_left_a_scope_open_is_the_streams(stream, other):
    def fails():
        other.__enter__()
        raise ValueError("mine")

    stream.submit(fails)
    with pytest.raises(ValueError, match="mine") as caught:
        within(stream.sync)
    assert "'other'" in "".join(caught.value.__notes__)


def test_a_generator_that_is_closed_with_a_scope_open_inside_still_says_so(stream, other):
    def items():
        with stream:
            other.__enter__()
            yield 1

    generator = items()
    next(generator)
    with pytest.raises(sk.errors.ScopeError, match="'other'"):  # a note would be lost
        generator.close()


def test_leaving_before_the_entry_or_in_another_thread_raises_and_the_scope_can_be_left(stream):
    with pytest.raises(sk.errors.ScopeError, match="'s'"):
        stream.__exit__(None, None, None)
    stream.__enter__()
    with pytest.raises(sk.errors.ScopeError, match="thread"):
        within(lambda: stream.__exit__(None, None, None))
    assert sk.current_stream() is stream
    stream.__exit__(None, None, None)
    within(stream.sync)


def test_a_thread_that_ends_inside_a_scope_does_not_hold_the_queue_for_ever(stream):
    within(stream.__enter__)
    stream.sync(timeout=LONG / 5)


def test_a_new_thread_is_not_taken_for_one_that_ended_inside_a_scope(stream):
    within(stream.__enter__)
    ran_in = []
    for _ in range(20):  # the identifiers of threads are used again

        def submit():
            here = threading.current_thread()
            stream.submit(lambda: ran_in.append(threading.current_thread() is here))

        within(submit)
    assert True not in ran_in


def test_a_generator_that_is_left_elsewhere_raises(stream):
    def items():
        with stream:
            yield 1

    generator = items()
    next(generator)
    with pytest.raises(sk.errors.ScopeError):
        within(generator.close)
    stream.__exit__(None, None, None)
    within(stream.sync)


def test_tasks_that_interleave_scopes_raise_and_leave_everything_whole(stream, other):
    outcome = {}

    async def task(name, own, first, second):
        try:
            with own:
                first.set()
                await second.wait()
        except sk.errors.ScopeError as error:
            outcome[name] = error

    async def main():
        entered, never = asyncio.Event(), asyncio.Event()

        async def outer():
            await task("outer", stream, entered, never)

        async def inner():
            await entered.wait()
            never.set()  # the outer scope ends while this one is open
            await task("inner", other, asyncio.Event(), done)

        done = asyncio.Event()
        tasks = [asyncio.create_task(outer()), asyncio.create_task(inner())]
        await tasks[0]
        done.set()
        await tasks[1]

    asyncio.run(main())
    assert set(outcome) == {"outer", "inner"}
    assert "await" in str(outcome["outer"])
    assert sk.current_stream(device="cpu") is sk.default_stream("cpu")
    within(stream.sync)
    within(other.sync)


def test_tasks_that_hold_no_scope_across_an_await_do_not_raise(stream, other):
    seen = []

    async def task(own):
        for _ in range(3):
            with own:
                seen.append(own)
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(task(stream), task(other))

    asyncio.run(main())
    assert seen == [stream, other] * 3


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends itself a signal")
def test_an_interrupt_while_waiting_for_the_turn_does_not_hold_the_queue(stream, hold):
    gate, seen = hold(stream), []

    class InterruptError(Exception):
        pass

    def interrupt(number, frame):
        raise InterruptError

    def send(thread):
        assert eventually(lambda: pending(stream) == 2)  # what holds it, and the turn
        signal.pthread_kill(thread, signal.SIGALRM)

    sender = threading.Thread(target=send, args=(threading.get_ident(),))
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        sender.start()
        with pytest.raises(InterruptError) as caught, stream:
            seen.append("entered")
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, previous)
    assert seen == []
    assert sk.current_stream(device="cpu") is not stream
    gate.open()
    within(stream.sync)  # whoever keeps the error keeps what was entered
    del caught


# -- a scope that is made and never entered ---------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"ordered": True}])
def test_use_without_with_warns_where_it_is_dropped(stream, options):
    with pytest.warns(RuntimeWarning, match=r"use\(.*'s'.*\) was never entered.*with") as warned:
        sk.use(stream, **options)
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_one_that_was_entered_or_cannot_be_made_does_not_warn(stream):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sk.use(stream):
            pass
        with pytest.raises(sk.errors.UnsupportedStreamError):
            sk.use(5)
        with pytest.raises(sk.errors.UnsupportedStreamError):
            sk.use(stream, libraries=["jax"])
        scope = sk.use(stream)
        stream.close()
        with pytest.raises(sk.errors.StreamClosedError):
            scope.__enter__()
        assert sk.current_stream(device="cpu") is not stream
        del scope
        gc.collect()


def test_one_that_is_left_at_the_end_of_the_program_does_not_warn():
    python("import streamkit as sk\nscope = sk.use(sk.new_stream('cpu'))", options=["-Werror"])


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 14), reason="it can leave any lock held: CPython's issue 148874"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a destructor
def test_an_interrupt_at_any_call_leaves_no_turn_on_a_busy_stream(stream):
    """One that is over would hold the queue at the program's end, and in circles of waits."""
    nth, ran = 0, []

    def enters():
        is_open = threading.Event()
        timer = threading.Timer(0.005, is_open.set)
        timer.start()
        try:
            do_not_count()
            stream.submit(is_open.wait, LONG)
            count()
            with stream:
                pass
        finally:
            is_open.set()
            timer.cancel()

    enters()
    for nth in interrupt_everywhere(enters):
        assert eventually(lambda: pending(stream) == 0), f"after an interrupt at the call {nth}"
        assert stream._work.turn is None, f"after an interrupt at the call {nth}"
        stream.submit(ran.append, nth)
        stream.sync(LONG)
    assert nth > 4
    assert ran == list(range(1, nth + 1))
