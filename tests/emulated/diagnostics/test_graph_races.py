"""The races of captured graphs, of kernels with the names and parameters of CuPy's.

CuPy itself cannot run on the emulated driver; its adapter reads the parameters.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkit as sk
from support.emulated.captures import nothing_left  # noqa: F401 - a fixture
from support.emulated.kernels import carray, launch
from support.gpu.raw import check, current_context, driver
from support.libraries import need
from support.model import search as always_the_same

pytestmark = pytest.mark.usefixtures("nothing_left")

BYTES = 64


@pytest.fixture
def array():
    """Make an array of so many bytes."""
    need("cupy")
    cuda = need("numba")

    def array(size=BYTES):
        return cuda.device_array(size, np.uint8)

    return array


def address(array):
    return array.device_ctypes_pointer.value


def ufunc(stream, name, *views):
    """A kernel that reads some parts of memory, given as (address, bytes), and writes the last."""
    given = [carray(start, size, 1) for start, size in views]
    launch(stream, f"cupy_{name}__{'_'.join(['uint8'] * len(views))}", *given, bytes(24))


def fill(stream, start, size):
    check(driver.cuMemsetD8Async(start, 0, size, int(stream)))


def copy(stream, to, source, size):
    check(driver.cuMemcpyDtoDAsync(to, source, size, int(stream)))


def pairs(report):
    return {(race.first.node, race.second.node) for race in report.races}


@contextlib.contextmanager
def forked():
    """A graph, its stream, and a stream that has forked from it and joins it."""
    side = sk.new_stream(nonblocking=True)
    with sk.capture() as g:
        side.wait(g.stream)
        yield g, g.stream, side
        g.stream.wait(side)


# -- what a report tells ----------------------------------------------------------------------


def test_a_missing_wait_is_found_and_told(array):
    x, y = array(), array()
    with forked() as (g, main, side):
        ufunc(main, "add", (address(y), BYTES), (address(x), BYTES))
        ufunc(side, "multiply", (address(x), BYTES), (address(y), 8))
    report = g.races()
    (first, second) = report.certain
    assert report.possible == ()
    assert {race.array.name for race in report.races} == {"x", "y"}
    race = first if first.array.name == "x" else second
    assert str(race) == (
        "race on x (uint8, shape (64,), 64 bytes): node 1 reads it while node 0 writes it\n"
        "  CuPy's add writes it in node 0\n"
        "  CuPy's multiply reads it in node 1\n"
        "  to run node 0 first, let the stream of node 1 wait for that of node 0 in the capture, "
        "before node 1: second.wait(first)"
    )
    assert str(report.coverage) == "2 of 2 operations understood."
    with pytest.raises(sk.RaceError, match="2 races found"):
        report.assert_none()


def test_with_the_wait_there_is_none(array):
    x, y = array(), array()
    with forked() as (g, main, side):
        ufunc(main, "add", (address(y), BYTES), (address(x), BYTES))
        side.wait(main)
        ufunc(side, "multiply", (address(x), BYTES), (address(y), 8))
    report = g.races()
    report.assert_none(possible=True)
    assert str(report).startswith("no race found in what was understood.")


def test_names_come_from_the_argument_and_then_from_the_callers_variables(array):
    x = array()
    with forked() as (g, main, side):
        fill(main, address(x), BYTES)
        fill(side, address(x), BYTES)
    assert [race.array.name for race in g.races().races] == ["x"]
    assert [race.array.name for race in g.races({"grid": x}).races] == ["grid"]
    with pytest.raises(TypeError, match="takes a dictionary"):
        g.races([x])


def test_a_kernel_that_nobody_knows_makes_possible_races(array):
    x, y = array(), array()
    with forked() as (g, main, side):
        launch(main, "saxpy", bytes(4), carray(address(x), 1))
        fill(side, address(x) + 60, 4)
        fill(side, address(y), BYTES)
    report = g.races()
    assert report.certain == ()
    assert pairs(report) == {(0, 1)}
    assert report.races[0].first.mode == "unknown"
    assert str(report.coverage) == "2 of 3 operations understood. Not understood: saxpy."


def test_the_same_two_operations_are_told_once_with_a_count_and_their_section(array):
    x = array()
    with forked() as (g, main, side):
        with g.section("inner"):
            ufunc(main, "sin", (address(x), 4), (address(x), 4))
        with g.section("outer"):
            for _ in range(3):
                ufunc(side, "cos", (address(x), 4), (address(x), 4))
            with g.section("last"):
                fill(side, address(x), 1)
    report = g.races()
    assert [(race.count, race.second.section) for race in report.races] == [
        (3, "outer"), (1, "last")
    ]  # fmt: skip
    assert report.races[0].first.section == "inner"
    assert "CuPy's cos writes it in node 1, in the section 'outer'" in str(report)


def test_memory_that_is_freed_while_it_is_used_is_told(array):
    with forked() as (g, main, side):
        memory = int(check(driver.cuMemAllocAsync(32, int(main))))
        side.wait(main)
        fill(side, memory + 16, 4)
        check(driver.cuMemFreeAsync(memory, int(main)))
    (race,) = g.races().races
    assert (race.first.name, race.second.name, race.certain) == ("fill", "free", False)


def test_the_races_are_found_where_another_device_is_current(array):
    x = array()
    with forked() as (g, main, side):
        ufunc(main, "sin", (address(x), 4), (address(x), 4))
        memory = int(check(driver.cuMemAllocAsync(32, int(main))))
        fill(main, memory, 4)
        check(driver.cuMemFreeAsync(memory, int(main)))
        fill(side, address(x), 4)
    before = current_context()
    try:
        check(driver.cuCtxSetCurrent(driver.CUcontext(0)))
        assert pairs(g.races()) == {(0, 4)}
    finally:
        check(driver.cuCtxSetCurrent(driver.CUcontext(before)))


def test_what_cannot_be_understood_is_counted():
    word = int(check(driver.cuMemAlloc(4)))
    with sk.capture() as g:
        check(driver.cuStreamWriteValue32(int(g.stream), word, 0, 0))
    report = g.races()
    assert (report.coverage.understood, report.coverage.total) == (0, 1)
    assert report.coverage.missed == ("batch mem op",)
    check(driver.cuMemFree(word))


def test_the_page_has_the_picture_with_the_missing_edge(array, tmp_path):
    x = array()
    with forked() as (g, main, side):
        fill(main, address(x), 4)
        fill(side, address(x), 4)
    text = g.races().to_html(tmp_path / "races.html").read_text()
    assert text.count('class="edge missing"') == 1
    assert "<h1>1 race found. 2 of 2 operations understood.</h1>" in text
    assert "fill writes it in node 1" in text
    assert 'class="edge missing"' not in g.to_svg()


# -- random programs, against what a person would do by hand ----------------------------------

STREAMS = 3
_stream = st.integers(0, STREAMS - 1)
_part = st.tuples(st.integers(0, 24), st.integers(1, 8))
_step = st.one_of(
    *[st.tuples(st.just("ufunc"), _stream, _part, _part)] * 2,
    st.tuples(st.just("copy"), _stream, st.integers(0, 16), st.integers(0, 16)),
    st.tuples(st.just("fill"), _stream, _part),
    *[st.tuples(st.just("wait"), _stream, _stream)] * 2,
)
PROGRAM = st.lists(_step, max_size=12)


class Expected:
    """The nodes of a program, what each uses, and by search what it comes after."""

    def __init__(self):
        self.uses = []  # by node: (bytes, whether they are written)
        self.after = []
        self.ends = [set() for _ in range(STREAMS)]  # the nodes that a stream's next one follows

    def add(self, stream, *uses):
        self.uses.append(
            [(set(range(start, start + size)), writes) for start, size, writes in uses]
        )
        self.after.append(self.ends[stream])
        self.ends[stream] = {len(self.uses) - 1}

    def comes_after(self, node, other):
        return any(one == other or self.comes_after(one, other) for one in self.after[node])

    def races(self):
        count = len(self.uses)
        return {
            (one, other)
            for one in range(count)
            for other in range(one + 1, count)
            if not self.comes_after(other, one)
            if any(
                bytes_ & others and (writes or writes_too)
                for bytes_, writes in self.uses[one]
                for others, writes_too in self.uses[other]
            )
        }


def captured(program, start):
    """Capture a program, each node in a section of its own; the graph, and what is expected."""
    expected = Expected()
    with sk.capture() as g:
        streams = [g.stream, *(sk.new_stream(nonblocking=True) for _ in range(STREAMS - 1))]
        for side in streams[1:]:
            side.wait(g.stream)
        for number, (kind, stream, *rest) in enumerate(program):
            if kind == "wait":
                streams[stream].wait(streams[rest[0]])
                expected.ends[stream] = expected.ends[stream] | expected.ends[rest[0]]
                continue
            with g.section(f"step {number}"):
                if kind == "ufunc":
                    read, written = rest
                    ufunc(streams[stream], "sin", *((start + one, size) for one, size in rest))
                    expected.add(stream, (*read, False), (*written, True))
                elif kind == "copy":
                    to, source = rest
                    copy(streams[stream], start + to, start + source, 3)
                    expected.add(stream, (to, 3, True), (source, 3, False))
                else:
                    fill(streams[stream], start + rest[0][0], rest[0][1])
                    expected.add(stream, (*rest[0], True))
        for side in streams[1:]:
            g.stream.wait(side)
    return g, expected


@settings(always_the_same, max_examples=150)
@given(PROGRAM)
def test_what_is_found_is_what_nothing_orders(program):
    memory = int(check(driver.cuMemAlloc(BYTES)))
    need("cupy")
    g, expected = captured([*program, ("fill", 0, (60, 1))], memory)
    report = g.races()
    assert pairs(report) == expected.races()
    assert report.possible == ()
    assert (report.coverage.understood, report.coverage.missed) == (len(expected.uses), ())
    g.close()
    check(driver.cuMemFree(memory))
