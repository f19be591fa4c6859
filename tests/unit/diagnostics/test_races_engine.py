"""The engine of ``races``: which bytes overlap, what is ordered, which pairs race."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamkit._support import extents  # a report shows what they say
from streamkit.diagnostics.races import order, search  # the same
from support.model import search as always_the_same

np = pytest.importorskip("numpy")


# -- which bytes ------------------------------------------------------------------------------


def extent_of(array):
    found = array.__array_interface__
    return extents.strided(found["data"][0], array.shape, array.strides, array.itemsize)


MEMORY = np.zeros(64, np.uint8)


@st.composite
def views(draw):
    """A view of a few bytes of MEMORY, with strides of any kind."""
    size = draw(st.sampled_from([1, 2, 4]))
    axes = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=3))
    low = sum(min(0, stride) * max(count - 1, 0) for count, stride in axes)
    high = sum(max(0, stride) * max(count - 1, 0) for count, stride in axes) + size
    shift = draw(st.integers(0, 40))
    begin = min(shift - low, 64 - high)
    begin = max(begin, -low)
    if begin + high > 64:
        axes, begin = [], shift
    return np.ndarray(
        [count for count, _ in axes], f"u{size}", MEMORY, begin, [stride for _, stride in axes]
    )


def bytes_of(view):
    start = view.__array_interface__["data"][0]
    steps = [
        [number * stride for number in range(count)]
        for count, stride in zip(view.shape, view.strides, strict=True)
    ]
    places = (start + sum(one) for one in itertools.product(*steps))
    return {place + byte for place in places for byte in range(view.itemsize)}


@pytest.mark.once
@settings(always_the_same, max_examples=1_000)
@given(views(), views())
def test_an_overlap_is_what_the_bytes_say(one, other):
    ours = [extent_of(view) for view in (one, other)]
    bytes_ = [bytes_of(view) for view in (one, other)]
    for extent, own in zip(ours, bytes_, strict=True):
        assert (extent is None) == (not own)
        if extent is not None:
            assert (extent.start, extent.stop) == (min(own), max(own) + 1)
    if None in ours:
        return
    found = extents.overlap(*ours)
    assert found == extents.overlap(*reversed(ours))
    if found is not None:
        assert found == bool(bytes_[0] & bytes_[1])


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (np.s_[:500], np.s_[500:], False),
        (np.s_[:501], np.s_[500:], True),
        (np.s_[::2], np.s_[1::2], False),
        (np.s_[::2], np.s_[::-2], False),
        (np.s_[::2], np.s_[::3], True),
        (np.s_[1::2], np.s_[4::6], False),
        (np.s_[::2], np.s_[501:502], False),
        (np.s_[::2], np.s_[500:501], True),
        (np.s_[:6:2], np.s_[3:9:5], False),  # beyond its end too, where a block more would be
    ],
)
@pytest.mark.parametrize("count", [1000, 1_000_000])
def test_slices_of_one_array_are_told_apart(one, other, shared, count):
    array = np.zeros(count, np.uint8)
    assert extents.overlap(extent_of(array[one]), extent_of(array[other])) is shared


def test_rows_columns_and_tiles_are_told_apart():
    array = np.zeros((1000, 1000))
    views = array[:, :500], array[:, 500:], array[3], array[4:, ::2], array[4:, 1::2]
    overlaps = {
        (i, j): extents.overlap(extent_of(one), extent_of(other))
        for (i, one), (j, other) in itertools.combinations(enumerate(views), 2)
    }
    assert {pair for pair, shared in overlaps.items() if shared} == {
        (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)
    }  # fmt: skip
    assert None not in overlaps.values()


def test_what_would_take_too_long_is_not_decided():
    array = np.zeros(10_000_000, np.uint8)
    assert extents.overlap(extent_of(array[::7]), extent_of(array[1::11])) is True  # soon found
    strides = 1055, 7  # no common period
    apart = (np.ndarray((9000, 3), np.uint8, array, offset, strides) for offset in (0, 1))
    assert extents.overlap(*map(extent_of, apart)) is None


# -- what is ordered --------------------------------------------------------------------------

QUEUES, HOSTS = 3, 2
_queue, _host, _number = st.integers(0, QUEUES - 1), st.integers(0, HOSTS - 1), st.integers(0, 30)
_step = st.one_of(
    *[st.tuples(st.just("work"), _queue, _host)] * 3,
    *[st.tuples(st.just("wait"), _queue, _number)] * 2,
    st.tuples(st.just("point"), _queue, _host),
    st.tuples(st.just("sync"), _host, _number),
)
step_lists = st.lists(_step, min_size=8, max_size=30)


class Orders:
    """The same steps for the clocks and, as a graph of edges, for a search through it."""

    def __init__(self):
        self.clocks = order.VectorClocks()
        self.stamps, self.edges = {}, set()  # of the numbers of nodes
        self.nodes = itertools.count()
        self.queues, self.hosts, self.points = {}, {}, []

    def run(self, steps):
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
        return self

    def node(self, *befores):
        number = next(self.nodes)
        self.edges |= {(before, number) for before in befores if before is not None}
        return number

    def work(self, queue, host):
        self.queues[queue] = number = self.node(self.queues.get(queue), self.hosts.get(host))
        self.stamps[number] = self.clocks.work(queue, host)

    def point(self, queue, host):
        self.queues[queue] = number = self.node(self.queues.get(queue), self.hosts.get(host))
        self.points.append((number, self.clocks.point(queue, host)))

    def wait(self, queue, which):
        if self.points:
            number, clock = self.points[which % len(self.points)]
            self.queues[queue] = self.node(self.queues.get(queue), number)
            self.clocks.wait(queue, clock)

    def sync(self, host, which):
        if self.points:
            number, clock = self.points[which % len(self.points)]
            self.hosts[host] = self.node(self.hosts.get(host), number)
            self.clocks.learn(host, clock)

    def reachable(self):
        """By each node, all that must have ended before it."""
        before = {}
        for number in range(next(self.nodes)):
            own = {one for one, other in self.edges if other == number}
            before[number] = own.union(*(before[one] for one in own))
        return before


@pytest.mark.once
@settings(always_the_same, max_examples=300)
@given(step_lists)
def test_clocks_order_what_the_edges_order(steps):
    made = Orders().run(steps)
    assume(len(made.stamps) > 1)
    before = made.reachable()
    for one, other in itertools.permutations(made.stamps, 2):
        found = order.is_before(made.stamps[one], made.stamps[other])
        assert found == (one in before[other]), (one, other)


def test_after_what_is_not_known_everything_is_ordered():
    clocks = order.VectorClocks()
    one = clocks.work("a", "host")
    clocks.wait("b", order.EVERYTHING)
    other, later = clocks.work("b", "host"), clocks.work("a", "host")
    assert order.are_ordered(one, other)
    assert order.is_before(later, other)
    assert not order.is_before(other, later)


def test_what_is_joined_with_everything_comes_after_chains_of_any_number():
    clock = (0, 3, 5)
    for both in (order.joined(order.EVERYTHING, clock), order.joined(clock, order.EVERYTHING)):
        assert [order.known(both, chain) for chain in range(5)] == [math.inf] * 5


# -- which pairs race -------------------------------------------------------------------------

_access = st.builds(
    lambda allocation, start, size, mode, is_sure: search.Access(
        allocation, extents.Extent(start, start + size, size), mode, is_sure
    ),
    st.sampled_from([1, 1, 1, 2, None]),
    st.integers(0, 9),
    st.integers(1, 4),
    st.sampled_from(["read", "write", "unknown"]),
    st.booleans(),
)


@st.composite
def programs(draw):
    """Work with accesses, and edges between earlier and later work."""
    count = draw(st.integers(2, 8))
    works = [
        search.Work(number, number, tuple(draw(st.lists(_access, min_size=1, max_size=2))))
        for number in range(count)
    ]
    pairs = list(itertools.combinations(range(count), 2))
    return works, draw(st.sets(st.sampled_from(pairs))), draw(st.sets(st.sampled_from(pairs)))


def closure(count, edges):
    before = {number: set() for number in range(count)}
    for number in range(count):
        for one, other in edges:
            if other == number:
                before[number] |= {one} | before[one]
    return before


def stamps(count, before):
    """Each piece of work on a chain of its own, whose clock knows those that are ``before``."""
    return {
        number: order.Stamp(
            number + 1, 1, (0, *(float(other in before[number]) for other in range(count)))
        )
        for number in range(count)
    }


def found(works, edges, more=frozenset()):
    """The races that the engine finds, ``more`` being edges that may be there."""
    surely, perhaps = closure(len(works), edges), closure(len(works), edges | more)
    return list(search.find(works, stamps(len(works), surely), stamps(len(works), perhaps)))


def shared(works):
    """The pairs of accesses that share bytes, and of which not both read."""
    for first, second in itertools.combinations(works, 2):
        for one, other in itertools.product(first.accesses, second.accesses):
            known = None not in (one.allocation, other.allocation)
            if known and one.allocation != other.allocation:
                continue
            bytes_ = [set(range(x.extent.start, x.extent.stop)) for x in (one, other)]
            modes = {one.mode, other.mode}
            if bytes_[0] & bytes_[1] and modes != {"read"}:
                sure = known and one.is_sure and other.is_sure and "write" in modes
                yield first, second, one, other, sure


def by_hand(works, edges, more):
    surely, perhaps = closure(len(works), edges), closure(len(works), edges | more)
    for first, second, one, other, sure in shared(works):
        if first.number not in surely[second.number]:
            is_certain = sure and first.number not in perhaps[second.number]
            yield first.number, second.number, one, other, is_certain


@pytest.mark.once
@settings(always_the_same, max_examples=500)
@given(programs())
def test_the_pairs_are_those_of_a_search_by_hand(program):
    """``is_certain`` apart, which two equal accesses of one piece of work share."""
    assert set(map(tuple, found(*program))) == set(by_hand(*program))


ALL = search.Access(1, extents.Extent(0, 8, 8), "write", is_sure=True)


def test_what_a_line_may_do_later_hides_nothing_that_it_surely_did():
    works = [
        search.Work(0, "line 1", (ALL,)),
        search.Work(1, "line 1", (ALL._replace(is_sure=False),)),
        search.Work(2, "line 2", (ALL,)),
    ]
    places = {number: order.Stamp(number // 2 + 1, number + 1, ()) for number in range(3)}
    pairs = search.find(works, places, places)
    assert [(pair.first, pair.second, pair.is_certain) for pair in pairs] == [
        (0, 2, True), (1, 2, False)
    ]  # fmt: skip


# -- programs of queues, hosts and events ---------------------------------------------------------


class Queues:
    """A random program for two clocks, one of which supposes more waits, and for sets."""

    def __init__(self, random):
        self.random = random
        self.clocks = order.VectorClocks(), order.VectorClocks()
        self.stamps = {}, {}
        self.before = [], []  # of each piece of work, all before it
        self.done = {}, {}  # of each queue
        self.seen = {}, {}  # of each host
        self.events = []
        self.works, self.sites = [], []

    def run(self):
        for _ in range(self.random.randint(3, 14)):
            queue, host, draw = (
                self.random.randrange(3),
                self.random.randrange(2),
                self.random.random(),
            )
            if draw < 0.55:
                self.work(queue, host)
            elif draw < 0.7:
                self.events.append([self.point(n, queue, host) for n in (0, 1)])
            elif draw < 0.85 and self.events:
                event = self.random.choice(self.events)
                for number in 0, 1:
                    self.wait(number, queue, event[number])
            elif self.events:
                event = self.random.choice(self.events)
                for number in (0, 1) if draw < 0.95 else (1,):
                    self.learn(number, host, event[number])
        return self

    def work(self, queue, host):
        start, size = self.random.randrange(12), self.random.randint(1, 6)
        access = search.Access(
            self.random.choice([1, 1, 2, None]),
            extents.Extent(start, start + size, size),
            self.random.choice(["read", "write", "unknown"]),
            is_sure=self.random.random() < 0.7,
        )
        place = len(self.works)
        for number in 0, 1:
            before = self.known(number, queue) | self.seen[number].get(host, frozenset())
            self.before[number].append(before)
            self.done[number][queue] = before | {place}
            self.stamps[number][place] = self.clocks[number].work(queue, host)
        self.works.append(search.Work(place, (self.random.randrange(3), queue), (access,)))

    def known(self, number, queue):
        return self.done[number].get(queue, frozenset())

    def point(self, number, queue, host):
        done = self.known(number, queue) | self.seen[number].get(host, frozenset())
        self.done[number][queue] = done
        return done, self.clocks[number].point(queue, host)

    def wait(self, number, queue, point):
        self.done[number][queue] = self.known(number, queue) | point[0]
        self.clocks[number].wait(queue, point[1])

    def learn(self, number, host, point):
        self.seen[number][host] = self.seen[number].get(host, frozenset()) | point[0]
        self.clocks[number].learn(host, point[1])

    def races(self):
        """The pairs that race, each with whether it surely does; by trying all of them."""
        for first, second, _, _, sure in shared(self.works):
            if first.number not in self.before[0][second.number]:
                certain = sure and first.number not in self.before[1][second.number]
                yield first.number, second.number, certain


def by_sites(program, pairs):
    """Later work of a line replaces earlier work of it, so what counts are pairs of lines."""
    site = [work.site for work in program.works]
    return {(site[first], site[second], certain) for first, second, certain in pairs}


@pytest.mark.once
def test_the_engine_finds_what_trying_all_pairs_finds():
    random, count = Random(36), 0  # noqa: S311 - the same programs every time
    for number in range(20_000):
        program = Queues(random).run()
        pairs = {
            (pair.first, pair.second, pair.is_certain)
            for pair in search.find(program.works, *program.stamps)
        }
        truth = set(program.races())
        assert pairs <= truth, number
        assert by_sites(program, pairs) == by_sites(program, truth), number
        count += len(truth)
    assert count > 20_000


# -- how much it takes ----------------------------------------------------------------------------


@pytest.fixture
def compared(monkeypatch):
    """The accesses that were compared, two by two."""
    calls = []

    def race_of(one, other):
        calls.append((one, other))
        return compare(one, other)

    compare = search.race_of
    monkeypatch.setattr(search, "race_of", race_of)
    return calls


def byte(number):
    return ALL._replace(extent=extents.Extent(number, number + 1, 1))


def test_what_a_site_did_before_stands_in_its_later_work(compared):
    """A loop of a thousand rounds is compared with its last one."""
    works = [search.Work(number, "line 1", (ALL,)) for number in range(1000)]
    works.append(search.Work(1000, "line 2", (ALL,)))
    places = {number: order.Stamp(1, number + 1, ()) for number in range(1000)}
    places[1000] = order.Stamp(2, 1, ())
    pairs = list(search.find(works, places, places))
    assert [(pair.first, pair.second) for pair in pairs] == [(999, 1000)]
    assert len(compared) == 1


def test_work_on_other_bytes_is_not_compared(compared):
    """Four queues, which nothing orders, each with its own bytes of one array."""
    works = [search.Work(number, number % 4, (byte(number),)) for number in range(4000)]
    places = {number: order.Stamp(number % 4 + 1, number // 4 + 1, ()) for number in range(4000)}
    assert list(search.find(works, places, places)) == []
    assert compared == []
    works.append(search.Work(4000, 4, (ALL._replace(extent=extents.Extent(3990, 4000, 10)),)))
    places[4000] = order.Stamp(5, 1, ())
    assert len(list(search.find(works, places, places))) == len(compared) == 10


@pytest.mark.parametrize("byte_of_it", [0, 23])
def test_of_many_arrays_one_that_lies_in_two_cells_is_found_by_each_end(byte_of_it):
    """With many, the engine looks in cells of 32 bytes for arrays of 24 bytes."""
    starts = [128 * number + 20 for number in range(40)]
    works = [
        search.Work(number, number, (ALL._replace(extent=extents.Extent(start, start + 24, 24)),))
        for number, start in enumerate(starts)
    ]
    works.append(search.Work(40, 40, (byte(starts[7] + byte_of_it),)))
    places = {number: order.Stamp(1, number + 1, ()) for number in range(40)}
    places[40] = order.Stamp(2, 1, ())
    pairs = search.find(works, places, places)
    assert [(pair.first, pair.second) for pair in pairs] == [(7, 40)]


def test_work_that_is_ordered_is_not_compared(compared):
    """One queue writes the bytes of an array, and the other reads all of it after each."""
    works, places = [], {}
    for number in range(1000):
        works.append(search.Work(2 * number, "line 1", (byte(number),)))
        places[2 * number] = order.Stamp(1, number + 1, ())
        whole = ALL._replace(extent=extents.Extent(0, 1000, 1000), mode="read")
        works.append(search.Work(2 * number + 1, "line 2", (whole,)))
        places[2 * number + 1] = order.Stamp(2, number + 1, (0, number))  # but for the latest
    assert len(list(search.find(works, places, places))) == 1999  # each read, the write after it
    assert len(compared) < 4000


def test_a_clock_is_shared_until_a_wait_changes_it():
    clocks = order.VectorClocks()
    one, other = clocks.work("a", "host"), clocks.work("a", "host")
    assert one.before is other.before
    clocks.wait("b", clocks.point("a", "host"))
    one, other = clocks.work("b", "host"), clocks.work("b", "host")
    assert one.before is other.before
    assert order.joined(one.before, one.before[:2]) is one.before


# -- what a graph's edges order ---------------------------------------------------------------


@pytest.mark.once
@settings(always_the_same, max_examples=300)
@given(st.data())
def test_a_graph_orders_what_its_edges_reach(data):
    count = data.draw(st.integers(1, 12))
    edge = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(one, other) for one, other in data.draw(st.lists(edge)) if one < other}
    names = data.draw(st.permutations(range(count)))  # the driver lists nodes in any order
    found = order.stamps_of_nodes(count, [(names[one], names[other]) for one, other in edges])
    before = closure(count, edges)
    assert len(found) == count
    for one, other in itertools.permutations(range(count), 2):
        ordered = order.is_before(found[names[one]], found[names[other]])
        assert ordered == (one in before[other])
