"""The adversarial order of ``streamkit.testing``: what it finds, and that it breaks no rule."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

import streamkit as sk
from streamkit._support import reports  # how long it is patient has no public name
from streamkit.testing import adversarial, for_seeds
from support.model import Book
from support.programs import run_program
from support.queues import LONG, eventually, pending, together, within


def fails(seed, program):
    try:
        with adversarial(seed):
            program()
    except AssertionError:
        return True
    return False


# -- a missing wait ---------------------------------------------------------------------------


def two_streams(*, ordered):
    stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
    array = [0]
    stream.submit(array.__setitem__, 0, 3)
    if ordered:
        other.wait(stream)
    other.submit(lambda: array.append(2 * array[0]))
    stream.sync()
    other.sync()
    assert array == [3, 6]


def fan_in(*, ordered):
    """Many parts, a sum on another stream; the last part's event is forgotten."""
    parts, total = [sk.new_stream("cpu") for _ in range(4)], sk.new_stream("cpu")
    array, result = [0] * 4, []
    for number, part in enumerate(parts):
        for _ in range(5):
            part.submit(lambda number=number: array.__setitem__(number, array[number] + 1))
        event = part.record()
        if ordered or number < 3:
            total.wait(event)
    total.submit(lambda: result.append(sum(array)))
    total.sync()
    assert result == [20]


def recorded_too_early(*, ordered):
    stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
    seen = []
    for _ in range(20):
        stream.submit(seen.append, "work")
    event = None if ordered else stream.record()
    stream.submit(seen.append, "last")
    other.wait(event or stream)
    other.submit(lambda: seen.append(seen.count("last")))
    other.sync()
    stream.sync()
    assert seen[-1] == 1


def buffer_reused(*, ordered):
    """The producer writes the next value before the consumer has read the last one."""
    producer, consumer = sk.new_stream("cpu"), sk.new_stream("cpu")
    buffer, read = [None], []
    for value in range(3):
        if ordered:
            producer.wait(consumer)
        producer.submit(buffer.__setitem__, 0, value)
        consumer.wait(producer)
        consumer.submit(lambda: read.append(buffer[0]))
    consumer.sync()
    assert read == [0, 1, 2]


def read_without_sync(*, ordered):
    stream, other, array = sk.new_stream("cpu"), sk.new_stream("cpu"), [0]
    stream.submit(array.__setitem__, 0, 1)
    other.submit(int)
    (stream if ordered else other).sync()
    assert array == [1]


def read_in_the_wrong_scope(*, ordered):
    stream, other, array = sk.new_stream("cpu"), sk.new_stream("cpu"), [0]
    stream.submit(array.__setitem__, 0, 1)
    with stream if ordered else other:
        assert array == [1]


def read_after_the_default_stream(*, ordered):
    array = [0]
    sk.default_stream("cpu").submit(array.__setitem__, 0, 1)
    with sk.use(sk.new_stream("cpu"), ordered=ordered):
        assert array == [1]


