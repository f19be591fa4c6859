"""A host stream that waits for a future, of concurrent.futures or asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
import types

import pytest

import streamkit as sk
from streamkit._queues import registry  # a library is played
from streamkit._support import futures  # how often it looks at a loop
from streamkit.protocols import LibraryWork
from support.queues import LONG, eventually, within

pytestmark = [pytest.mark.portable, pytest.mark.quick]


def submitted(stream, future):
    """What runs on the stream before and after its wait for the future."""
    log = []
    stream.submit(log.append, "before")
    stream.wait(future)
    stream.submit(log.append, "after")
    return log


def test_work_after_it_waits_until_the_future_is_done(stream):
    future = concurrent.futures.Future()
    log = submitted(stream, future)
    other = sk.new_stream("cpu")
    other.submit(log.append, "other")  # the control: what does not wait has run
    other.sync()
    with pytest.raises(TimeoutError):
        stream.sync(timeout=0.05)
    assert sorted(log) == ["before", "other"]
    future.set_result(5)
    stream.sync(LONG)
    assert log[-1] == "after"


@pytest.mark.parametrize("when", ["before", "after"])
def test_its_error_is_the_queues(stream, when):
    future, error = concurrent.futures.Future(), LookupError("of the future")
    if when == "before":
        future.set_exception(error)
    log = submitted(stream, future)
    if when == "after":
        future.set_exception(error)
    with pytest.raises(LookupError, match="of the future"):
        stream.sync(LONG)
    assert log == ["before"]
    stream.sync(LONG)  # once, as that of a function


def test_a_cancelled_one_is_an_error_too(stream):
    future = concurrent.futures.Future()
    future.cancel()
    stream.wait(future)
    with pytest.raises(concurrent.futures.CancelledError):
        stream.sync(LONG)


def test_a_future_of_an_executor_and_one_of_then(stream):
    log, other = [], sk.new_stream("cpu")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stream.wait(pool.submit(log.append, 1))
        stream.submit(log.append, 2)
        other.wait(stream.then(log.append, 3))
        other.submit(log.append, 4)
        other.sync(LONG)
    assert log == [1, 2, 3, 4]


def test_an_error_that_nobody_waits_for_names_the_line(stream, reported):
    future = concurrent.futures.Future()
    stream.wait(future)
    stream.close()
    future.set_exception(LookupError())
    assert eventually(lambda: reported)
    assert f'Future, submitted in "{__file__}"' in reported[0][1]


def test_an_error_of_a_librarys_work_names_the_line(stream, monkeypatch, reported):
    work = concurrent.futures.Executor()  # stands for work of a library, as one that torch gives

    def finish():
        raise LookupError

    library = types.SimpleNamespace(work_of=lambda _: LibraryWork(print, finish))
    monkeypatch.setattr(registry, "work_library", {work: library}.get)
    stream.wait(work)
    stream.close()
    assert eventually(lambda: reported)
    assert f'Executor, submitted in "{__file__}"' in reported[0][1]


def test_inside_a_scope_it_blocks(stream):
    future, log = concurrent.futures.Future(), []
    timer = threading.Timer(0.05, functools.partial(future.set_result, None))
    timer.start()
    with stream:
        stream.wait(future)
        assert future.done()
        log.append("body")
    assert log == ["body"]


# -- of an event loop -------------------------------------------------------------------------


def test_a_future_of_asyncio_is_waited_for_while_its_loop_runs(stream):
    async def main():
        future = asyncio.get_running_loop().create_future()
        log = submitted(stream, future)
        await asyncio.sleep(0.02)
        assert log == ["before"]
        future.set_result(None)
        await stream
        return log

    assert within(lambda: asyncio.run(main())) == ["before", "after"]


def test_the_error_of_a_task_is_the_queues(stream):
    async def fail():
        raise LookupError("of the task")

    async def main():
        stream.wait(asyncio.ensure_future(fail()))
        with pytest.raises(LookupError, match="of the task"):
            await stream

    within(lambda: asyncio.run(main()))


def test_a_cancelled_task_cancels_nobody_who_waits(stream):
    """asyncio's own CancelledError would look like the end of the task that awaits the stream."""

    async def main():
        task = asyncio.ensure_future(asyncio.sleep(LONG))
        stream.wait(task)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(concurrent.futures.CancelledError) as told:
            await stream
        assert not isinstance(told.value, asyncio.CancelledError)

    within(lambda: asyncio.run(main()))


def test_one_that_is_done_needs_no_loop(stream):
    async def main():
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    future = within(lambda: asyncio.run(main()))
    stream.wait(future)
    with stream:
        stream.wait(future)
    stream.sync(LONG)


def test_a_scope_in_the_thread_of_the_loop_would_wait_for_ever(stream):
    async def main():
        future = asyncio.get_running_loop().create_future()
        with stream, pytest.raises(sk.errors.ScopeError, match=r"never end\. Await it before"):
            stream.wait(future)

    within(lambda: asyncio.run(main()))


def test_a_scope_in_the_thread_of_one_loop_waits_for_a_future_of_another(stream):
    future, loops = concurrent.futures.Future(), []

    async def finish():
        loops.append(asyncio.get_running_loop())
        own = loops[0].create_future()
        future.set_result(own)
        await own

    async def main():
        own = await asyncio.wrap_future(future)
        threading.Timer(0.05, loops[0].call_soon_threadsafe, (own.set_result, None)).start()
        with stream:
            stream.wait(own)
        return own.done()

    other = threading.Thread(target=asyncio.run, args=(finish(),), daemon=True)
    other.start()
    assert within(lambda: asyncio.run(main()))
    other.join(LONG)


def test_a_scope_in_another_thread_blocks_until_the_loop_has_finished_it(stream):
    def in_scope(future):
        with stream:
            stream.wait(future)
            return future.done()

    async def main():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_later(0.05, future.set_result, None)
        return await asyncio.to_thread(in_scope, future)

    assert within(lambda: asyncio.run(main()))


def test_a_loop_that_is_closed_is_told(stream, monkeypatch):
    monkeypatch.setattr(futures, "_LOOK", 0.01)
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    stream.wait(future)
    loop.close()
    with pytest.raises(RuntimeError, match="was closed before a future of it was done"):
        within(stream.sync)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        stream.wait(future)
