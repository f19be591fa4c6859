"""A reference model of streams, which knows from a program alone what must run before what.

A program is a list of operations (see ``Play``) on a few streams and events, named by number. A
machine carries them out: StreamKit on the host (``model_host``), or on CUDA (``model_cuda``).
The model opens gates one after another and each time expects that exactly the work has run that no
closed gate holds. If other work ran too, an edge is missing; if some did not run, there is one too
many.
"""

from __future__ import annotations

import contextlib

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from support.queues import eventually

STREAMS, EVENTS = 3, 2
OUTSIDE = "outside"  # the stream that is current outside of all scopes

search = settings(  # the same programs every time
    derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip

_stream = st.integers(0, STREAMS - 1)
_event = st.integers(0, EVENTS - 1)


_operation = st.one_of(
    *[st.tuples(st.just("work"), _stream)] * 4,
    *[st.tuples(st.just("hold"), _stream)] * 2,
    *[st.tuples(st.just("record"), _stream, _event)] * 3,
    *[st.tuples(st.just("wait_event"), _stream, _event)] * 3,
    *[st.tuples(st.just("wait_stream"), _stream, _stream)] * 2,
    st.tuples(st.sampled_from(["sync", "ask", "close"]), _stream),
    st.tuples(st.just("sync_event"), _event),
    st.tuples(st.just("open"), st.integers(0, 9)),
    st.tuples(st.just("work_here")),
)


def _body(size, scopes):
    """Draw a list of operations, some of which are scopes with a body; short ones find nothing."""
    if not scopes:
        return st.lists(_operation, min_size=size // 2, max_size=size)
    scope = st.tuples(st.just("scope"), _stream, st.booleans(), _body(size // 4, scopes - 1))
    return st.lists(st.one_of(*[_operation] * 7, scope), min_size=size // 2, max_size=size)


programs = _body(30, 2)
flat_programs = _body(30, 0)


class Book:
    """The items of a program, and for each all that must have ended before it."""

    def __init__(self):
        self.before = []
        self.tails = {}  # stream -> the items before its next one
        self.records = {}  # event -> the items before its last record
        self.seen = frozenset()  # the items that the host has waited for

    def item(self, stream):
        number = len(self.before)
        self.before.append(self.tails[stream] | self.seen)
        self.tails[stream] = self.before[number] | {number}
        return number

    def orders(self):
        """Return every order in which the items may run."""

        def extend(order, rest):
            if not rest:
                yield tuple(order)
            for number in sorted(rest):
                if not self.before[number] & rest:
                    yield from extend([*order, number], rest - {number})

        return extend([], frozenset(range(len(self.before))))


def play(program, machine):
    """Carry out a program; AssertionError where the machine and the book differ."""
    try:
        Play(machine).run(program)
    finally:
        machine.end()


def is_caught(program, machine):
    """Whether a program fails or hangs on a machine, which is wrong on purpose, as a control."""
    machine.patience = 1
    try:
        play(program, machine)
    except (AssertionError, TimeoutError):
        return True
    return False


def search_finds(drawn, is_wrong, *, most):
    """Search until something drawn shows what is wrong; NoSuchExample if none of so many does.

    One that shows it by its timing may fail to show it again, which Hypothesis reports as Flaky.
    """
    with contextlib.suppress(Flaky):
        find(drawn, is_wrong, settings=settings(search, max_examples=most, phases=[Phase.generate]))


class Play:
    """A program being carried out. Its public methods are the operations."""

    def __init__(self, machine):
        self.machine, self.book = machine, Book()
        self.streams = {}  # number -> the name of the stream that has it now, unique in the book
        self.made = 0
        self.gates = []  # the closed ones
        self.scopes = []  # the streams entered
        self.book.tails[OUTSIDE] = frozenset()
        for number in range(STREAMS):
            self._make(number)

    def run(self, program):
        self._body(program)
        while self.gates:
            self.open(-1)
        self.machine.settle()
        self._expect_exactly_the_free()
        order = self.machine.order()
        for first, second in ((b, a) for a in order for b in self.book.before[a]):
            assert order[first] < order[second], f"{second} ran before {first}"

    def _body(self, program):
        for name, *arguments in program:
            getattr(self, name)(*arguments)

    def _make(self, number):
        self.streams[number] = f"{number}.{self.made}"
        self.made += 1
        self.book.tails[self.streams[number]] = frozenset()
        self.machine.make(self.streams[number], number)

    def _here(self):
        return self.scopes[-1] if self.scopes else OUTSIDE

    def _needs(self, items):
        """Open the gates among these items, because the host is about to wait for them."""
        for gate in [gate for gate in self.gates if gate in items]:
            self.open(self.gates.index(gate))

    def _waited(self, items):
        self.book.seen |= items
        late = items - self.machine.finished()
        assert not late, f"the host went on, and {sorted(late)} had not run"

    def _expect_exactly_the_free(self):
        closed = frozenset(self.gates)
        free = {n for n, before in enumerate(self.book.before) if not (before | {n}) & closed}
        assert eventually(lambda: self.machine.finished() >= free, seconds=self.machine.patience), (
            f"{sorted(free - self.machine.finished())} waited for what it need not wait for"
        )
        early = self.machine.finished() - free
        assert not early, f"{sorted(early)} ran before what they must wait for"

    # -- the operations -----------------------------------------------------------------------

    def work(self, number):
        stream = self.streams[number]
        self.machine.work(stream, self.book.item(stream))

    def work_here(self):
        """Work on the current stream of a scope, unless the program has closed that stream."""
        if self._here() in self.streams.values():
            self.machine.work_here(self.book.item(self._here()))

    def hold(self, number):
        stream = self.streams[number]
        if self.machine.can_hold and not (self.machine.is_inline and stream in self.scopes):
            self.gates.append(self.book.item(stream))
            self.machine.hold(stream, self.gates[-1])

    def open(self, which):
        if self.gates:
            self.machine.settle()
            self._expect_exactly_the_free()
            self.machine.open(self.gates.pop(which % len(self.gates)))

    def record(self, number, event):
        stream = self.streams[number]
        self.machine.record(stream, event)
        self.book.records[event] = self.book.tails[stream]

    def wait_event(self, number, event):
        if event in self.book.records:
            self._wait(self.streams[number], self.book.records[event], "wait_event", event)

    def wait_stream(self, number, other):
        stream, other = self.streams[number], self.streams[other]
        items = frozenset() if stream == other else self.book.tails[other]  # for itself none waits
        self._wait(stream, items, "wait_stream", other)

    def _wait(self, stream, items, how, argument):
        inline = self.machine.is_inline and stream in self.scopes
        if inline:
            self._needs(items)
        getattr(self.machine, how)(stream, argument)
        self.book.tails[stream] |= items
        if inline:
            self._waited(items)

    def sync(self, number):
        stream = self.streams[number]
        self._needs(self.book.tails[stream])
        self.machine.sync(stream)
        self._waited(self.book.tails[stream])

    def sync_event(self, event):
        items = self.book.records.get(event)
        if items is not None:
            self._needs(items)
            self.machine.sync_event(event)
            self._waited(items)

    def ask(self, number):
        stream = self.streams[number]
        if self.machine.done(stream):
            self._waited(self.book.tails[stream])

    def close(self, number):
        """Close a stream, and put a new one in its place."""
        self.machine.close(self.streams[number])
        self._make(number)

    def scope(self, number, ordered, body):
        stream, outer, tails = self.streams[number], self._here(), self.book.tails
        if self.machine.is_inline and stream not in self.scopes:
            self._needs(tails[stream])
        with self.machine.scope(stream, ordered):
            if self.machine.is_inline:
                self._waited(tails[stream])
            if ordered and self.machine.has_libraries:
                tails[stream] |= tails[outer]
            self.scopes.append(stream)
            self._body(body)
            self.scopes.pop()
        if ordered and self.machine.has_libraries:
            tails[outer] |= tails[stream]