PROGRAMS = [
    two_streams,
    fan_in,
    recorded_too_early,
    buffer_reused,
    read_without_sync,
    read_in_the_wrong_scope,
    read_after_the_default_stream,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_missing_wait_fails_within_the_first_seeds(program):
    assert any(fails(seed, lambda: program(ordered=False)) for seed in range(10))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_with_the_wait_passes_under_hundreds_of_seeds(program):
    for_seeds(lambda: program(ordered=True), 300)


@pytest.mark.parametrize("program", [two_streams, fan_in, recorded_too_early])
def test_without_the_scheduler_the_missing_wait_is_not_noticed(program):
    """The control. On the worker threads of a busy machine one run in many may fail."""

    def passes():
        try:
            program(ordered=False)
        except AssertionError:
            return False
        return True

    assert any(passes() for _ in range(20))


# -- which orders -----------------------------------------------------------------------------


def diamond(log):
    """Carry out a small program, and note in the model what it must keep."""
    first, left, right = (sk.new_stream("cpu") for _ in range(3))
    book = Book()
    book.tails = dict.fromkeys((first, left, right), frozenset())

    def work(stream):
        stream.submit(log.append, book.item(stream))

    def wait(stream, other):
        stream.wait(other)
        book.tails[stream] |= book.tails[other]

    work(first)
    work(right)
    event, recorded = first.record(), book.tails[first]
    work(first)
    left.wait(event)
    book.tails[left] |= recorded
    work(left)
    work(left)
    wait(right, left)
    work(right)
    left.sync()
    book.seen |= book.tails[left]
    work(first)
    return book


def order(seed, program=diamond):
    log = []
    with adversarial(seed):
        program(log)
    return tuple(log)


def test_the_seeds_reach_every_order_that_is_allowed_and_no_other():
    allowed = set(diamond([]).orders())
    assert len(allowed) > 30
    assert {order(seed) for seed in range(3000)} == allowed


def test_the_host_goes_on_before_and_after_what_it_did_not_wait_for():
    def program(log):
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        stream.submit(log.append, "a")
        other.submit(log.append, "b")
        stream.sync()
        log.append("host")

    assert {order(seed, program) for seed in range(50)} == {
        ("a", "b", "host"),
        ("b", "a", "host"),
        ("a", "host", "b"),
    }


def test_the_same_seed_gives_the_same_order():
    for seed in range(50):
        assert order(seed) == order(seed)


def test_a_pair_of_seeds_tries_both_orders_of_what_comes_first():
    def program(log):
        for name in "ab":
            sk.new_stream("cpu").submit(log.append, name)

    for even in range(0, 100, 2):
        assert {order(even, program), order(even + 1, program)} == {("a", "b"), ("b", "a")}


# -- when -------------------------------------------------------------------------------------


@pytest.fixture
def seed():
    return 1


def test_nothing_runs_until_somebody_waits_and_then_it_runs_in_that_thread(seed):
    ran_in = []
    with adversarial(seed):
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        stream.submit(lambda: ran_in.append(threading.get_ident()))
        other.wait(stream)
        event = other.record()
        assert ran_in == []
        event.sync()
        assert ran_in == [threading.get_ident()]


def test_done_may_be_asked_until_it_is_so():
    def program():
        stream, event = sk.new_stream("cpu"), sk.new_event(device="cpu")
        for _ in range(5):
            stream.submit(int)
        stream.record(event)
        answers = [event.done]
        assert eventually(lambda: answers.append(event.done) or event.done)
        assert eventually(lambda: stream.done)

    for_seeds(program, 50)


@pytest.mark.parametrize("answer", [True, False])
def test_done_at_once_has_both_answers(answer):
    def program():
        stream = sk.new_stream("cpu")
        stream.submit(int)
        assert stream.done is answer

    assert {fails(seed, program) for seed in range(20)} == {True, False}


def test_a_repr_runs_nothing():
    for seed in range(20):
        seen = []
        with adversarial(seed):
            stream = sk.new_stream("cpu")
            stream.submit(seen.append, 1)
            assert "pending" in repr(stream.record())
            repr(stream)
            assert seen == []


def test_the_default_queues_and_older_streams_take_part():
    older = sk.new_stream("cpu")

    def program(stream):
        seen = []
        stream.submit(seen.append, 1)
        sk.new_stream("cpu").sync()
        assert seen == []
        stream.sync()
        assert seen == [1]

    for stream in (older, sk.default_stream("cpu"), sk.default_stream("cpu", per_thread=True)):
        for_seeds(lambda stream=stream: program(stream), 5)


def test_afterwards_worker_threads_run_the_work_again(seed):
    with adversarial(seed):
        stream = sk.new_stream("cpu")
        stream.submit(int)
    ran_in = []
    stream.submit(lambda: ran_in.append(threading.get_ident()))
    assert eventually(lambda: ran_in), "nobody waits, and nothing runs"
    assert ran_in != [threading.get_ident()]


def test_entering_waits_for_the_worker_threads(seed, hold):
    stream, seen = sk.new_stream("cpu"), []
    gate = hold(stream)
    stream.submit(seen.append, 1)
    threading.Timer(0.02, gate.open).start()
    with adversarial(seed):
        stream.submit(seen.append, 2)
        assert seen == [1]
    assert seen == [1, 2]


def test_blocks_nest():
    seen = []
    with adversarial(1):
        stream = sk.new_stream("cpu")
        stream.submit(seen.append, 1)
        with adversarial(2):
            assert seen == [1]
            stream.submit(seen.append, 2)
        assert seen == [1, 2]
        stream.submit(seen.append, 3)
        assert seen == [1, 2]
    assert seen == [1, 2, 3]


# -- scopes -----------------------------------------------------------------------------------


def test_a_function_stands_outside_of_the_scopes_of_the_thread_that_runs_it():
    """As in a worker thread: what it submits to the stream of such a scope follows the body."""

    def program():
        stream, other, seen = sk.new_stream("cpu"), sk.new_stream("cpu"), []

        def work():
            seen.append(sk.current_stream(device="cpu"))
            stream.submit(seen.append, "after the body")

        with stream:
            other.submit(work)
            other.sync()
            assert sk.current_stream() is stream
            seen.append("body")
        stream.sync()
        assert seen == [other, "body", "after the body"]

    program()
    for_seeds(program, 20)


def test_it_is_not_entered_inside_a_host_streams_scope(seed):
    stream = sk.new_stream("cpu")
    with stream, pytest.raises(sk.errors.ScopeError, match=r"adversarial\(1\).*Enter it first"), \
            adversarial(seed):  # fmt: skip
        pytest.fail("entered")
    within(stream.sync)


# -- errors -----------------------------------------------------------------------------------


def fail(text):
    raise RuntimeError(text)


def test_the_end_of_the_block_raises_an_error_that_no_sync_raised(seed):
    stream = sk.new_stream("cpu")
    with pytest.raises(RuntimeError, match="first"), adversarial(seed):
        stream.submit(fail, "first")
    stream.sync()


def test_an_error_of_the_block_comes_before_that_of_a_function(seed, reported):
    stream, seen = sk.new_stream("cpu"), []

    def program():
        stream.submit(seen.append, 1)
        stream.submit(fail, "first")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        for_seeds(program, [seed])
    assert seen == [1]
    stream.close()
    assert eventually(lambda: reported)
    assert [str(error) for error, _ in reported] == ["first"]


def interrupt():
    raise KeyboardInterrupt


def test_a_ctrl_c_in_a_function_leaves_the_block_and_the_rest_runs(seed):
    def program():
        stream.submit(interrupt)
        stream.submit(seen.append, 1)
        stream.sync()

    stream, seen = sk.new_stream("cpu"), []
    with pytest.raises(KeyboardInterrupt):
        for_seeds(program, [seed])
    assert seen == [1]
    stream.sync(timeout=LONG)


def test_a_ctrl_c_in_a_function_leaves_the_scopes_of_the_thread_that_runs_it(stream, other, seed):
    with adversarial(seed), stream:
        other.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            other.sync()
        assert sk.current_stream() is stream


def test_every_error_that_leaves_the_block_names_the_seed():
    with pytest.raises(RuntimeError) as function, adversarial(17):
        sk.new_stream("cpu").submit(fail, "first")
    with pytest.raises(KeyError) as body, adversarial(-18):
        raise KeyError("mine")
    assert "adversarial(17)" in "".join(function.value.__notes__)
    assert "adversarial(-18)" in "".join(body.value.__notes__)


def test_the_first_seed_that_fails_is_named_whichever_are_chosen():
    failing = [seed for seed in range(10) if fails(seed, lambda: two_streams(ordered=False))]
    with pytest.raises(AssertionError) as caught:
        for_seeds(lambda: two_streams(ordered=False))
    assert f"adversarial({failing[0]})" in "".join(caught.value.__notes__)
    calls = []
    for_seeds(lambda: sk.new_stream("cpu").submit(calls.append, 1), 7)
    assert len(calls) == 7
    with pytest.raises(RuntimeError) as caught:
        for_seeds(lambda: fail("first"), [41, 42])
    assert "adversarial(41)" in "".join(caught.value.__notes__)


def test_a_program_that_can_run_in_one_order_only_proves_nothing():
    """As one whose streams have only the bodies of scopes, although it lacks a wait."""
    load, work, seen = sk.new_stream("cpu"), sk.new_stream("cpu"), []

    def without_the_wait():
        with load:
            seen.append("load")
        with work:
            seen.append("work")

    with pytest.raises(ValueError, match=r"without_the_wait gave host streams no work.*s\.submit"):
        for_seeds(without_the_wait, 3)
    assert seen == ["load", "work"] * 3

    def inline():
        with load:
            load.submit(seen.append, 1)

    with pytest.raises(ValueError, match="no work"):
        for_seeds(inline, 2)


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.submit(int),
        lambda s: s.then(int),
        lambda s: within(lambda: s.__enter__() and s.__exit__(None, None, None)),
    ],
    ids=["a function", "one after the work", "a body in another thread"],
)
def test_a_program_with_any_work_is_run_with_every_seed(program):
    """Also if the work has one order by right."""
    for_seeds(lambda: program(sk.new_stream("cpu")), 5)


