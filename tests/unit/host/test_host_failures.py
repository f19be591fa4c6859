"""What waits for failed work has its error, and runs nothing on data that are not there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading
import weakref

import pytest

import streamkit as sk
from streamkit.testing import adversarial, for_seeds
from support.queues import LONG, eventually, pending, together, within

pytestmark = [pytest.mark.portable, pytest.mark.quick]


@pytest.fixture
def load():
    return sk.new_stream("cpu", name="load")


@pytest.fixture
def work():
    return sk.new_stream("cpu", name="work")


def fail(text="file is gone"):
    raise OSError(text)


def a_future(error):
    future = concurrent.futures.Future()
    future.set_exception(error) if error else future.set_result(None)
    return future


def by_the_stream(load, work):
    work.wait(load)


def by_an_event(load, work):
    work.wait(load.record())


def by_a_future_of_then(load, work):
    work.wait(load.then(int))


LINKS = [by_the_stream, by_an_event, by_a_future_of_then]


def by_sync(work):
    work.sync(LONG)


def by_await(work):
    async def main():
        await work

    asyncio.run(main())


def by_done(work):
    assert eventually(lambda: work.done)


def by_a_scope(work):
    with work:
        pytest.fail("the body ran on data that are not there")


ENDS = [by_sync, by_await, by_done, by_a_scope]


def assert_failure_travels(load, work, link, end):
    seen = []
    load.submit(fail)
    link(load, work)
    work.submit(seen.append, "rotten")
    with pytest.raises(OSError, match="file is gone"):
        end(work)
    work.submit(seen.append, "new")
    by_sync(work)  # raised once
    assert seen == ["new"]
    with pytest.raises(OSError, match="file is gone"):
        load.sync()
    load.sync()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("link", LINKS)
def test_the_error_reaches_the_stream_that_waited_and_its_functions_do_not_run(
    load, work, link, end, reported
):
    assert_failure_travels(load, work, link, end)
    assert not reported


@pytest.mark.parametrize("link", LINKS)
def test_control_what_has_not_failed_stops_nothing(load, work, link):
    seen = []
    load.submit(int)
    link(load, work)
    work.submit(seen.append, 1)
    by_sync(work)
    assert seen == [1]


@pytest.mark.parametrize(
    "look", [lambda w: w.record().sync(LONG), lambda w: w.then(int).result(LONG)]
)
def test_events_and_futures_of_the_stream_carry_it_and_do_not_collect_it(load, work, look):
    seen = []
    load.submit(fail)
    work.wait(load)
    for _ in range(2):
        with pytest.raises(OSError, match="file is gone"):
            look(work)
    work.submit(seen.append, "rotten")
    with pytest.raises(OSError, match="file is gone"):
        by_sync(work)
    look(work)
    assert not seen


def test_a_chain_carries_it_on_as_one_object(load, work):
    third, seen = sk.new_stream("cpu"), []
    load.submit(fail)
    work.wait(load)
    work.submit(seen.append, "work")
    third.wait(work)
    third.submit(seen.append, "third")
    told = []
    for stream in (third, work, load):
        with pytest.raises(OSError, match="file is gone") as caught:
            stream.sync(LONG)
        told.append(caught.value)
        stream.sync(LONG)
    assert not seen
    assert told[0] is told[1] is told[2]


def test_a_wait_that_began_before_the_source_raised_it_counts(load, work, hold):
    gate, seen = hold(work), []
    load.submit(fail)
    work.wait(load)
    work.submit(seen.append, "rotten")
    with pytest.raises(OSError, match="file is gone"):
        load.sync()
    gate.open()
    with pytest.raises(OSError, match="file is gone"):
        by_sync(work)
    assert not seen


def test_a_wait_that_begins_after_the_source_raised_it_does_not(load, work):
    load.submit(fail)
    with pytest.raises(OSError, match="file is gone"):
        load.sync()
    work.wait(load)
    by_sync(work)


def test_what_was_given_before_the_wait_runs(load, work, hold):
    gate, seen = hold(load), []
    load.submit(fail)
    work.submit(seen.append, "before")
    work.wait(load)
    work.submit(seen.append, "after")
    assert eventually(lambda: seen == ["before"])
    gate.open()
    with pytest.raises(OSError, match="file is gone"):
        by_sync(work)
    assert seen == ["before"]


@pytest.mark.parametrize("end", ENDS)
def test_what_follows_the_error_on_its_own_stream_is_dropped_until_it_was_raised(load, end):
    seen = []
    load.submit(seen.append, "before")
    load.submit(fail)
    load.submit(seen.append, "rotten")
    with pytest.raises(OSError, match="file is gone"):
        end(load)
    load.submit(seen.append, "new")
    by_sync(load)  # raised once
    assert seen == ["before", "new"]


def test_what_was_submitted_before_the_error_was_raised_does_not_run_afterwards(load, hold):
    gate, slow, seen = hold(load), concurrent.futures.Future(), []
    load.submit(fail)

    def sync():
        with pytest.raises(OSError, match="file is gone"):
            load.sync()
        seen.append("raised")

    waiting = threading.Thread(target=sync)
    waiting.start()
    assert eventually(lambda: pending(load) == 3)
    load.wait(slow)
    load.submit(seen.append, "rotten")
    gate.open()
    waiting.join(LONG)
    slow.set_result(None)
    by_sync(load)
    assert seen == ["raised"]


def test_a_stopped_stream_raises_its_own_error_if_that_was_first(load, work, reported):
    seen = []
    load.submit(fail)
    work.submit(fail, "own")
    work.wait(load)
    work.submit(seen.append, "rotten")
    with pytest.raises(OSError, match="own"):
        by_sync(work)
    by_sync(work)
    assert not seen
    with pytest.raises(OSError, match="file is gone"):
        load.sync()
    assert not reported


def test_a_function_that_is_dropped_is_let_go_of(load, work):
    class Data:
        pass

    data = Data()
    gone = weakref.ref(data)
    load.submit(fail)
    work.wait(load)
    work.submit(id, data)
    del data
    assert eventually(lambda: pending(work) == 0)
    assert gone() is None
    with pytest.raises(OSError, match="file is gone"):
        by_sync(work)


def test_a_stopped_stream_still_waits(load, work, hold):
    """So that what follows the error is in order after what was waited for."""
    slow = sk.new_stream("cpu")
    gate = hold(slow)
    load.submit(fail)
    work.wait(load)
    work.wait(slow)
    event = work.record()
    with pytest.raises(TimeoutError):
        event.sync(0.05)
    gate.open()
    with pytest.raises(OSError, match="file is gone"):
        event.sync(LONG)


@pytest.mark.parametrize("error", [LookupError("lost"), None])
def test_a_future_that_fails_stops_the_functions_too(work, error):
    seen = []
    work.wait(a_future(error))
    work.submit(seen.append, 1)
    if error is None:  # the control
        by_sync(work)
        assert seen == [1]
    else:
        with pytest.raises(LookupError, match="lost"):
            by_sync(work)
        assert not seen


# -- inside a scope, where nothing is queued --------------------------------------------------


def by_a_future_of_another(load, work):
    work.wait(a_future(load.then(int).exception(LONG)))


@pytest.mark.parametrize("link", [*LINKS, by_a_future_of_another])
def test_inside_the_scope_the_wait_raises(load, work, link):
    seen = []
    load.submit(fail)

    def body():
        with work:
            link(load, work)
            seen.append("rotten")

    with pytest.raises(OSError, match="file is gone"):
        within(body)
    work.submit(seen.append, "new")
    by_sync(work)
    assert seen == ["new"]


def test_a_function_that_handles_the_error_of_its_wait_goes_on(load, work):
    seen = []

    def function():
        with pytest.raises(OSError, match="file is gone"):
            work.wait(load)
        seen.append("handled")

    load.submit(fail)
    work.submit(function)
    work.submit(seen.append, "next")
    by_sync(work)
    assert seen == ["handled", "next"]


def test_two_who_wait_in_threads_of_their_own_are_both_told(load, work):
    streams, told = (work, sk.new_stream("cpu")), []

    def wait(number):
        stream = streams[number]
        stream.wait(load)
        try:
            stream.sync(LONG)
        except OSError as error:
            told.append(error)

    load.submit(fail)
    together(2, wait)
    assert len(told) == 2


# -- what the error says ----------------------------------------------------------------------


def notes(error):
    return getattr(error, "__notes__", [])


def test_a_note_names_the_stream_and_the_line(load, work):
    load.submit(fail)
    line = this_line()
    work.wait(load)
    for stream in (work, load):
        with pytest.raises(OSError, match="file is gone") as caught:
            stream.sync(LONG)
        where = f'which {load._work.title} was given in "{__file__}", line {line - 1}'
        assert notes(caught.value) == [f"raised by fail, {where}"]


def this_line():
    return sys._getframe().f_back.f_lineno


def test_an_error_that_is_raised_again_and_again_has_one_note(load):
    error = OSError("always the same")

    def again():
        raise error

    for _ in range(3):
        load.submit(again)
        line = this_line() - 1
        with pytest.raises(OSError, match="same"):
            load.sync()
    (note,) = notes(error)
    assert note.endswith(f"line {line}")


def test_a_note_names_the_line_of_a_then_and_of_a_wait_for_a_future(load, work):
    (then,) = notes(load.then(fail).exception(LONG))
    assert then.startswith(f'raised by fail, submitted in "{__file__}", line')
    error = LookupError("lost")
    work.wait(a_future(error))
    with pytest.raises(LookupError):
        by_sync(work)
    (wait,) = notes(error)
    assert wait.startswith(f"raised by the wait for Future, which {work._work.title} was given in")


def test_an_error_that_takes_no_note_is_raised_all_the_same(load):
    class FrozenError(Exception):
        def __setattr__(self, name, value):
            raise TypeError

    def function():
        raise FrozenError

    load.submit(function)
    with pytest.raises(FrozenError):
        load.sync()


def test_an_error_that_nobody_waits_for_is_reported_once(reported):
    streams = [sk.new_stream("cpu") for _ in range(3)]
    streams[0].submit(fail)
    for stream in streams[1:]:
        stream.wait(streams[0])
        stream.submit(int)
    assert eventually(lambda: not any(pending(stream) for stream in streams))
    streams.clear()
    del stream
    assert eventually(lambda: gc.collect() and reported)
    assert [str(error) for error, _ in reported] == ["file is gone"]


# -- under the scheduler ----------------------------------------------------------------------


@pytest.mark.parametrize("end", [by_sync, by_a_scope, by_done])
@pytest.mark.parametrize("link", LINKS)
def test_under_the_scheduler_the_rule_is_the_same(link, end):
    def program():
        assert_failure_travels(sk.new_stream("cpu"), sk.new_stream("cpu"), link, end)

    for_seeds(program, 20)


def test_under_the_scheduler_the_block_raises_what_only_the_source_raised():
    seen = []

    def program():
        load, work = sk.new_stream("cpu"), sk.new_stream("cpu")
        with adversarial(0):
            load.submit(fail)
            work.wait(load)
            work.submit(seen.append, "rotten")
            with pytest.raises(OSError, match="file is gone"):
                load.sync()

    with pytest.raises(OSError, match="file is gone"):
        program()
    assert not seen
