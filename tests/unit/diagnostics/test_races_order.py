"""``races`` on whole programs of host streams, against what the programs themselves know."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

import streamkit as sk
from streamkit.diagnostics.races import host_order  # a wrong order of it is the controls' subject
from streamkit.testing import accesses, adversarial

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("no_driver")

STREAMS, CELLS = 3, 6


class Program:
    """A random program, which notes its own order: points in time, and edges between them.

    Each function and the main thread have points one after the other. An item of a stream begins
    after the end of the item before it. The body of a scope belongs to its stream. What a function
    gives to others comes after what its giver knew. That the host has run the part before it is
    noted apart, in ``edges_of_the_host``, because a GPU has not.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)  # noqa: S311 - the same program every time
        self.streams = [sk.new_stream("cpu") for _ in range(STREAMS)]
        self.x = np.zeros(CELLS)
        self.points = itertools.count(1)
        self.edges, self.edges_of_the_host = set(), set()
        self.tails = dict.fromkeys(range(STREAMS), 0)
        self.events, self.futures = [], []
        self.items = []  # the points of each, and its cells
        self.parts = set()  # the pairs of which the second runs inside the first
        self.names = itertools.count()

    def point(self, *befores):
        number = next(self.points)
        self.edges |= {(before, number) for before in befores}
        return number

    def run(self):
        with sk.races() as report, adversarial(self.random.randrange(10**6)):
            self.steps(Host(self, None), self.random.randint(4, 10), depth=2)
        return report

    def steps(self, host, count, depth):
        for _ in range(count):
            host.move()
            step = self.random.choices(
                [self.give, self.wait, self.record, self.sync, self.scope, self.then, self.future],
                [9, 4, 2, 2, 2 if depth == 2 else 0, 1, 1],
            )[0]
            step(host, self.random.randrange(STREAMS), depth)

    def item(self, place, *befores):
        first = self.point(*befores)
        cells = [place % CELLS, self.random.randrange(CELLS)]
        low, high = min(cells), max(cells) + 1
        self.items.append(([first], set(range(low, high)), self.random.random() < 0.6))
        return first, len(self.items) - 1, self.x[low:high]

    def call(self, number, view, give, inside=None):
        """Give a function from the line of its number; return what that returned."""

        def touch(x):
            if inside is not None:
                inside()

        kind = "writes" if self.items[number][2] else "reads"
        variables = {"give": give, "fn": accesses(**{kind: ("x",)})(touch), "view": view}
        code = compile("\n" * number + "found = give(fn, view)", "items", "exec")
        exec(code, variables)  # noqa: S102 - its line is its number
        return variables["found"]

    def give(self, host, stream, depth):
        if stream in host.bodies:
            begin, number, view = self.item(stream, host.at, host.bodies[stream])
            self.call(number, view, self.streams[stream].submit)
            host.bodies[stream] = begin
            return
        if stream == host.stream:  # a part of the function that gives it
            begin, number, view = self.item(stream, host.at)
            self.parts |= {(whole, number) for whole in host.wholes}
            self.call(number, view, self.streams[stream].submit)
            host.move(begin)
            return
        begin, number, view = self.item(stream, self.given_by(host), self.tails[stream])
        end = self.tails[stream] = next(self.points)
        points = self.items[number][0]
        self.edges.add((begin, end))
        count = self.random.choice([0, 0, 1, 2]) if depth else 0
        known = host.known

        def inside():
            inner = Host(self, points, stream, {number}, known)
            self.steps(inner, count, depth - 1)
            self.edges.add((inner.at, end))

        self.call(number, view, self.streams[stream].submit, inside)

    def wait(self, host, stream, _):
        other = self.random.randrange(STREAMS)
        awaited = self.pick_event() if self.random.random() < 0.3 else None
        itself = host.holds(stream) or host.holds(other) or awaited
        if other == stream or (host.runs and itself):
            return  # the function could wait for itself, to which an event can belong
        if awaited is None:
            self.wait_after(host, stream, self.mark(host, other), self.streams[other])
        else:
            self.wait_after(host, stream, *awaited)

    def given_by(self, host):
        """The point after which what a host gives comes."""
        given = self.point(host.known)
        self.edges_of_the_host.add((host.at, given))
        return given

    def wait_after(self, host, stream, point, what):
        if stream in host.bodies:
            host.bodies[stream] = self.point(host.bodies[stream], point)
        elif stream == host.stream:
            host.move(point)
        else:
            self.tails[stream] = self.point(self.tails[stream], self.given_by(host), point)
        self.streams[stream].wait(what)

    def mark(self, host, stream):
        if host.holds(stream):
            return self.point(host.at, host.bodies.get(stream, host.at))
        self.tails[stream] = self.point(self.tails[stream], self.given_by(host))
        return self.tails[stream]

    def pick_event(self):
        return self.random.choice(self.events) if self.events else None

    def record(self, host, stream, _):
        point = self.mark(host, stream)
        self.events.append((point, self.streams[stream].record()))

    def sync(self, host, stream, _):
        if host.runs or host.bodies:
            return  # it could wait for itself
        point = self.tails[stream]
        self.streams[stream].sync()
        host.learn(point)

    def scope(self, host, stream, depth):
        if host.runs or host.bodies:
            return
        begin = self.tails[stream]
        end = self.tails[stream] = self.point(begin, host.at)  # others can queue behind it now
        with self.streams[stream]:
            host.bodies[stream] = self.point(begin, host.at)
            self.steps(host, 2, depth - 1)
            self.edges.add((host.bodies.pop(stream), end))

    def then(self, host, stream, _):
        if host.holds(stream):
            return
        befores = self.given_by(host), *host.thens(stream)
        begin, number, view = self.item(stream, self.tails[stream], *befores)
        future = self.call(number, view, self.streams[stream].then)
        self.futures.append((stream, begin, future))

    def future(self, host, stream, _):
        if self.futures and not host.runs and not host.bodies:
            _, end, future = self.random.choice(self.futures)
            if self.random.random() < 0.5:
                self.wait_after(host, stream, end, future)
            else:
                future.result()
                host.learn(end)

    # -- what is true -------------------------------------------------------------------------

    def before(self, edges):
        """For each point, all that must have been reached before."""
        after = {number: set() for number in range(next(self.points))}
        for one, other in edges:
            after[other].add(one)
        found = {}

        def reach(point):
            if point not in found:
                found[point] = {point}.union(*(reach(one) for one in after[point]))
            return found[point]

        return {point: reach(point) for point in sorted(after)}

    def truth(self):
        """The pairs that streams leave unordered, and those that nothing at all orders."""
        by_streams = self.before(self.edges)
        by_all = self.before(self.edges | self.edges_of_the_host)
        unordered, surely = set(), set()
        for one, other in itertools.combinations(range(len(self.items)), 2):
            (ones, my_cells, i_write), (others, its_cells, it_writes) = (
                self.items[number] for number in (one, other)
            )
            is_part = (one, other) in self.parts
            if is_part or not (my_cells & its_cells and (i_write or it_writes)):
                continue
            before, back = others[0], ones[0]
            is_first = ones[-1] in by_streams[before]
            is_second = others[-1] in by_streams[back]
            if not (is_first or is_second):
                unordered.add((one, other))
            if not any(
                mine in by_all[its] or its in by_all[mine] for mine in ones for its in others
            ):
                surely.add((one, other))
        return unordered, surely