def test_a_program_that_runs_nothing_when_it_is_called_is_refused():
    async def program():
        raise AssertionError

    with pytest.raises(TypeError, match=r"program, which is an async function.*asyncio\.run"):
        for_seeds(program)


# -- futures ----------------------------------------------------------------------------------


def test_a_stream_that_waits_for_a_future_holds_up_nobody_else(seed):
    """Nor its own ``sync`` beyond the time limit: the program has yet to finish the future."""

    def program():
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        future, seen = Future(), []
        stream.wait(future)
        stream.submit(seen.append, "after it")
        other.submit(seen.append, "beside")
        other.sync()
        assert seen == ["beside"]
        with pytest.raises(TimeoutError):
            stream.sync(timeout=0.02)
        assert not stream.done
        future.set_result(None)
        stream.sync()
        assert seen == ["beside", "after it"]

    within(lambda: for_seeds(program, [seed]))


def test_a_coroutine_can_await_a_stream_that_waits_for_its_loop(seed):
    async def finish(future):
        await asyncio.sleep(0.01)
        future.set_result(None)

    async def main():
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        loop, seen = asyncio.get_running_loop(), []
        ways = (
            lambda: stream,
            stream.record,
            lambda: stream.then(seen.append, "then"),
            other.record,
        )
        for way in ways:
            future = loop.create_future()
            task = loop.create_task(finish(future))
            stream.wait(future)
            stream.submit(seen.append, "after it")
            other.wait(stream)
            await way()
            assert seen[:1] == ["after it"]
            seen.clear()
            await task

    within(lambda: for_seeds(lambda: asyncio.run(main()), [seed]))


