"""An error of a submitted function is told to somebody, or reported with its place."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import functools
import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest

import streamkit as sk
from streamkit.testing import for_seeds
from support.garbage import its_thread_ran_again
from support.queues import LONG, Gate, eventually, pending, within


def fail(text="mine"):
    raise RuntimeError(text)


def line_of(text):
    """Where this file has the text, as a report names it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if text in line and "line_of" not in line)
    return f'submitted in "{__file__}", line {number}'


def wait_for_what_failed(stream):
    future = concurrent.futures.Future()
    future.set_exception(RuntimeError("second"))
    stream.wait(future)  # nobody


def idle(stream):
    return eventually(lambda: pending(stream) == 0)


def test_an_error_that_nobody_waited_for_is_reported_when_the_stream_goes(stream, reported):
    del stream
    dropped = sk.new_stream("cpu")
    dropped.submit(fail)  # the dropped one
    assert idle(dropped)
    assert not reported
    gc.disable()  # it is told at once, not by a collection at some time
    try:
        del dropped
        assert eventually(lambda: reported)
    finally:
        gc.enable()
    ((error, text),) = reported
    assert str(error) == "mine"
    assert f"of fail, {line_of('# the dropped one')}" in text


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_before_or_after_the_close_of_its_stream_is_reported(stream, hold, reported, when):
    gate = hold(stream)
    stream.submit(fail)
    if when == "before":
        gate.open()
        assert idle(stream)
    assert not reported
    stream.close()
    gate.open()
    assert eventually(lambda: [str(error) for error, _ in reported] == ["mine"])


def test_after_a_close_an_event_still_tells_the_error(stream, hold, reported):
    gate = hold(stream)
    stream.submit(fail)
    event = stream.record()
    stream.close()
    gate.open()
    with pytest.raises(RuntimeError, match="mine"):
        event.sync(LONG)
    del event
    assert idle(stream)
    gc.collect()
    assert not reported


def by_sync(stream):
    with pytest.raises(RuntimeError, match="mine"):
        stream.sync()


def by_done(stream):
    assert idle(stream)
    with pytest.raises(RuntimeError, match="mine"):
        assert stream.done


def by_await(stream):
    async def main():
        with pytest.raises(RuntimeError, match="mine"):
            await stream

    asyncio.run(main())


def by_an_event(stream):
    with pytest.raises(RuntimeError, match="mine"):
        stream.record().sync()


def by_the_result_of_a_future(stream):
    with pytest.raises(RuntimeError, match="mine"):
        stream.then(int).result(LONG)


def by_the_exception_of_a_future(stream):
    assert str(stream.then(int).exception(LONG)) == "mine"


def by_a_callback_of_a_future(stream):
    seen = []
    stream.then(int).add_done_callback(lambda future: seen.append(future.exception()))
    assert eventually(lambda: seen)


def by_nobody(stream):
    assert idle(stream)


WAYS = [
    by_sync,
    by_done,
    by_await,
    by_an_event,
    by_the_result_of_a_future,
    by_the_exception_of_a_future,
    by_a_callback_of_a_future,
    by_nobody,
]


@pytest.mark.parametrize("collect", WAYS)
def test_an_error_that_anybody_was_told_is_not_reported(reported, collect):
    stream = sk.new_stream("cpu")
    stream.submit(fail)
    collect(stream)
    assert idle(stream)
    del stream
    gc.collect()
    assert len(reported) == (1 if collect is by_nobody else 0)


def test_an_error_behind_another_that_waits_is_reported_at_once(stream, reported):
    stream.submit(fail, "first")
    wait_for_what_failed(stream)
    assert eventually(lambda: reported)
    with pytest.raises(RuntimeError, match="first"):
        stream.sync()
    ((error, text),) = reported
    assert str(error) == "second"
    assert line_of("# nobody") in text


@pytest.mark.parametrize("asked", [False, True])
def test_the_error_of_a_dropped_future_is_reported(stream, reported, asked):
    future = stream.then(fail)  # the future
    assert eventually(future.done)
    if asked:
        assert str(future.exception()) == "mine"
    del future
    assert within(lambda: stream.then(int).result(LONG)) == 0  # its thread has let go
    assert eventually(lambda: its_thread_ran_again(stream) and len(reported) == (not asked))
    for error, text in reported:
        assert str(error) == "mine"
        assert line_of("# the future") in text


def test_a_future_that_was_cancelled_is_not_reported(stream, hold, reported):
    gate = hold(stream)
    future = stream.then(fail)
    assert future.cancel()
    gate.open()
    stream.sync()
    del future
    gc.collect()
    assert not reported


