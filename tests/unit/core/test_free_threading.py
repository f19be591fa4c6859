"""Without a GIL another thread runs between any two steps: here it does, at the worst one.

Each test plays that thread at the place where the GIL kept it away, so that all Pythons find the
fault. The last ones need real threads, and find theirs where there is no GIL.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit._queues import active_captures, dispatcher  # a driver is played here
from streamkit._queues.points import Point  # as above
from streamkit._streams import host_worker  # how long a worker waits has no name
from streamkit._streams.host_queue import WorkQueue  # another thread comes between
from streamkit._streams.then import HostThenCalls  # slow to be made here
from streamkit._support.locks import new_turn_lock  # it says how it is taken
from streamkit._support.weak_table import WeakTable  # a sweep has no public name
from streamkit.diagnostics.recording.host_recorder import HostRecorder  # to be interrupted inside
from support.documents import ROOT
from support.queues import LONG

pytestmark = pytest.mark.portable


class Left(list):
    """A turn lock whose holder leaves it as soon as another thread has seen that it is held."""

    def __bool__(self):
        is_held = len(self) > 0
        self.clear()
        return is_held


PACKAGE = sorted((ROOT / "streamkit").rglob("*.py"))
TAKEN = re.compile(r"(\w+)\.insert\(0, me\) if .*")


def ways_to_take_a_turn():
    found = {}
    for path in PACKAGE:
        for line in TAKEN.finditer(path.read_text(encoding="utf-8")):
            found.setdefault(line[0].replace(line[1], "lock"), []).append(path.name)
    return found


def test_a_turn_lock_is_taken_while_its_holder_leaves():
    assert "    lock.insert(0, me) if" in new_turn_lock.__doc__
    ways = ways_to_take_a_turn()
    assert sum(map(len, ways.values())) == 3, ways  # the documented one, and Warp's two
    for way in ways:
        lock, me = Left([object()]), object()
        exec(way, {"lock": lock, "me": me})  # noqa: S102 - as the package has it
        assert [*lock] == [me], way


class Dropped(Point):
    """A point that another thread drops as soon as one of its attributes was read."""

    def __init__(self, attribute):
        super().__init__(0, None, None)
        self.attribute = attribute
        self.listener, self.waiter = "listener", "waiter"

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name == super().__getattribute__("attribute") and found is not None:
            self.drop()
        return found


@pytest.mark.parametrize(
    ("attribute", "expected"), [("listener", {"listener": [("waiter", None)]}), ("waiter", {})]
)
def test_a_point_that_is_dropped_as_it_is_reached_tells_of_no_missing_waiter(attribute, expected):
    """One None among the waiters of a loop would keep the others from being told."""
    told = {}
    dispatcher._finish(Dropped(attribute), None, told)
    assert told == expected


class Thing:
    pass


def test_a_sweep_leaves_what_another_thread_notes_in_the_place_of_the_dead():
    table, living = WeakTable(), Thing()

    def dead():  # as the reference to an object that has gone
        table.put(1, living)

    table[1] = dead
    table._sweep()
    assert table[1]() is living


class Order(int):
    """A step's place, at whose first comparison another thread notes an earlier step."""

    interrupt = None

    def __lt__(self, other):
        call, self.interrupt = self.interrupt, None
        if call is not None:
            call()
        return int(self) < other


def test_a_step_of_another_thread_leaves_the_calls_before_each_step_in_order():
    """``when`` looks for them by bisection."""
    numbers = count()
    recorder = HostRecorder(lambda: next(numbers))
    for order in (10, 20, 30):
        recorder.take(SimpleNamespace(order=order))
    last = Order(40)
    others = [
        threading.Thread(target=recorder.take, args=(SimpleNamespace(order=order),))
        for order in (1, 2, 3)
    ]

    def interrupt():
        for one in others:
            one.start()
        for one in others:
            one.join(0.1)  # which ends early where nothing keeps them out

    last.interrupt = interrupt
    recorder.take(SimpleNamespace(order=last))
    for one in others:
        one.join()
    assert last.interrupt is None
    orders = [order for order, _ in recorder._calls_before]
    assert sorted(orders) == [1, 2, 3, 10, 20, 30, 40]
    assert all(one < two for one, two in pairwise(orders)), orders


def test_two_threads_that_use_then_first_at_once_have_one_series(monkeypatch):
    """Else two functions of a stream could run at a time."""
    made, make = [], HostThenCalls.__init__

    def slowly(after, work):
        made.append(after)
        time.sleep(0.1)
        make(after, work)

    monkeypatch.setattr(HostThenCalls, "__init__", slowly)
    stream = sk.new_stream("cpu")
    assert [one.result(LONG) for one in together(lambda _: stream.then(int))] == [0] * 4
    assert len(made) == 1


def test_no_view_of_a_table_that_threads_share_is_read_in_steps():
    """``list`` reads it in one; ``tuple`` asks for each item, and raises if the table changes."""
    shared = re.compile(r"\b(?:tuple|set|any|all|sum)\((?:[^()]* in )?_\w+\.(?:values|items)")
    assert shared.search("tuple(_kept.values())")
    assert shared.search("any(one for one in _kept.items())")
    found = [
        (path.name, line)
        for path in PACKAGE
        for line in path.read_text(encoding="utf-8").splitlines()
        if shared.search(line)
    ]
    assert found == []


class Ready(deque):
    """The items of a queue, to which another thread adds one after so many looks at them."""

    def __init__(self, looks, add):
        super().__init__()
        self.looks, self.add = looks, add

    def __bool__(self):
        found = len(self) > 0
        self.looks -= 1
        if not self.looks:
            other = threading.Thread(target=self.add)
            other.start()
            other.join(0.1)  # which ends early where nothing keeps it out
        return found


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_function_that_is_ready_as_its_thread_finds_none_is_called(monkeypatch, looks):
    """The first look finds one; the thread waits after the second one, and ends after the third."""
    monkeypatch.setattr(host_worker, "_linger", 0)
    queue, called = WorkQueue("played", "a queue"), threading.Event()
    queue._items = Ready(looks, lambda: queue.put(called.set))
    queue.put(int)
    assert called.wait(LONG)


# -- with real threads ---------------------------------------------------------------------------


def together(call, threads=4):
    """Have that many threads make the call at once; raise the first error."""
    barrier = threading.Barrier(threads)

    def work(number):
        barrier.wait()
        return call(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


def test_captures_begin_and_end_while_others_are_looked_at():
    def work(number):
        for _ in range(2_000):
            if number % 2:
                with active_captures.noted((), []):
                    pass
            active_captures.one_goes_on_here()
            active_captures.keep_in_graphs(None)

    together(work)
    assert not active_captures.any_goes_on()


def test_threads_that_share_host_streams_lose_nothing():
    streams = [sk.new_stream("cpu") for _ in range(3)]
    done, tickets = [], count()

    def work(number):
        for turn in range(150):
            one, two = streams[(number + turn) % 3], streams[(number + turn + 1) % 3]
            one.submit(done.append, next(tickets))
            two.wait(one)
            one.keep(object())
            two.then(done.append, next(tickets))
            if not turn % 10:
                two.record().sync()
                with one:
                    done.append(next(tickets))

    together(work)
    for _ in range(2):
        for stream in streams:
            stream.sync()
            stream.then(int).result()
    assert sorted(done) == list(range(next(tickets)))
