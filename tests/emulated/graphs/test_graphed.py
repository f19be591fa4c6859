"""``graphed`` on the emulated driver, on arrays of numba-cuda and work of the driver's own."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import emulator
import streamkit as sk
from streamkit._graphs import graphed as graphed_module  # a capture of another thread goes on
from streamkit._queues import active_captures  # the same
from streamkit.backends._warp import adapter as warp_adapter  # its captures are one at a time
from support.emulated.captures import nothing_left  # noqa: F401 - a fixture
from support.emulated.graphed import address, copies, copy, read
from support.emulated.operations import foreign
from support.emulated.state_snapshot import alive
from support.gpu.raw import Gate, check, driver
from support.queues import together

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")


class Interface:
    """An array of a library that StreamKit does not know."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.device_ctypes_pointer = array.device_ctypes_pointer


# -- eager, captured, launched ----------------------------------------------------------------


def test_the_first_call_runs_the_second_captures_the_others_launch(array):
    calls = []
    function, to, source = copies(calls), array(), array(1)
    counts = []
    for number in (1, 2, 3, 4):
        source.copy_to_device(np.full(4, number, np.float32))
        assert function(to, source) is to
        assert read(to) == number
        counts.append((len(calls), function.graphs, function.captures, function.hits))
    assert counts == [(1, 0, 0, 0), (2, 1, 1, 0), (2, 1, 1, 1), (2, 1, 1, 2)]


def test_other_arguments_have_their_own_graph(array):
    function, a, b = copies(), array(1), array(2)
    to = array()
    for _ in range(3):
        for args in ((to, a), (to, b), (to, a, 1), (to, a, 1.0)):
            function(*args)
            assert read(to) == read(args[1])
    assert (function.graphs, function.captures, function.hits) == (4, 4, 4)


def test_it_launches_on_its_stream_or_that_of_the_scope(array):
    to, source = array(), array(1)
    own, outer = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    on_own, anywhere = copies(stream=own), copies()
    with sk.use(outer):
        for function in (on_own, on_own, anywhere, anywhere):
            function(to, source)
    check(driver.cuCtxSynchronize())
    for function, stream, other in ((on_own, own, outer), (anywhere, outer, own)):
        to.copy_to_device(np.zeros(4, np.float32))
        gate = Gate()
        try:
            gate.hold(stream.handle)
            with sk.use(outer):
                function(to, source)
            assert (stream.done, other.done) == (False, True)
            gate.open()
            assert read(to) == 1
        finally:
            gate.free()


def test_without_a_scope_it_is_in_order_with_the_libraries(array, warp):
    gate, to, source = Gate(), array(), array(1)
    function = copies()
    try:
        for _ in range(2):
            function(to, source)
        check(driver.cuCtxSynchronize())
        to.copy_to_device(np.zeros(4, np.float32))
        current = sk.current_stream("warp")
        gate.hold(current.handle)
        function(to, source)
        assert not current.done
        gate.open()
        current.sync()  # it waits for the graph
        assert read(to) == 1
    finally:
        gate.free()


def test_a_foreign_stream_serves_and_counts_more_than_a_scope(array):
    with contextlib.ExitStack() as undo:
        function, to, source = copies(stream=foreign(undo)), array(), array(1)
        with sk.new_stream():
            for _ in range(3):
                function(to, source)
        assert read(to) == 1
        del function
        gc.collect()


# -- what is held -----------------------------------------------------------------------------


def test_the_least_recently_used_graph_goes(array):
    calls = []
    function, to = copies(calls, max_graphs=2), array()
    a, b, c = (array(number) for number in (1, 2, 3))
    for source in (a, a, b, b, a, c, c):  # b is the one not used for longest
        function(to, source)
    assert function.graphs == 2
    before, captures = len(calls), function.captures
    function(to, a)
    function(to, c)
    assert len(calls) == before
    function(to, b)  # the first call again
    assert (len(calls), read(to)) == (before + 1, 2)
    assert function.captures == captures


def test_where_there_is_no_room_the_oldest_graph_goes_and_its_run_ends(array):
    calls, gate = [], Gate()
    function, (to, other) = copies(calls, max_graphs=1), (array(), array())
    one, two = array(1), array(2)
    s = sk.new_stream(nonblocking=True)
    try:
        with sk.use(s):
            for _ in range(2):
                function(to, one)
            s.sync()
            to.copy_to_device(np.zeros(4, np.float32))
            gate.hold(s.handle)
            function(to, one)
            for _ in range(3):
                function(other, two)
        assert (function.captures, function.graphs, len(calls)) == (2, 1, 4)
        gate.open()
        assert (read(to), read(other)) == (1, 2)
    finally:
        gate.free()
    function(to, one)
    assert len(calls) == 5  # its graph has gone


