"""``races`` on host streams: what it accuses, what it does not, and the fix that it names."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import html
import importlib.util
import inspect
import itertools
import json
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import streamkit as sk
from streamkit._queues import trace  # no public name tells who listens
from streamkit._streams.host_queue import QueueEnd  # to see how long a block waits for each
from streamkit._support import reports  # its patience has no public name
from streamkit.diagnostics.races import host_recorder  # its limit is for long programs
from streamkit.diagnostics.races.arrays import Memories  # no test can choose an array's address
from streamkit.diagnostics.races.report import texts_of  # what a report prints of races
from streamkit.protocols import ArrayUse
from streamkit.testing import accesses, adversarial
from support.model import Play, programs, search
from support.model_host import Adversarial
from support.odd_objects import Names, Query
from support.programs import needs_fork, run_program
from support.queues import eventually, pending, within

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("no_driver")


@accesses(writes=("x",))
def write(x, *_):
    x += 1


@accesses(reads=("x",))
def read(x):
    x.sum()


@pytest.fixture
def x():
    return np.zeros(6)


def lines(report):
    return [(race.first.name, race.second.name, race.certain) for race in report.races]


RACE = [("write", "read", True)]
UNSEEN = "what NumPy and Python do outside of streams"
POSSIBLE = [("write", "read", False)]


# -- against the reference model ------------------------------------------------------------------


class Racing(Adversarial):
    """Each item writes one array, from a line of its own number."""

    def __init__(self, seed):
        super().__init__(seed)
        self._x = np.zeros(3)

    def _submit(self, stream, item):
        program = compile("\n" * item + "submit(write, x, item)", "items", "exec")

        def touch(x, item):
            x += 1
            self._ran.append(item)

        variables = {"submit": stream.submit, "x": self._x, "item": item}
        exec(program, variables | {"write": accesses(writes=("x",))(touch)})  # noqa: S102 - its line is its number

    def work(self, stream, item):
        self._submit(self._streams[stream], item)

    def work_here(self, item):
        self._submit(sk.current_stream(device="cpu"), item)


class Streams(Play):
    """It knows only what orders streams on a GPU too: the host waits in a scope for nothing."""

    ended = frozenset()

    def _wait(self, stream, items, how, argument):
        if stream in self.scopes:
            self._needs(items)
        getattr(self.machine, how)(stream, argument)
        self.book.tails[stream] |= items

    def scope(self, number, ordered, body):
        stream, outer, tails = self.streams[number], self._here(), self.book.tails
        orders = ordered and stream not in self.scopes
        if stream not in self.scopes:
            self._needs(tails[stream])
        with self.machine.scope(stream, ordered):
            if orders:
                tails[stream] |= tails[outer] if outer in self.scopes else self.ended
            self.scopes.append(stream)
            self._body(body)
            self.scopes.pop()
        if orders and outer in self.scopes:
            tails[outer] |= tails[stream]
        elif orders:
            self.ended |= tails[stream]


def pairs(races):
    """The pairs of items that race, but for the scopes, of which nothing is seen."""
    found = [
        (race.first.line - 1, race.second.line - 1) for race in races if race.first.file == "items"
    ]
    assert len(set(found)) == len(found)
    return set(found)


def unordered(before):
    return {
        (one, other)
        for one, other in itertools.combinations(range(len(before)), 2)
        if one not in before[other] and other not in before[one]
    }


def played(program, seed):
    """Play a program; return the report, what the book says, and the order of the items."""
    machine = Racing(seed)
    with sk.races() as report:
        made = Streams(machine)
        try:
            made.run(program)
        finally:
            machine.end()
    return report, made.book.before, machine.order()


@settings(search, max_examples=100)
@given(programs, st.integers(0, 10**6))
def test_the_races_are_what_the_model_leaves_unordered(program, seed):
    report, before, _ = played(program, seed)
    assert pairs(report.certain) == pairs(report.races) == unordered(before)


@settings(search, max_examples=50)
@given(programs, st.integers(0, 10**6))
def test_what_the_host_has_waited_for_is_let_go_without_a_change(program, seed):
    expected, *_ = played(program, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_recorder, "LIMIT", 1)
        report, *_ = played(program, seed)
    assert pairs(report.certain) == pairs(expected.certain)
    assert pairs(report.races) == pairs(expected.races)
    ours, theirs = report.coverage, expected.coverage
    assert (ours.understood, ours.total) == (theirs.understood, theirs.total)


_short = st.lists(
    st.one_of(
        *[st.tuples(st.just("work"), st.integers(0, 2))] * 3,
        st.tuples(st.just("record"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("wait_event"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("wait_stream"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("sync"), st.integers(0, 2)),
    ),
    min_size=2,
    max_size=9,
)
SEEDS = range(60)


@settings(search, max_examples=40)
@given(_short)
def test_each_race_is_run_both_ways_by_some_seed_and_mended_by_none(program):
    report, _, _ = played(program, 0)
    assume(report.certain)
    missing = {(*pair, before) for pair in pairs(report.certain) for before in (True, False)}
    for seed in SEEDS:
        order = played(program, seed)[2]
        missing -= {(one, other, order[one] < order[other]) for one, other, _ in missing}
        if not missing:
            break
    assert not missing
    works = [place for place, one in enumerate(program) if one[0] == "work"]
    for first, second in pairs(report.certain):
        wait = ("wait_stream", program[works[second]][1], program[works[first]][1])
        mended = [*program[: works[second]], wait, *program[works[second] :]]
        for seed in SEEDS[:10]:
            again, _, order = played(mended, seed)
            assert (first, second) not in pairs(again.races)
            assert order[first] < order[second]


# -- what it tells --------------------------------------------------------------------------------


def test_a_race_tells_array_operations_places_and_its_fix(stream, other):
    data, out = np.zeros((2, 3), np.float32), np.zeros((2, 3))
    with sk.races() as report:
        stream.submit(np.copyto, data, 7)
        other.submit(np.add, data, 1, out)
    (race,) = report.races
    array, first, second = race.array, race.first, race.second
    assert (array.name, array.dtype, array.shape, array.nbytes) == ("data", "float32", (2, 3), 24)
    assert [one.name for one in (first, second)] == ["copyto", "add"]
    assert [one.library for one in (first, second)] == ["numpy", "numpy"]
    assert [one.mode for one in (first, second)] == ["write", "read"]
    assert [one.queue.name for one in (first, second)] == ["s", "other"]
    assert {one.file for one in (first, second)} == {__file__}
    assert second.line == first.line + 1
    assert race.certain
    assert race.count == 1
    assert race.fix == (
        f"to run NumPy's copyto first, add other.wait(stream) before line {second.line}"
    )
    assert str(race).splitlines() == [
        "race on data (float32, shape (2, 3), 24 bytes): other reads it while s writes it",
        f"  NumPy's copyto writes it on s (cpu), {__file__}:{first.line}",
        f"  NumPy's add reads it on other (cpu), {__file__}:{second.line}",
        f"  {race.fix}",
    ]
    assert str(array) == "data (float32, shape (2, 3), 24 bytes)"


def test_two_of_one_name_are_told_apart_by_their_lines(stream, other, x):
    with sk.races() as report:
        stream.submit(write, x)
        other.submit(write, x)
    (race,) = report.races
    assert race.fix.startswith(f"to run write of line {race.first.line} first, add other.wait(")
    assert ": s and other both write it\n" in str(race)


def test_a_report_is_data(stream, other, x):
    with sk.races() as report:
        stream.submit(write, x)
        other.submit(read, x)
    data = json.loads(json.dumps(report.as_data()))
    (race,) = data["races"]
    assert data["format"] == 1
    assert race["fix"] == report.races[0].fix
    assert (race["certain"], race["count"]) == (True, 1)
    assert (race["array"]["name"], race["first"]["mode"], race["second"]["mode"]) == (
        "x", "write", "read"
    )  # fmt: skip
    assert race["reason"] == ""
    coverage = {"understood": 2, "total": 2, "missed": [UNSEEN], "unseen": [UNSEEN], "remedy": ""}
    assert data["coverage"] == coverage


def test_the_names_are_those_of_the_caller_or_those_given(stream, other):
    class Step:
        def __init__(self):
            self.x, self.other = np.zeros(6), other

        def run(self):
            self.other.submit(write, self.x[2:])
            stream.submit(read, self.x[1:])

    step = Step()
    with sk.races() as report:
        step.run()
    (race,) = report.races
    assert race.array.name == "part of self.x"
    assert f"stream.wait(self.other) before line {race.second.line}" in race.fix
    with sk.races({"weights": step.x}) as report:
        step.run()
    assert report.races[0].array.name == "part of weights"


FIXES = {  # the line of the race, the end of its fix, and the line with the fix
    "on one line": (
        "a.submit(write, x); b.submit(write, x)",
        "add b.wait(a) before the later call of line 6",
        "a.submit(write, x); b.wait(a); b.submit(write, x)",
    ),
    "in a loop": (
        "for s in (a, b): s.submit(write, x)",
        "add b.wait(a) before line 6",
        "for s in (a, b): b.wait(a); s.submit(write, x)",
    ),
    "in functions": (
        "put(a)\n  put(b)",
        "add b.wait(a) before line 7, which calls it",
        "put(a)\n  b.wait(a)\n  put(b)",
    ),
    "in a loop over functions": (
        "for s in (a, b): put(s)",
        "let s wait for a before line 3",
        "for s in (a, b): s.wait(a); put(s)",
    ),
    "in a lambda": (
        "go = lambda: b.submit(write, x)\n  a.submit(write, x)\n  go()",
        "add b.wait(a) before line 8",
        "go = lambda: b.submit(write, x)\n  a.submit(write, x)\n  b.wait(a)\n  go()",
    ),
    "given by a method of a stream": (
        "b.then(a.submit, write, x).result()\n  b.submit(write, x)",
        "add b.wait(a) before line 7",
        "b.then(a.submit, write, x).result()\n  b.wait(a)\n  b.submit(write, x)",
    ),
}
PROGRAM = """
def put(s):
  s.submit(write, x)