def test_as_completed_asks_for_no_error(stream, reported):
    list(concurrent.futures.as_completed([stream.then(fail)], LONG))
    assert within(lambda: stream.then(int).result(LONG)) == 0
    gc.collect()
    assert eventually(lambda: len(reported) == 1)


def test_of_what_the_body_submits_an_error_is_reported_too(reported):
    stream = sk.new_stream("cpu")
    with stream:
        stream.submit(fail)
    del stream
    assert eventually(lambda: (gc.collect(), reported)[1])  # once its worker has ended
    assert [str(error) for error, _ in reported] == ["mine"]


def test_under_an_engine_the_block_tells_the_error(reported):
    def program():
        stream = sk.new_stream("cpu")
        stream.submit(fail)
        stream.close()

    with pytest.raises(RuntimeError, match="mine"):
        for_seeds(program, [1])
    gc.collect()
    assert not reported


def test_what_is_submitted_from_outside_of_python_has_no_place(reported):
    stream = sk.new_stream("cpu")

    _thread.start_new_thread(stream.submit, (fail,))
    assert eventually(functools.partial(getattr, stream._work.first, "failure"))
    assert idle(stream)
    del stream
    gc.collect()
    assert eventually(lambda: reported)  # as soon as its worker knows
    assert "fail, submitted outside of Python" in reported[0][1]


def test_a_submit_keeps_no_local_of_its_caller(stream, hold):

    class Local:
        pass

    def submits():
        local = Local()
        stream.submit(int)
        return weakref.ref(local)

    hold(stream)
    assert submits()() is None


# -- a worker lives, whatever an item raises -----------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_worker_survives_what_a_waiter_raises(stream, hold, reported, error):
    """A loop of another library's, which is told that a stream has run."""

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, callback, *args, context=None):
            if threading.current_thread().name.startswith("streamkit"):
                raise error("of the loop")
            return super().call_soon_threadsafe(callback, *args, context=context)

    gate, seen = hold(stream), []
    loop = Loop()
    event = stream.record()
    waiting = event.__await__()

    async def main():
        waiting.send(None)

    loop.run_until_complete(main())
    told = []
    event._mark.tell(lambda: told.append(1))  # another who waits for the same event
    stream.submit(seen.append, 1)
    gate.open()
    within(stream.sync)
    assert seen == told == [1]
    assert [type(error) for error, _ in reported] == [error]
    waiting.close()
    loop.close()


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_worker_survives_an_error_of_its_own(stream, hold, reported, error):
    """As of the text of an error, which a user's class gives."""

    class BadError(Exception):
        @property
        def __traceback__(self):
            raise error("of the error")

    def work():
        raise BadError

    gate, seen = hold(stream), []
    stream.submit(work)
    stream.submit(seen.append, 1)
    gate.open()
    try:
        within(stream.sync)
    except BaseException:
        stream._work.begin()  # or a dead worker holds up the end of the tests
        raise
    assert seen == [1]
    assert stream.done
    assert [type(error) for error, _ in reported] == [error]


def test_a_worker_survives_a_hook_that_raises(stream, hold, monkeypatch):
    called = []

    def hook(args):
        called.append(args.exc_value)
        raise SystemExit("of the hook")

    monkeypatch.setattr(sys, "unraisablehook", hook)
    gate, seen = hold(stream), []
    stream.submit(fail, "first")
    wait_for_what_failed(stream)
    gate.open()
    with pytest.raises(RuntimeError, match="first"):
        within(stream.sync)
    stream.submit(seen.append, 1)
    within(stream.sync)
    assert seen == [1]
    assert "second" in [str(error) for error in called]


def test_nothing_is_pending_when_no_thread_can_be_started(stream, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    event, refused, found = sk.new_event(device="cpu"), [], []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for give in (
            lambda: stream.submit(refused.append, 1),
            stream.record,
            lambda: stream.record(event),
            lambda: stream.keep(object()),
            lambda: stream.then(int),
            stream.__enter__,
        ):
            with pytest.raises(RuntimeError, match="start"):
                give()
            found.append((stream.done, pending(stream)))
    for queue in filter(None, (stream._work, stream._after)):
        queue._pending.clear()  # else the end of the program would wait for what was left
    assert found == [(True, 0)] * 6
    stream.sync(timeout=LONG)
    event.sync(timeout=LONG)
    gate = Gate(stream)
    gate.open()
    within(stream.sync)
    assert not refused