class Host:
    """The main thread, or a function that runs: it has come to the point ``at``."""

    def __init__(self, program, points, stream=None, wholes=frozenset(), known=None):
        self.program, self.points, self.stream, self.wholes = program, points, stream, wholes
        self.at = points[0] if points else program.point()
        self._known = known  # by a function, of what the host has waited for
        self.bodies = {}  # the point that each scope has come to

    @property
    def runs(self):
        return self.points is not None

    def holds(self, stream):
        return stream == self.stream or stream in self.bodies

    def move(self, *befores):
        self.at = self.program.point(self.at, *befores)
        if self.points:
            self.points.append(self.at)
        return self.at

    @property
    def known(self):
        return self._known if self.runs else self.at

    def learn(self, point):
        self.move(point)
        self._known = self.at

    def thens(self, stream):
        return [end for other, end, _ in self.program.futures if other == stream]


def told(report):
    """The pairs of lines that are certain, and all pairs, but for those of scopes."""
    races = [race for race in report.races if race.first.file == "items"]
    pairs = [((race.first.line - 1, race.second.line - 1), race.certain) for race in races]
    return {pair for pair, certain in pairs if certain}, {pair for pair, _ in pairs}


def wrong(seed):
    """What is accused wrongly, and what is missed; and how much there was."""
    program = Program(seed)
    report = program.run()
    certain, found = told(report)
    unordered, surely = program.truth()
    found = {tuple(sorted(pair)) for pair in found}
    certain = {tuple(sorted(pair)) for pair in certain}
    return certain - surely, unordered - found, Counter(certain=len(certain), surely=len(surely))


def test_whole_programs_are_accused_of_what_they_do():
    counted = Counter()
    for seed in range(200):
        accused, missed, count = wrong(seed)
        assert (accused, missed) == (set(), set()), seed
        counted += count
    assert counted["certain"] > 0.7 * counted["surely"] > 100


def test_a_reader_for_which_a_function_is_one_point_would_miss_races(monkeypatch):
    monkeypatch.setattr(host_order._Item, "part", host_order._Item.whole)
    assert any(wrong(seed)[1] for seed in range(200))


def test_a_reader_that_forgets_waits_would_accuse_wrongly(monkeypatch):
    monkeypatch.setattr(host_order._Reader, "_marked", lambda *_: host_order._Points.START)
    assert any(wrong(seed)[0] for seed in range(40))