def main():
  a, b = sk.new_stream("cpu"), sk.new_stream("cpu")
  {}
main()
"""


@pytest.mark.parametrize(("wrong", "fix", "right"), FIXES.values(), ids=FIXES)
def test_the_fix_names_the_place_where_it_mends(x, wrong, fix, right):
    def run(line):
        code = compile(PROGRAM.format(line), "program.py", "exec")
        with sk.races() as report:
            exec(code, {"__name__": "program", "sk": sk, "write": write, "x": x})  # noqa: S102 - it is the test's
        return report

    (race,) = run(wrong).races
    assert race.certain
    assert race.fix.startswith("to run write o")
    assert race.fix.endswith(f" first, {fix}")
    assert [race.first.queue.name, race.second.queue.name] == ["a", "b"]  # and not s, which is both
    run(right).assert_none(possible=True)


def test_what_has_no_name_is_told_by_its_kind_and_its_stream():
    streams, arrays = [sk.new_stream("cpu") for _ in "ab"], [np.zeros(())]
    with sk.races() as report:
        streams[0].submit(write, arrays[0])
        streams[1].submit(read, arrays[0])
    (race,) = report.races
    assert str(race.array) == "an array (float64, shape (), 8 bytes)"
    waiting, awaited = (f"host stream id={one.id}" for one in reversed(streams))
    assert f"first, let {waiting} wait for {awaited} before line" in race.fix


def test_what_a_function_gives_itself_is_ordered_outside_of_it(stream, other, x):
    @accesses(writes=("x",))
    def give(x):
        other.wait(stream)  # which does not wait for the end of this function
        other.submit(read, x)

    with sk.races() as report:
        stream.submit(give, x)
        stream.sync()
    (race,) = report.races
    assert race.fix.startswith("to run ")
    assert "let other wait for stream after" in race.fix
    with sk.races() as report:
        stream.submit(lambda x: x, x)
        other.wait(stream)
        other.submit(read, x)
    assert report.races == ()


def test_streams_of_one_name_are_two():
    x, streams = np.zeros(3), [sk.new_stream("cpu", name="n") for _ in "ab"]
    with sk.races() as report:
        for one in streams:
            one.then(np.copyto, x, 1)
    (race,) = report.races
    names = [f"'then' of n id={one.id}" for one in streams]
    assert " and ".join(names) + " both write it" in str(race)


def test_each_pair_of_lines_is_told_once_and_counted(stream, other, x):
    with sk.races() as report:
        for _ in range(5):
            stream.submit(write, x)
            other.submit(read, x)
    assert lines(report) == [("write", "read", True), ("read", "write", True)]
    assert [race.count for race in report.races] == [5, 4]


def test_a_service_prints_a_pair_of_lines_once(x, tmp_path):
    with sk.races() as report:
        for request in [np.zeros(3) for _ in range(5)]:
            for name in ("in", "out"):
                sk.new_stream("cpu", name=name).submit(write, request)
    assert len(report.races) == 5
    (text,) = texts_of(report.races)
    assert text.startswith(f"race on {report.races[0].array} and 4 more: in id=")
    assert text.splitlines()[0].endswith(" both write it, 5 times")
    with pytest.raises(sk.errors.RaceError) as raised:
        report.assert_none()
    page = report.to_html(tmp_path / "races.html").read_text(encoding="utf-8")
    shown = str(report), str(raised.value), page
    assert {text.count("both write it") for text in shown} == {1}


def test_a_race_in_two_arrays_is_two(stream, other, x):
    y = np.zeros(3)
    with sk.races() as report:
        stream.submit(np.add, x[:3], 1, y)
        other.submit(np.add, y, 1, x[:3])
    assert sorted(race.array.name for race in report.races) == ["part of x", "y"]


def test_the_place_is_outside_streamkit_and_the_libraries(stream, other, x, tmp_path):
    (file := tmp_path / "part.py").write_text("other.submit(write, x)")
    spec = importlib.util.spec_from_file_location("numpy.part", file)
    vars(module := importlib.util.module_from_spec(spec)).update(other=other, write=write, x=x)
    with sk.races() as report:
        stream.submit(write, x)
        np.apply_along_axis(functools.partial(other.submit, write, x), 0, np.zeros(1))
        spec.loader.exec_module(module)  # a module of a program's with a library's name
    assert {race.second.file for race in report.races} == {__file__}


def test_work_that_comes_from_no_line_of_a_user_has_no_place(stream, other, x):
    with sk.races() as report:
        stream.submit(write, x)
        thread = threading.Thread(target=functools.partial(other.submit, read, x))
        thread.start()
        thread.join()
    (race,) = report.races
    assert (race.second.file, race.second.line) == (None, 0)
    assert race.fix == "to run write first, let other wait for s before it"


# -- what is ordered ------------------------------------------------------------------------------


def by_wait(stream, other):
    other.wait(stream)


def by_event(stream, other):
    other.wait(stream.record())


def by_sync(stream, other):
    stream.sync()


def by_event_sync(stream, other):
    stream.record().sync()


def by_query(stream, other):
    while not stream.done:
        pass


def by_event_query(stream, other):
    event = stream.record()
    while not event.done:
        pass


def by_await(stream, other):
    async def wait():
        await stream

    asyncio.run(wait())


def by_event_await(stream, other):
    async def wait():
        await stream.record()

    asyncio.run(wait())


def by_result(stream, other):
    stream.then(read, np.zeros(1)).result()


def by_future(stream, other):
    other.wait(stream.then(read, np.zeros(1)))


def by_third(stream, other):
    third = sk.new_stream("cpu")
    third.wait(stream)
    other.wait(third)


def by_ordered_scope(stream, other, *, ordered=True):
    default = sk.default_stream("cpu")
    default.wait(stream)
    assert eventually(lambda: not pending(default))  # so that nothing holds the thread
    with sk.use(other, ordered=ordered):
        pass


def by_ordered_scope_in_then(stream, other):
    sk.new_stream("cpu").then(by_ordered_scope, stream, other).result()


in_no_order = functools.partial(by_ordered_scope, ordered=False)
ORDERS = [
    by_wait, by_event, by_sync, by_event_sync, by_query, by_event_query, by_await, by_event_await,
    by_result, by_future, by_third, by_ordered_scope, by_ordered_scope_in_then,
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_what_orders_is_known(stream, other, x, order):
    with sk.races() as report:
        stream.submit(write, x)
        order(stream, other)
        other.submit(read, x)
    assert report.races == ()


@pytest.mark.parametrize("order", [by_event_sync, by_event_query, by_event, by_event_await])
def test_an_event_is_the_point_at_which_it_was_recorded(stream, other, x, order):
    with sk.races() as report:
        event = stream.record()
        stream.submit(write, x)
        order(type("Recorded", (), {"record": lambda _: event})(), other)
        other.submit(read, x)
    assert lines(report) == RACE


def test_the_body_of_a_scope_runs_at_once_and_its_stream_goes_on_behind_it(stream, other, x):
    with sk.races() as report:
        stream.submit(write, x)
        with stream:
            stream.submit(write, x)
            other.submit(write, x)
        stream.submit(write, x)
        other.wait(stream)
        other.submit(read, x)
    assert [
        (race.first.queue.name, race.second.queue.name, race.certain) for race in report.races
    ] == [("s", "other", True), ("s", "other", True), ("other", "s", True)]


def test_the_body_of_a_scope_waits_for_nothing_that_another_thread_queues_behind_it(
    stream, other, x
):
    with sk.races() as report, stream:
        stream.submit(read, x)
        other.submit(read, x)
        thread = threading.Thread(target=stream.wait, args=(other,))
        thread.start()
        thread.join()
        stream.submit(write, x)
    assert lines(report) == [("read", "write", True)]


def test_threads_that_follow_one_another_are_told_apart(stream, other, x):
    """Python gives the second thread the ident of the first, which has ended."""

    def wait():
        stream.submit(write, x)
        stream.sync()

    with sk.races() as report:
        for work in (wait, lambda: other.submit(read, x)):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert lines(report) == [("write", "read", False)]


def test_code_at_the_top_of_a_module_keeps_its_variables(stream, x):
    variables = {"__name__": "users", "stream": stream, "write": write, "x": x}
    with sk.races():
        exec("stream.submit(write, x)", variables)  # noqa: S102 - a module's code
    assert variables["x"] is x


def test_that_the_body_of_a_scope_is_not_seen_is_told(stream, x):
    with sk.races() as report, stream:
        stream.submit(write, x)
    assert report.coverage.missed[0] == "the body of a scope of s (cpu)"
    assert report.coverage.unseen == (f"{UNSEEN} and in the bodies of scopes",)
    assert (report.coverage.understood, report.coverage.total) == (1, 2)


def in_no_scope(stream, other):
    with stream:
        pass


def in_a_scope(stream, other):
    with other:
        other.wait(stream)


@pytest.mark.parametrize("wait", [in_no_scope, in_no_order, in_a_scope])
def test_what_holds_the_host_but_no_gpu_orders_nothing_on_a_third_stream(stream, other, x, wait):
    with sk.races() as report:
        stream.submit(write, x)
        wait(stream, other)
        other.submit(np.copyto, np.zeros(6), x)
        sk.new_stream("cpu").submit(read, x)
    expected = RACE if wait is in_a_scope else [("write", "copyto", True), *RACE]
    assert lines(report) == expected


def test_a_block_inside_a_scope_knows_its_order(stream, other, x):
    with stream:
        with sk.races() as report:
            stream.submit(write, x)
            stream.submit(write, x)
            other.wait(stream)
            other.submit(read, x)
        assert report.races == ()


def test_a_wait_that_timed_out_orders_nothing(stream, other, x, hold):
    with sk.races() as report:
        gate = hold(stream)
        stream.submit(write, x)
        with pytest.raises(TimeoutError):
            stream.sync(timeout=0.001)
        other.submit(read, x)
        gate.open()
    assert lines(report) == RACE


def test_what_another_thread_waited_for_leaves_it_possible(stream, other, x):
    with sk.races() as report:
        stream.submit(write, x)
        thread = threading.Thread(target=stream.sync)
        thread.start()
        thread.join()
        other.submit(read, x)
    assert lines(report) == POSSIBLE
    assert report.races[0].reason.startswith("another thread, the host")


@pytest.mark.parametrize("still_runs", [False, True])
def test_a_function_that_is_not_known_may_have_told_what_ran(stream, other, x, still_runs):
    told, go = threading.Event(), threading.Event()

    def tell():
        told.set()
        go.wait(10 * still_runs)

    with sk.races() as report:
        stream.submit(write, x)
        stream.submit(tell)
        told.wait(10)
        other.submit(read, x)
        go.set()
    assert lines(report) == POSSIBLE


def test_a_future_that_is_not_known_may_have_waited_for_everything(stream, other, x):
    future = Future()
    future.set_result(None)
    with sk.races() as report:
        stream.submit(write, x)
        other.wait(future)
        other.submit(read, x)
    assert lines(report) == POSSIBLE
    assert report.coverage.missed == ("a wait for a Future", UNSEEN)


def test_what_then_calls_is_ordered_after_its_stream_alone(stream, other, x):
    with sk.races() as report:
        stream.submit(write, x)
        future = stream.then(read, x)
        stream.submit(write, x)
        future.result()
        other.submit(write, np.zeros(1))
    (race,) = report.races
    assert (race.first.queue.name, race.second.queue.name) == ("'then' of s", "s")
    assert f"stream.wait(the future of 'then' of line {race.first.line})" in race.fix
    with sk.races() as report:
        stream.submit(write, x)
        stream.wait(stream.then(read, x))
        stream.submit(write, x)
    assert report.races == ()


def test_functions_that_submit_are_ordered_after_what_they_came_after(stream, other, x):
    third = sk.new_stream("cpu")

    @accesses()
    def submits():
        third.submit(read, x)

    with sk.races() as report:
        other.submit(write, x)
        stream.wait(other)
        stream.submit(submits)
        stream.sync()
    assert lines(report) == POSSIBLE  # on a GPU the function would not wait for the other stream
    with sk.races() as report:
        other.submit(write, x)
        other.sync()
        stream.submit(submits)
        stream.sync()
    assert report.races == ()


def test_what_a_function_gives_work_to_runs_beside_the_rest_of_it(stream, other, x):
    """Whether it used the array before that or after it is not known."""

    @accesses(writes=("x",))
    def forward(x):
        other.submit(read, x)
        x += 1

    with sk.races() as report:
        stream.submit(forward, x)
        stream.sync()
    assert lines(report) == [(forward.__qualname__, "read", False)]


def test_what_a_function_waited_for_comes_before_the_rest_of_it(stream, other, x):
    @accesses(reads=("x",))
    def waits(x):
        other.sync()
        x.sum()

    with sk.races() as report:
        other.submit(write, x)
        stream.submit(waits, x)
        stream.submit(read, x)  # after the whole function, and so after what that waited for
    assert lines(report) == [("write", waits.__qualname__, False)]
    with sk.races() as report:
        other.submit(write, x)
        stream.submit(read, x)
    assert lines(report) == RACE


def test_an_event_in_the_middle_of_a_function_is_a_point_of_it(stream, other, x):
    @accesses(writes=("x",))
    def records(x):
        other.wait(stream.record())
        x += 1

    with sk.races() as report:
        stream.submit(write, x)
        stream.submit(records, x)
        stream.sync()
        other.submit(read, x)
    assert report.races == ()  # because of the sync
    with sk.races() as report:
        stream.submit(write, x)
        stream.submit(records, x)
        event = sk.new_event(device="cpu")
        stream.record(event)
        other.wait(event)
        other.submit(read, x)
    assert report.races == ()


def test_what_is_queued_behind_a_scope_that_waits_for_its_turn_comes_after_it(stream, other, x):
    @accesses()
    def waits():
        stream.wait(other)  # runs when the scope has its place, and waits for its turn

    with sk.races() as report, adversarial(0):
        other.submit(read, x)
        third = sk.new_stream("cpu")
        third.submit(waits)
        stream.wait(third)
        with stream:
            stream.submit(write, x)
    assert lines(report) == [("read", "write", True)]


def test_what_a_function_gives_to_its_own_stream_is_a_part_of_it(stream, other, x):
    @accesses()
    def submits():
        stream.submit(write, x)

    with sk.races() as report:
        stream.submit(submits)
        stream.submit(read, x)
        stream.sync()
        other.submit(read, x)
    assert report.races == ()


def test_in_a_worker_as_in_a_thread_a_wait_orders_what_the_function_gives_later(stream, other, x):
    @accesses()
    def submits():
        other.sync()
        sk.new_stream("cpu").submit(read, x)

    with sk.races() as report:
        other.submit(write, x)
        stream.submit(submits)
    assert report.races == ()


# -- which memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "races"),
    [
        (np.s_[:, :2], np.s_[:, 2:], 0),
        (np.s_[:, :2], np.s_[:, 1:], 1),
        (np.s_[:, 0], np.s_[:, 1], 0),
        (np.s_[1:, :2], np.s_[:1, :2], 0),
        (np.s_[1:, :2], np.s_[:2, 2:], 0),
        (np.s_[1:, :2], np.s_[:2, 1:], 1),
    ],
)
def test_blocks_of_columns_race_where_they_share_a_cell(stream, other, one, two, races):
    table = np.zeros((3, 4))
    with sk.races() as report:
        stream.submit(np.copyto, table[one], 1)
        other.submit(np.copyto, table[two], 2)
    assert len(report.certain) == len(report.races) == races


def test_memory_that_has_a_new_owner_is_other_memory():
    memories, numbers = Memories(), set()
    for _ in range(10):  # at one address, or at a few
        array = np.zeros(4)
        found = memories.access(ArrayUse(array[1:], "read", True), {})
        assert found.allocation == memories.access(ArrayUse(array, "read", True), {}).allocation
        numbers.add(found.allocation)
        del array
    assert len(numbers) == 10
    assert found.extent.stop - found.extent.start == 24


def test_each_use_of_an_array_is_told_with_its_own_mode_certainty_and_name(x):
    memories = Memories()
    uses = list(itertools.product(("write", "read"), (True, False), "ab"))
    found = [
        memories.access(ArrayUse(x, *use), memories.names_of([(name, x)])) for *use, name in uses
    ]
    assert [(one.mode, one.is_sure, one.array.name) for one in found] == uses


def test_memory_whose_owner_is_not_known_is_possible(stream, other):
    buffer = bytearray(8)
    views = [np.frombuffer(buffer, np.uint8) for _ in "ab"]
    with sk.races() as report:
        stream.submit(write, views[0])
        other.submit(read, views[1])
    assert lines(report) == POSSIBLE


def test_no_array_is_kept_alive(stream):
    gone = []

    class Array(np.ndarray):
        def __del__(self):
            gone.append(1)

    with sk.races():
        stream.submit(write, np.zeros(3).view(Array))
        stream.sync()
        assert len(gone) == 1
        array = np.zeros(3).view(Array)
        stream.submit(write, array)
        stream.submit(in_a_closure(array))
        stream.sync()
        del array
        assert len(gone) == 2


# -- what a call does -----------------------------------------------------------------------------


GLOBAL = np.zeros(3)


OTHER = [np.zeros(3)]
ASKED = []


class Holder:
    """No code of the program may run to look at an object."""

    __slots__ = ("v",)

    def __init__(self):
        self.v = [GLOBAL]

    def __getattr__(self, name):
        ASKED.append(name)

    def run(self):
        self.v[0].fill(2)


class Called:
    def __call__(self):
        GLOBAL[:] = 1


def of_globals():
    GLOBAL.fill(2)


def in_a_closure(value):
    return lambda: print(value)


def by_name(*, kept=GLOBAL):
    kept.fill(2)


def view(buffer):
    np.asarray(buffer)[:] = 1


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (print, ([{"x": GLOBAL}],)),
        (view, (memoryview(GLOBAL),)),
        (lambda found: found[0].fill(1), (deque([GLOBAL]),)),
        (lambda found: found.v[0].fill(1), (Holder(),)),
        (np.ma.array(GLOBAL, copy=False).sum, ()),
        (Holder().run, ()),
        (Called(), ()),
        (of_globals, ()),
        (lambda: [GLOBAL.fill(2) for _ in "a"], ()),
        (lambda: of_globals(), ()),  # noqa: PLW0108 - which is looked through
        (in_a_closure(GLOBAL), ()),
        (in_a_closure(in_a_closure({"x": (GLOBAL,)})), ()),
        (in_a_closure([*([n] for n in range(300)), memoryview(GLOBAL)]), ()),
        (functools.partial(by_name), ()),
        (np.vectorize(in_a_closure(SimpleNamespace(x=GLOBAL[1:]))), ()),
        (np.frompyfunc(GLOBAL.fill, 1, 1), (np.ones(2),)),
    ],
)
def test_what_a_function_does_with_what_it_reaches_is_possible(stream, other, fn, arguments):
    with sk.races() as report:
        stream.submit(np.copyto, GLOBAL, 1)
        other.submit(fn, *arguments)
    (race,) = report.races
    assert (race.certain, race.second.mode) == (False, "unknown")
    assert race.array.name in ("GLOBAL", "part of GLOBAL")
    assert race.reason == f"what {race.second.title} does with it was not seen"
    assert f"\n  only possible, because {race.reason}\n  {race.fix}" in str(race)
    assert race.fix.endswith(f" first, add other.wait(stream) before line {race.second.line}")
    told = f"{race.second.name}. {report.coverage.remedy} Not seen: {UNSEEN}."
    assert str(report.coverage) == f"1 of 2 operations understood. Not understood: {told}"
    _lazy = type("Lazy", (), {"__class__": property(ASKED.append)})()
    with sk.races() as report:
        stream.submit(np.copyto, GLOBAL, 1)
        other.wait(stream)
        other.submit(fn, *arguments)
        stream.submit(lambda: OTHER[0].fill(1))
        other.submit(lambda: SimpleNamespace(OTHER=1).OTHER)  # an attribute
        other.submit((ctypes.c_int * 3)().__setitem__, 0, 1)  # of a class without a module
    assert report.races == ()
    assert ASKED == []
    with sk.races() as report:
        stream.submit(lambda: GLOBAL.fill(1))
        other.submit(fn, *arguments)
    assert ": other may read or write it while s may read or write it\n" in str(report)


def test_a_promise_names_parameters_and_leaves_the_function_as_it_is(stream, other, x):
    @accesses(reads=["a"], writes=("rest", "named"))
    def fn(a, *rest, unused=None, **named):
        return a

    assert fn(3) == 3
    y, z = np.zeros(3), np.zeros(3)
    with sk.races() as report:
        stream.submit(fn, x, y, unused=z, named=z[:2])
        for array in (x, y, z[:2], z[2:]):
            other.submit(read, array)
    assert [(race.array.name, race.certain) for race in report.races] == [
        ("y", True), ("part of z", True)
    ]  # fmt: skip
    assert report.coverage.missed == (UNSEEN,)


class Model:
    @accesses(writes=("out",))
    def step(self, out):
        pass


@pytest.mark.parametrize(("give", "certain"), [
    (lambda x: (Model().step, x), True),
    (lambda x: (functools.partial(Model().step, [2, None, np.float32(1), (x,)]),), True),
    (lambda x: (functools.wraps(read)(lambda _: None), x), False),
    (lambda x: (Model().step, SimpleNamespace(x=x)), False),
    (lambda x: (Model().step, [x, SimpleNamespace(x=x)]), False),
])  # fmt: skip
def test_a_promise_is_of_its_function_and_of_arrays_it_finds(stream, other, x, give, certain):
    with sk.races() as report:
        stream.submit(write, x)
        other.submit(*give(x))
        other.submit(Model().step)  # fails, and uses nothing
    assert {race.certain for race in report.races} == {certain}
    assert report.coverage.understood == 2 + certain
    with pytest.raises(TypeError, match="out"):
        other.sync()


def test_a_function_that_failed_has_perhaps_used_nothing(stream, other, x):
    with sk.races() as report:
        stream.submit(np.copyto, x, np.zeros(5))
        other.submit(np.copyto, x, 1)
    assert [race.certain for race in report.races] == [False]
    with pytest.raises(ValueError, match="broadcast"):
        stream.sync()


@pytest.mark.parametrize(
    ("options", "fn", "error", "told"),
    [
        ({"reads": "x"}, write, TypeError, r"reads=\('x',\)"),
        ({"reads": [1]}, write, TypeError, "names of parameters"),
        ({"reads": ("y", "z")}, write, ValueError, "no parameter y, z"),
        ({}, 5, TypeError, "which 5 is not"),
        ({}, len, TypeError, "takes no attributes"),
        ({}, max, ValueError, "no signature"),
    ],
)
def test_a_promise_that_cannot_be_is_refused(options, fn, error, told):
    with pytest.raises(error, match=told):
        accesses(**options)(fn)


def broken(_):
    raise RuntimeError("no")


ODD = {"__array_interface__": property(broken), "__class__": property(broken), "__dict__": print}
CODE = "stream.submit(put, x)\nother.submit(put, x, one)"


@pytest.mark.parametrize(
    "make",
    [
        Query("One", (), {}), lambda: np.zeros(6).view(type("Odd", (np.ndarray,), ODD)),
        lambda: weakref.proxy(Query("Gone", (), {})()),
        lambda: [view := memoryview(b"a"), view.release()][0],
    ],
    ids=["no hash", "odd answers", "dead proxy", "released"],
)  # fmt: skip
def test_an_object_that_raises_breaks_nothing_and_hides_no_other(stream, other, x, make):
    ran = []

    def put(array, *_):
        ran.append(array[:].fill(1))

    self = make()  # as in a method
    with sk.races() as report:
        exec(CODE, {}, Names(stream=stream, other=other, x=x, put=put, one=self))  # noqa: S102 - it takes any mapping
        other.submit(put, x, self)
    assert (len(ran), len(report.races), report.coverage.understood) == (3, 2, 0)


@pytest.mark.parametrize("tool", [sk.audit, sk.races])
def test_the_stack_is_as_deep_as_without_a_block(stream, x, tool):
    def deep(depth):
        return deep(depth - 1) if depth else stream.submit(np.copyto, x, 1)

    def results():
        for depth in range(20, 60):
            try:
                yield deep(depth) is None
            except RecursionError:
                yield depth

    limit, found = sys.getrecursionlimit(), []
    for block in (contextlib.nullcontext, tool):
        with block():
            sys.setrecursionlimit(len(inspect.stack()) + 60)
            found.append([*results()])
            sys.setrecursionlimit(limit)
    assert found[1] == found[0]
    assert {True, False, 59} & {*found[0]} > {59}


# -- the block -------------------------------------------------------------------------------------


def test_the_report_is_made_when_the_block_ends(stream, x):
    with sk.races() as report:
        assert repr(report) == "<streamkit race report, not over>"
        assert report._repr_html_() is None
        for ask in (lambda: report.races, lambda: report.coverage, report.assert_none):
            with pytest.raises(sk.errors.ScopeError, match="when the block ends"):
                ask()
    assert report.races == ()
    assert trace.listeners == []


STUCK = """
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
import streamkit as sk
from streamkit._support import reports  # its patience has no public name