def test_a_graph_that_goes_before_a_call_launches_it_is_launched(array):
    """Another thread captures in between, for example."""
    function, to, other = copies(max_graphs=1), array(), array()
    one, two = array(1), array(2)
    for _ in range(2):
        function(to, one)
    check(driver.cuCtxSynchronize())
    to.copy_to_device(np.zeros(4, np.float32))

    def late(*call):
        del function._launch
        for _ in range(2):
            function(other, two)
        assert function.captures == 2
        return function._launch(*call)

    function._launch = late
    function(to, one)
    assert (read(to), read(other), function.graphs) == (1, 2, 1)


def test_an_error_leaves_the_graph_that_would_have_gone(array):
    function, to, one = copies(calls := [], max_graphs=1), array(), array(1)
    for _ in range(2):
        function(to, one)
    broken = object()  # has no memory to copy from
    for _ in range(2):  # run, then captured
        with pytest.raises(AttributeError):
            function(to, broken)
    assert (function.captures, function.graphs) == (1, 1)
    before = len(calls)
    to.copy_to_device(np.zeros(4, np.float32))
    assert read(function(to, one)) == 1
    assert len(calls) == before


@pytest.mark.parametrize("with_copies", [False, True])
def test_many_signatures_leave_nothing(array, with_copies):
    function, to, source = copies(max_graphs=4, copy=with_copies), array(), array(1)

    def call_all(names):
        for name in names:
            for _ in range(2):
                function(to, source, name)
                check(driver.cuCtxSynchronize())
        gc.collect()

    call_all(range(10))
    before, streams = alive(), emulator.live("streams")
    call_all(range(100, 200))
    assert function.graphs == 4
    assert alive() == before
    assert emulator.live("streams") < streams + 10  # a former one, busy for a moment, is joined
    function.clear()
    assert function.graphs == 0
    function(to, source, 199)  # the first call again
    assert function.captures == 110


def test_calls_that_came_once_are_forgotten(array):
    function, to, source = copies(max_graphs=4), array(), array(1)
    for name in range(10):
        function(to, source, name)
    function(to, source, 0)  # the first one again, as far as it knows
    assert function.captures == 0
    assert len(function._seen) == 4


def test_a_graph_that_goes_while_it_runs_ends_its_run(array):
    function, to, source, gate = copies(), array(), array(1), Gate()
    s = sk.new_stream(nonblocking=True)
    try:
        with sk.use(s):
            for _ in range(2):
                function(to, source)
            s.sync()
            to.copy_to_device(np.zeros(4, np.float32))
            gate.hold(s.handle)
            function(to, source)
        function.clear()
        gc.collect()
        gate.open()
        assert read(to) == 1
    finally:
        gate.free()


def test_results_are_in_containers_of_the_callers_own(array):
    @sk.graphed
    def function(to, source):
        copy(to, source)
        return {"to": [to], "n": 5}

    to, source = array(), array(1)
    results = [function(to, source) for _ in range(4)]
    for result in results:
        assert result["to"][0] is to
        result["to"].clear()
        assert result.pop("n") == 5


def test_a_result_that_is_an_argument_is_the_one_that_was_passed(array):
    function, to, source = copies(), array(), array(1)
    again = [function(to[:], source) for _ in range(3)]  # other objects on the same memory
    assert len({id(found) for found in again}) == 3
    assert {address(found) for found in again} == {address(to)}


def test_of_two_objects_on_one_memory_the_one_that_was_passed_comes_back(array):
    @sk.graphed
    def second(to, same, source):
        copy(to, source)
        return same

    to, source = array(), array(1)
    for _ in range(4):
        same = to[:]
        assert second(to, same, source) is same


# -- errors -----------------------------------------------------------------------------------


def test_what_cannot_be_captured_is_told_with_its_line(array):
    @sk.graphed
    def function(to, source):
        copy(to, source)
        sk.current_stream().sync()  # the line

    to, source = array(), array(1)
    function(to, source)
    line = function.__wrapped__.__code__.co_firstlineno + 3
    for _ in range(2):
        with pytest.raises(
            sk.errors.CaptureError, match=rf"function \(line {line} of .*test_graphed.py\)"
        ):
            function(to, source)
    assert (function.graphs, function.captures) == (0, 0)


def test_where_no_line_is_known_the_function_is_named():
    function = sk.graphed(lambda: None)
    function()
    with pytest.raises(
        sk.errors.CaptureError, match=r"<lambda> \(the function at line \d+ of .*no GPU work"
    ):
        function()


