"""``await s.then(f)``: the future that ``then`` returns can be awaited and is nobody else's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading

import pytest

import streamkit as sk
from streamkit import types

pytestmark = pytest.mark.quick

LONG = 60  # seconds, which nothing here takes


def test_the_result_comes_when_the_work_has_run(stream, hold):
    async def main():
        gate, log = hold(stream), []
        stream.submit(log.append, "work")
        future = stream.then(lambda: [*log, "then"])
        asyncio.get_running_loop().call_later(0.05, gate.open)
        return await future

    assert asyncio.run(main()) == ["work", "then"]


def test_it_stays_a_future_of_concurrent_futures(stream):
    async def main():
        future = stream.then(int, "7")
        return future, await future, await asyncio.wrap_future(future), await future

    future, *results = asyncio.run(main())
    assert isinstance(future, concurrent.futures.Future)
    assert isinstance(future, types.Outcome)
    assert results == [7, 7, 7]
    assert future.result(LONG) == 7
    assert concurrent.futures.wait([future], LONG).done == {future}


def test_its_error_is_raised_and_not_reported(stream, reported):
    async def main():
        with pytest.raises(ZeroDivisionError):
            await stream.then(lambda: 1 / 0)

    asyncio.run(main())
    gc.collect()
    assert reported == []


def test_an_error_that_would_end_a_generator_is_told(stream):
    async def main():
        await stream.then(next, iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(main(), LONG))


def test_several_tasks_await_one(stream, hold):
    async def wait(future):
        return await future

    async def main():
        gate = hold(stream)
        future = stream.then(int, "3")
        tasks = [asyncio.create_task(wait(future)) for _ in range(3)]
        await asyncio.sleep(0)
        gate.open()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [3, 3, 3]


# -- cancelled ------------------------------------------------------------------------------------


def test_a_task_that_is_cancelled_calls_a_waiting_function_off_and_no_work(stream, hold):
    async def main():
        gate, log = hold(stream), []
        future = stream.then(log.append, "then")
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()
        stream.submit(log.append, "work")
        after = stream.then(log.append, "later")
        gate.open()
        await stream
        await after
        return log

    assert asyncio.run(main()) == ["work", "later"]


def test_a_shielded_one_is_called_all_the_same(stream, hold):
    async def main():
        gate, log = hold(stream), []
        future = stream.then(log.append, "then")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.01)
        gate.open()
        await future
        return log

    assert asyncio.run(main()) == ["then"]


def test_a_function_that_runs_goes_on_and_its_error_is_reported(stream, reported):
    begun, go_on = threading.Event(), threading.Event()

    def fails():
        begun.set()
        go_on.wait(LONG)
        raise ValueError("late")

    async def main():
        task = asyncio.ensure_future(stream.then(fails))
        await asyncio.to_thread(begun.wait, LONG)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    go_on.set()
    stream.then(int).result(LONG)  # which is called after it
    gc.collect()
    assert [str(error) for error, _ in reported] == ["late"]


def test_one_that_another_has_cancelled_is_cancelled_for_the_task(stream, hold):
    async def main():
        hold(stream)
        future = stream.then(int)
        asyncio.get_running_loop().call_later(0.01, future.cancel)
        await future

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_a_loop_that_has_closed_meanwhile_is_left_alone(stream, hold, caplog):
    gate, loop = hold(stream), asyncio.new_event_loop()
    future = stream.then(int, "5")
    waiting = future.__await__()

    async def begin():
        next(waiting)

    loop.run_until_complete(begin())
    loop.close()
    gate.open()
    assert future.result(LONG) == 5
    assert caplog.records == []


# -- under the tools ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_awaited", [True, False])
def test_what_is_awaited_is_ordered_for_races(is_awaited):
    import numpy as np

    async def main():
        stream, x = sk.new_stream("cpu"), np.zeros(3)
        with sk.races() as report:
            future = stream.then(np.copyto, x, 7)
            if is_awaited:
                await future
            other = sk.new_stream("cpu")
            other.submit(np.add, x, 1, x)
            other.sync()
            concurrent.futures.wait([future], LONG)
        return report

    report = asyncio.run(main())
    assert (not report.races) == is_awaited