reports.PATIENCE = 0.05
stream, future, pool = sk.new_stream("cpu"), Future(), ThreadPoolExecutor(1)
with sk.{tool}() as report:
    stream.wait(future)
    stream.submit(print, "computed")
    {more}
print("ended")
if not future.done():
    future.set_result(None)
stream.sync(timeout=10)
"""


@pytest.mark.parametrize("tool", ["races", "audit"])
@pytest.mark.parametrize(
    "more",
    [
        "pool.submit(int).result()",  # whose thread is idle then
        "future.set_result(0); pool.submit(sk.new_stream('cpu').__enter__).result()",
        "sk.new_stream('cpu').submit(lambda: (time.sleep(0.5), future.set_result(0)))",
    ],
    ids=["a future", "a scope", "a stream"],
)
def test_the_end_waits_long_for_streams_and_not_for_futures_and_scopes(tool, more):
    printed = "computed\nended\n" if "set_result" in more else "ended\ncomputed\n"
    done = run_program(STUCK.format(tool=tool, more=more))
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize("tool", [sk.races, sk.audit])
def test_the_end_waits_for_nothing_that_only_its_own_thread_lets_go_on(
    monkeypatch, stream, other, tool
):
    wait, waits = QueueEnd.wait, []
    monkeypatch.setattr(reports, "PATIENCE", 0.05)
    monkeypatch.setattr(QueueEnd, "wait", lambda *a, **b: waits.append(a[1:]) or wait(*a, **b))

    async def task():
        future = asyncio.get_running_loop().create_future()
        with tool():
            stream.wait(future)
            other.wait(future)
            while None in (stream._work.function, other._work.function):  # noqa: ASYNC110 - late threads
                await asyncio.sleep(0.001)
        assert not stream.done
        assert waits.count((0.05,)) == 1  # for all streams together
        future.set_result(None)
        await stream
        await other

    def body():
        with tool():
            within(lambda: other.wait(stream))
        assert not other.done

    def scope():
        with stream:
            body()

    def run(order):
        with order:
            scope()
            stream.submit(body)
            stream.sync()
            other.sync()

    within(lambda: asyncio.run(task()))  # the thread that waits here could go on, as it seems
    within(lambda: run(contextlib.nullcontext()))
    within(lambda: run(adversarial(1)))
    assert trace.listeners == []


@needs_fork
@pytest.mark.parametrize("tool", ["races", "audit"])
def test_a_forked_child_cannot_leave_the_block_of_its_parent(tool):
    done = run_program(f"""
        import os, signal, threading
        import streamkit as sk

        stream, gate = sk.new_stream("cpu"), threading.Event()
        stream.submit(gate.wait)
        try:
            with sk.{tool}():
                stream.submit(int)
                child = os.fork()
                gate.set() if child else signal.alarm(10)
        except sk.errors.ForkedProcessError:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_what_was_given_before_and_after_is_left_out(stream, other, x):
    stream.submit(write, x)
    with sk.races() as report:
        other.submit(read, x)
    stream.submit(write, x)
    assert report.races == ()
    assert report.coverage.total == 1