def test_with_fallback_it_warns_once_and_stays_eager(array):
    calls = []

    @sk.graphed(fallback=True)
    def function(to, source, *_):
        calls.append(1)
        copy(to, source)
        sk.current_stream().sync()
        return to

    to, source = array(), array(1)
    function(to, source)
    with pytest.warns(
        RuntimeWarning, match="cannot be captured, so streamkit.graphed calls"
    ) as told:
        assert function(to, source) is to
    assert told[0].filename == __file__
    assert len(calls) == 3  # it was tried
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in ((to, source), (to, source, 1), (to, source, 1)):
            function(*args)
    assert len(calls) == 7  # the new arguments were tried as well
    assert read(to) == 1
    assert function.graphs == 0


def test_an_error_of_the_function_passes_and_leaves_no_graph(array):
    fails = [False]

    @sk.graphed
    def function(to, source):
        copy(to, source)
        if fails[0]:
            raise LookupError("its own")
        return to

    to, source = array(), array(1)
    function(to, source)
    fails[0] = True
    with pytest.raises(LookupError, match="its own"):
        function(to, source)
    fails[0] = False
    for _ in range(2):
        assert read(function(to, source)) == 1
    assert (function.graphs, function.captures) == (1, 1)


@pytest.mark.parametrize("with_copies", [False, True])
def test_an_array_of_the_host_is_refused(array, with_copies):
    with pytest.raises(TypeError, match="is on the host: a graph would keep the values"):
        copies(copy=with_copies)(array(), np.zeros(4, np.float32))


def test_an_array_that_no_adapter_copies_is_refused_with_copies(array):
    given = Interface(array())
    copies()(array(), given)
    for function, args in ((copies(copy=True), (array(), given)), (lambda: given, ())):
        with pytest.raises(TypeError, match=r"cannot copy .*Interface .* no adapter copies"):
            sk.graphed(function, copy=True)(*args)


# -- beside captures and threads --------------------------------------------------------------


def test_inside_a_capture_its_work_is_captured_there(array):
    function, to, source = copies(), array(), array(1)
    for _ in range(2):
        function(to, source)
    check(driver.cuCtxSynchronize())
    to.copy_to_device(np.zeros(4, np.float32))
    for wanted in (function, copies()):  # one with a graph, and one without
        with sk.capture() as g:
            wanted(to, source)
        assert g.nodes == 1
        assert read(to) == 0
        g.launch()
        assert read(to) == 1
        to.copy_to_device(np.zeros(4, np.float32))


def test_inside_a_capture_its_own_stream_does_not_count_unless_it_captures(array):
    own, to, source = sk.new_stream(nonblocking=True), array(), array(1)
    function = copies(stream=own)
    for _ in range(2):
        function(to, source)
    with sk.capture() as g:
        function(to, source)
    assert g.nodes == 1
    with sk.capture(own) as g, sk.use(sk.new_stream(nonblocking=True)):
        function(to, source)
    assert g.nodes == 1


def test_inside_somebodys_capture_on_its_own_stream_no_other_begins(array):
    calls, own, to, source = [], sk.new_stream(nonblocking=True), array(), array(1)
    function = copies(calls, stream=own)
    function(to, source)
    check(driver.cuStreamBeginCapture(own.handle, driver.CUstreamCaptureMode(1)))
    function(to, source)
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(own.handle))))
    assert (len(calls), function.captures) == (2, 0)


def test_inside_a_capture_a_graph_with_copies_is_not_used(array):
    calls, to, source = [], array(), array(1)
    function = copies(calls, copy=True)
    for _ in range(2):
        function(to, source)
    assert (len(calls), function.hits) == (2, 0)
    with sk.capture():
        function(to, source)
    assert (len(calls), function.hits) == (3, 0)


def test_a_graphed_function_can_call_another(array):
    inner = copies()
    outer = sk.graphed(inner)
    to, source = array(), array(1)
    for _ in range(4):
        assert read(outer(to, source)) == 1
    assert (outer.captures, outer.hits) == (1, 2)