def test_a_cancelled_await_of_then_cancels_what_has_not_begun(seed):
    async def main():
        stream, future, seen = sk.new_stream("cpu"), Future(), []
        stream.wait(future)
        outcome = stream.then(seen.append, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await outcome
        future.set_result(None)
        await stream
        assert outcome.cancelled()
        assert seen == []

    within(lambda: for_seeds(lambda: asyncio.run(main()), [seed]))


def test_the_end_of_the_block_waits_for_a_future_that_a_thread_finishes(seed):
    seen, future = [], Future()

    def program():
        stream = sk.new_stream("cpu")
        stream.wait(future)
        stream.submit(seen.append, 1)
        threading.Timer(0.02, future.set_result, [None]).start()

    within(lambda: for_seeds(program, [seed]))
    assert seen == [1]


def test_a_future_that_nothing_finishes_is_refused_at_the_end(seed, monkeypatch):
    monkeypatch.setattr(reports, "PATIENCE", 0.05)

    def program():
        stream = sk.new_stream("cpu")
        stream.wait(Future())
        stream.submit(int)

    match = rf"waits for a future that is not done, in adversarial\({seed}\)"
    with pytest.raises(sk.errors.ScopeError, match=match):
        within(lambda: for_seeds(program, [seed]))


def test_the_end_of_an_audit_in_a_scope_waits_for_what_another_thread_runs(seed, monkeypatch):
    monkeypatch.setattr(reports, "PATIENCE", 0.05)
    begun, gate = threading.Event(), threading.Event()
    with adversarial(seed):
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        with stream, sk.audit() as report:
            other.submit(lambda: begun.set() or gate.wait(LONG))
            thread = threading.Thread(target=other.sync)
            thread.start()
            assert begun.wait(LONG)
            threading.Timer(0.2, gate.set).start()
        thread.join()
    assert report.unfinished == 0


@pytest.mark.parametrize("tool", [sk.races, sk.audit])
@pytest.mark.parametrize("what", ["future", "other", "third"])
def test_what_looks_at_the_streams_gives_up_what_waits_for_a_future_or_a_scope(seed, tool, what):
    """The program of its own, because no thread of another test may be left in it."""
    program = f"""
import threading
from concurrent.futures import Future, ThreadPoolExecutor
import streamkit as sk
from streamkit._support import reports  # how long it is patient
from streamkit.testing import adversarial

reports.PATIENCE = 0.05
with adversarial({seed}):
    stream, other, third = [sk.new_stream("cpu") for _ in range(3)]
    future, pool = Future(), ThreadPoolExecutor(1)
    pool.submit(third.__enter__).result()
    with {"other, " * (what == "other")}sk.{tool.__name__}():
        thread = threading.Thread(target=stream.wait, args=[{what}])  # outside of the scope
        thread.start()
        thread.join()
        stream.submit(print, "computed")
    print("ended")
    future.set_result(None)
    pool.shutdown()
"""
    done = run_program(program)
    assert (done.returncode, done.stdout) == (0, "ended\ncomputed\n"), done.stderr


# -- what can never go on ---------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["sync", "enter", "record", "then"])
def test_a_destructor_of_what_a_function_was_given_may_wait_for_its_stream(seed, wait, reported):
    class Waits:
        def __init__(self, stream):
            self.stream = stream

        def __del__(self):
            if wait == "enter":
                with self.stream:
                    seen.append(wait)
            elif wait == "then":
                self.stream.then(seen.append, wait).result()
            else:
                (self.stream if wait == "sync" else self.stream.record()).sync()
                seen.append(wait)

    def program():
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        stream.submit(lambda _: None, Waits(stream))
        other.submit(int)
        other.sync()

    seen = []
    within(lambda: for_seeds(program, [seed]))
    assert (seen, reported) == ([wait], [])


def test_work_that_waits_for_itself_is_refused(reported):
    def program():
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        stream.submit(other.sync)
        other.wait(stream)
        stream.sync()

    for seed in range(20):
        with pytest.raises(sk.errors.ScopeError, match=rf"waits for itself.*adversarial\({seed}\)"):
            for_seeds(program, [seed])


def test_work_that_waits_for_itself_for_a_while_only_is_let_be(seed):
    def work():
        with pytest.raises(TimeoutError):
            other.sync(timeout=0.001)

    with adversarial(seed):
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        stream.submit(work)
        other.wait(stream)
        stream.sync()


def test_a_turn_that_never_comes_is_refused_and_given_up(seed):
    entered = []

    def enter(other):
        with other:
            entered.append(1)

    with adversarial(seed):
        stream, other = sk.new_stream("cpu"), sk.new_stream("cpu")
        stream.submit(enter, other)
        other.wait(stream)
        with pytest.raises(sk.errors.ScopeError, match="waits for itself"):
            stream.sync()
        with pytest.raises(sk.errors.ScopeError, match="waits for itself"):
            other.sync()  # which has waited for the function that failed
        other.sync()
    assert entered == []


def test_a_turn_that_is_given_up_does_not_free_a_running_stream():
    def program():
        stream, other, third = (sk.new_stream("cpu") for _ in range(3))
        seen = []

        def enter_running_stream():
            with other:
                seen.append("entered")

        def work():
            stream.submit(enter_running_stream)
            with pytest.raises(sk.errors.ScopeError, match="waits for itself"):
                stream.record().sync()
            third.submit(seen.append, "third")
            third.sync()
            seen.append("work")

        other.submit(work)
        other.submit(seen.append, "next")
        other.sync()
        with pytest.raises(sk.errors.ScopeError, match="waits for itself"):
            stream.sync()
        assert seen == ["third", "work", "next"]

    for_seeds(program, 20)


def test_a_scope_left_open_is_refused_at_the_end(seed):
    stream = sk.new_stream("cpu")
    with pytest.raises(sk.errors.ScopeError, match="waits for itself"), adversarial(seed):
        stream.__enter__()
    stream.__exit__(None, None, None)
    within(stream.sync)


# -- threads ----------------------------------------------------------------------------------


def test_a_turn_that_another_thread_began_is_waited_for():
    for seed in range(20):
        with adversarial(seed):
            stream, seen = sk.new_stream("cpu"), []
            inside, leave = threading.Event(), threading.Event()

            def body(stream=stream, inside=inside, leave=leave, seen=seen):
                with stream:
                    inside.set()
                    assert leave.wait(LONG)
                    seen.append("body")

            thread = threading.Thread(target=body)

            def start(stream=stream, thread=thread):
                thread.start()
                assert eventually(lambda: pending(stream) == 3)  # this, the mark, its turn

            stream.submit(start)
            stream.sync()
            assert inside.wait(LONG)
            with pytest.raises(TimeoutError):
                stream.sync(timeout=0.001)
            leave.set()
            within(stream.sync)
            assert seen == ["body"]
            thread.join()


def test_threads_that_wait_at_once_lose_and_double_nothing(eager_switching):
    streams, seen = [sk.new_stream("cpu") for _ in range(4)], []

    def work(number):
        for step in range(50):
            streams[number].submit(seen.append, (number, step))
            streams[(number + 1) % 4].wait(streams[number])
            with streams[(number + step) % 4]:
                pass
            streams[(number + 2) % 4].sync()

    for seed in range(4):
        seen.clear()
        with adversarial(seed):
            together(4, work)
        for number in range(4):
            assert [step for who, step in seen if who == number] == list(range(50))


@pytest.mark.parametrize("seeds", [0, -1, [], range(0)], ids=repr)
def test_a_program_that_runs_under_no_seed_proves_nothing(seeds):
    with pytest.raises(ValueError, match=r"for_seeds was given no seed.*: give 1 or more"):
        for_seeds(lambda: None, seeds)