def test_blocks_nest_with_each_other_and_with_audits(stream, other, x):
    with sk.races() as outer, sk.audit() as audit, adversarial(1):
        stream.submit(write, x)
        with sk.races() as inner:
            other.submit(read, x)
    assert lines(outer) == RACE
    assert inner.races == ()
    assert [one.name for one in audit.work if one.kind == "function"] != []
    assert trace.listeners == []


def test_many_threads_give_work_at_once(x):
    def give():
        for _ in range(20):
            sk.new_stream("cpu").submit(write, x)

    with sk.races() as report:
        threads = [threading.Thread(target=give) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (race,) = report.races
    assert race.certain
    assert report.coverage.total == 160


@pytest.mark.parametrize("wrong", [[1], "x", np.zeros(1), dict(enumerate("x"))])
def test_names_are_a_dictionary_of_str(wrong):
    remedy = r"not 0: write str\(0\)" if isinstance(wrong, dict) else r"races\(\{'x': x\}\)"
    with pytest.raises(TypeError, match=remedy), sk.races(wrong):
        pass


# -- the report -----------------------------------------------------------------------------------


@pytest.fixture
def report(stream, other, x):
    with sk.races() as report:
        stream.submit(np.copyto, x, 7)
        other.submit(np.add, x, 1, np.zeros(6))
        other.submit(lambda x: x, x)
    return report


def test_it_raises_for_certain_races_and_if_asked_for_possible_ones(report, stream, other, x):
    assert [race.second.name for race in report.certain] == ["add"]
    assert report.races == (*report.certain, *report.possible)
    with pytest.raises(sk.errors.RaceError) as raised:
        report.assert_none()
    assert isinstance(raised.value, AssertionError)
    text = str(raised.value)
    first = "nothing orders work on the same memory: 1 race and 1 possible one found."
    assert text.startswith(f"{first}\n\nrace on x (float64, shape (6,)")
    assert "  NumPy's copyto writes it on s (cpu), " in text
    remedy = (
        "Give a library's own function directly, and not memory of a file, or declare yours by "
        "streamkit.testing.accesses."
    )
    assert text.endswith(f"report.<locals>.<lambda>. {remedy} Not seen: {UNSEEN}.")
    with sk.races() as possible:
        stream.submit(np.copyto, x, 7)
        other.submit(lambda x: x, x)
    possible.assert_none()
    with pytest.raises(sk.errors.RaceError, match="possible race on x"):
        possible.assert_none(possible=True)


def test_it_never_says_that_there_are_none(stream, x):
    with sk.races() as report:
        stream.submit(write, x)
    report.assert_none(possible=True)
    found = "no race found in what was understood.\n\n1 of 1 operation understood"
    assert str(report) == f"{found}. Not seen: {UNSEEN}."


def test_it_is_shown_as_text_and_in_a_notebook(report, capsys):
    report.show()
    assert capsys.readouterr().out == f"{report}\n"
    assert report._repr_html_().startswith("<pre>1 race and 1 possible one found.\n\nrace on x")
    assert "&lt;lambda&gt;" in report._repr_html_()
    assert repr(report).startswith("<streamkit race report: 1 race and 1 possible one found. 2 of")


def test_the_page_has_the_order_that_is_missing(report, tmp_path):
    data = page_of(report, tmp_path)
    text = (tmp_path / "races.html").read_text(encoding="utf-8")
    assert "<h1>1 race and 1 possible one found. 2 of 3 operations understood" in text
    assert data["rows"] == ["s (cpu)", "other (cpu)"]
    assert [(one[0], one[2]) for one in data["missing"]] == [(0, 1), (0, 1)]
    assert data["missing"][0][1::2] == [1, 1]  # from after the first to before the second
    assert data["waits"] == []
    told = [html.escape(line.strip()) for line in str(report.races[0]).splitlines()]
    spans = "".join(f"<span>{line}</span>" for line in told[1:-1])
    assert f"<li><b>{told[0]}</b>{spans}<strong>{told[-1]}</strong></li>" in text
    assert "x (float64, shape (6,)" in told[0]
    assert told[-1].startswith("to run NumPy&#x27;s copyto first, add other.wait(stream) before")


@pytest.mark.parametrize("name", ["\x1b]0;mine\x07\x1b[31m", "caf\udce9"])
def test_what_a_terminal_or_a_page_cannot_show_is_written_out(stream, other, x, tmp_path, name):
    """A path can hold any bytes, and a name any text."""

    def fails():
        raise ValueError

    stranger = type("Stranger", (), {})
    fails.__qualname__ = stranger.__qualname__ = name
    names = {"sk": sk, "stream": stream, "other": other, "x": x, "write": write, "name": name}
    program = """
with sk.races({name: x}) as races, sk.audit() as audit:
    stream.submit(write, x)
    other.submit(write, x)
"""
    exec(compile(program, f"/{name}.py", "exec"), names)  # noqa: S102 - its path is tested
    stream.submit(fails)
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its note is tested
        stream.sync()
    with pytest.raises(TypeError) as refused:
        sk.wrap(stranger())
    array = names["races"].races[0].array
    texts = [*raised.value.__notes__, str(refused.value), str(names["races"]), str(array)]
    texts.append(str(dataclasses.replace(array, dtype="")))  # of which only the memory is known
    assert [text for text in texts if ascii(name)[1:-1] not in text or name in text] == []
    for report in (names["races"], names["audit"]):
        page = report.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
        assert name not in page


def page_of(report, tmp_path):
    text = report.to_html(tmp_path / "races.html").read_text(encoding="utf-8")
    return json.loads(text.partition("const DATA = ")[2].partition(";</script>")[0])


def test_an_error_passes_and_what_had_not_run_is_in_the_report_and_its_page(
    stream, other, hold, x, tmp_path
):
    with pytest.raises(KeyError), sk.races() as report:  # noqa: PT012 - the rest is what is tested
        gate = hold(stream)
        stream.submit(write, x)
        other.submit(read, x)
        raise KeyError
    assert lines(report) == RACE
    assert trace.listeners == []
    assert page_of(report, tmp_path)["missing"] == [[0, 2, 1, 2]]  # after what holds the stream
    gate.open()


def test_of_many_that_are_not_known_some_are_named():
    stream = sk.new_stream("cpu")
    with sk.races() as report:
        for number in range(20):
            stream.submit(type(f"F{number}", (), {"__call__": lambda _: None})())
    assert "Not understood: F0, F1, F2, F3, F4, F5, F6, F7, and 12 more. Give" in str(report)