@contextlib.contextmanager
def turn_of_another_thread():
    """Let another thread hold what a thread that captures holds."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(graphed_module._turn.acquire).result()
        try:
            yield
        finally:
            pool.submit(graphed_module._turn.release).result()


def test_while_another_thread_captures_the_function_runs(array):
    function, to, source = copies(), array(), array(1)
    function(to, source)
    with turn_of_another_thread():
        assert read(function(to, source)) == 1
    assert function.captures == 0
    with active_captures.noted([], []):  # one that the driver has begun, in any thread
        function(to, source)
    assert function.captures == 0
    function(to, source)
    assert function.captures == 1


def test_a_capture_that_begins_meanwhile_is_no_error(array):
    function, to, source = copies(), array(), array(1)
    function(to, source)

    def late(call):
        del function._is_due
        assert function._is_due(call)
        undo.enter_context(active_captures.noted(["warp"], []))  # as another thread's would
        return True

    function._is_due = late
    single = pytest.MonkeyPatch()
    single.setattr(warp_adapter, "joins_capture", print, raising=False)
    with contextlib.ExitStack() as undo:
        undo.callback(single.undo)
        assert function(to, source) is to
    assert function.captures == 0


def test_many_threads_share_its_graphs(array):
    function, pairs = copies(), [(array(), array(number)) for number in range(4)]

    def work(index):
        s = sk.new_stream(nonblocking=True)
        with sk.use(s, libraries=()):
            for _ in range(20):
                function(*pairs[index])
        s.sync()

    together(4, work)
    assert [read(to) for to, _ in pairs] == [0, 1, 2, 3]
    assert function.captures == function.graphs <= 4  # a thread that met a capture has run it
    assert function.hits > 0


class Guarded(OrderedDict):
    """It notes whether each change is made under the lock, which no other thread takes here."""

    def __init__(self, lock):
        super().__init__()
        self.is_held, self.changes = lock.locked, []

    def __setitem__(self, key, value):
        self.changes.append(self.is_held())
        super().__setitem__(key, value)

    def popitem(self, *, last):
        self.changes.append(self.is_held())
        return super().popitem(last=last)


def test_its_graphs_come_and_go_under_the_lock_that_clear_takes(array):
    @sk.graphed(max_graphs=1, copy=True, fallback=True)
    def function(to, source, number):
        copy(to, source)
        if number > 2:
            sk.current_stream().sync()  # no capture allows it

    seen = function._seen = Guarded(function._lock)
    captured = function._captured = Guarded(function._lock)
    to, source = array(), array(1)
    for number in (1, 1, 2, 2, 3):
        function(to, source, number)
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        function(to, source, 3)
    assert captured.changes == [True] * 3
    assert seen.changes == [True] * 4, "three first calls, and one that cannot be captured"


def test_threads_with_one_signature_capture_it_once(array):
    """The second one comes for its turn when the first has just captured."""
    function, to, source = copies(), array(), array(1)
    function(to, source)

    def late(call):
        del function._is_due
        assert function._is_due(call)
        function(to, source)
        return True

    function._is_due = late
    function(to, source)
    assert (function.captures, function.graphs) == (1, 1)
    assert read(to) == 1


# -- with copies of the arguments -------------------------------------------------------------


def test_with_copies_new_arrays_share_one_graph(array):
    function = copies(copy=True)
    for number in range(6):
        to, source = array(), array(number)
        assert function(to, source) is to
        assert read(to) == number  # what it wrote is copied back
    assert (function.graphs, function.captures, function.hits) == (1, 1, 4)


def test_with_copies_one_array_in_two_places_stays_one(array):
    @sk.graphed(copy=True)
    def function(a, b, source):
        copy(a, source)
        copy(b, source)
        return a, b

    for number in range(4):
        a, source = array(), array(number)
        assert function(a, a, source) == (a, a)
        assert read(a) == number
    a, b, source = array(), array(), array(9)
    function(a, b, source)
    assert (read(a), read(b)) == (9, 9)


def test_with_copies_arrays_without_elements_overlap_nothing(array, cuda):
    """Their address is 0, that of all of them."""
    function, to, source = copies(copy=True), array(), array(1)
    for _ in range(3):
        function(to, source, cuda.device_array(0, np.float32), cuda.device_array((0, 4), np.int8))
        assert read(to) == 1
    assert (function.captures, function.hits) == (1, 1)


def test_with_copies_a_graph_that_goes_while_it_runs_keeps_its_copies(array):
    function, to, source, gate = copies(copy=True), array(), array(1), Gate()
    s = sk.new_stream(nonblocking=True)
    try:
        with sk.use(s):
            for _ in range(2):
                function(to, source)
            s.sync()
            (captured,) = function._captured.values()
            seen = [weakref.ref(one) for one in captured.own]
            gate.hold(s.handle)
            function(to, source)
        del captured
        function.clear()
        gc.collect()
        assert None not in [one() for one in seen]
        gate.open()
        s.sync()
        sk.new_stream()
        gc.collect()
        assert {one() for one in seen} == {None}
    finally:
        gate.free()


def test_with_copies_two_streams_do_not_disturb_each_other(array):
    """The copies of one call must not be overwritten by the next one, on another stream."""
    function, gate = copies(copy=True), Gate()
    streams = [sk.new_stream(nonblocking=True) for _ in range(2)]
    pairs = [(array(), array(number)) for number in (1, 2)]
    try:
        for _ in range(2):
            with sk.use(streams[0]):
                function(*pairs[0])
        check(driver.cuCtxSynchronize())
        pairs[0][0].copy_to_device(np.zeros(4, np.float32))
        gate.hold(streams[0].handle)
        for stream, pair in zip(streams, pairs, strict=True):
            with sk.use(stream):
                function(*pair)
        assert not streams[1].done
        gate.open()
        assert [read(to) for to, _ in pairs] == [1, 2]
    finally:
        gate.free()
