"""Whose a graphed function's results, arguments and copies are, and how long it holds them."""

from __future__ import annotations

import contextlib
import gc
import pathlib
import uuid
import weakref

import numpy as np
import pytest

import streamkit as sk
from streamkit._graphs import graphed as graphed_module  # what it copies into is watched
from support.emulated.captures import nothing_left  # noqa: F401 - a fixture
from support.emulated.graphed import address, copies, copy, read
from support.emulated.operations import foreign
from support.gpu.raw import Gate, check, driver
from support.queues import together

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")


# -- results ----------------------------------------------------------------------------------


def test_with_copies_a_result_can_be_the_argument_of_the_next_call(array):
    """As the state of a recurrent network: what the call was given is not copied over it."""
    state = array()

    @sk.graphed(copy=True)
    def advance(before, source):
        copy(state, source)  # a result in memory of its own; ``before`` is only read
        return state

    found, current = [], array(1)
    for number in range(5):
        current = advance(current, array(number))
        found.append(read(current))
    assert (advance.captures, found) == (1, [*range(5)])


def test_with_copies_two_results_can_change_places_as_arguments(array):
    """A view of a result too; each call is given what the one before returned."""
    one, two = array(), array()

    @sk.graphed(copy=True)
    def swap(a, b):
        copy(one, b)
        copy(two, a)
        return one, two

    a, b = array(1), array(2)
    found = []
    for _ in range(5):
        a, b = swap(a[:], b)
        found.append((read(a), read(b)))
    assert (swap.captures, found) == (1, [(2, 1), (1, 2), (2, 1), (1, 2), (2, 1)])


def test_with_copies_a_returned_view_is_never_the_callers_memory(array):
    @sk.graphed(copy=True)
    def head(x, source):
        copy(x, source)
        return x[:2], x

    found = []
    for number in range(4):
        x, source = array(), array(number)
        view, same = head(x, source)
        assert same is x
        assert (read(view), read(x)) == (number, number)
        found.append(address(view) == address(x))
        view.copy_to_device(np.full(2, 99, np.float32))
        assert read(x) == number
    assert found == [False] * 4
    assert (head.captures, head.hits) == (1, 2)


def test_without_copies_a_returned_view_is_the_callers_memory_each_time(array):
    @sk.graphed
    def head(x, source):
        copy(x, source)
        return x[:2]

    x, source = array(), array(1)
    assert [address(head(x, source)) == address(x) for _ in range(4)] == [True] * 4


def test_with_copies_a_call_without_arrays_is_a_call(array):
    to, source, calls = array(), array(1), []

    @sk.graphed(copy=True)
    def function(number):
        calls.append(number)
        copy(to, source)

    for _ in range(3):
        function(1)
    assert (calls, read(to)) == ([1, 1], 1)


# -- arguments that cannot be hashed ----------------------------------------------------------


class Table:
    """Known by its rows, which make it unhashable; it counts how often it is copied."""

    copied = 0

    def __init__(self, *rows):
        self.rows = list(rows)

    def __eq__(self, other):
        return self.rows == other.rows

    __hash__ = None

    def __deepcopy__(self, memo):
        Table.copied += 1
        return Table(*self.rows)


def test_what_cannot_be_hashed_is_copied_for_new_keys_only(array):
    calls, to, source = [], array(), array(1)
    function, table = copies(calls), Table(1, 2)
    Table.copied = 0
    for _ in range(10):
        function(to, source, table)
    assert Table.copied <= 2, "for the first call, and for the graph"
    function(to, source, Table(1, 2))  # an equal one
    assert (len(calls), function.hits) == (2, 9)
    before = Table.copied
    table.rows.append(3)
    for _ in range(3):
        function(to, source, table)
    assert (len(calls), function.graphs) == (4, 2)
    assert Table.copied <= before + 2
    table.rows.remove(3)
    function(to, source, table)
    assert len(calls) == 4, "the key of its graph is as the table was then"


def test_what_a_function_changes_in_such_an_argument_makes_another_call(array):
    to, source, seen = array(), array(1), []

    @sk.graphed
    def function(to, source, table):
        seen.append(list(table.rows))
        table.rows.append(0)
        copy(to, source)

    for table in (Table(), Table(), Table(), Table(0)):
        function(to, source, table)
    assert seen == [[], [], [0]]
    assert function.graphs == 1


def test_what_can_be_neither_hashed_nor_copied_is_refused_by_name(array):
    class Locked(Table):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle a lock")

    with pytest.raises(TypeError, match=r"Locked object at .* cannot be hashed and not be copied"):
        copies()(array(), array(1), Locked())


def test_an_array_in_a_set_is_known_by_its_identity(array):
    to, one, two = array(), array(1), array(2)

    @sk.graphed
    def function(to, sources):
        copy(to, *sources)
        return to

    for source in (one, one, one, two, two, one):
        assert read(function(to, {source})) == read(source)
    assert (function.graphs, function.hits) == (2, 2)


# -- objects ----------------------------------------------------------------------------------


class Model:
    """A graph of a method writes into an array of the instance."""

    def __init__(self, array, value):
        self.to, self.source = array(), array(value)
        self.calls = 0

    @sk.graphed
    def step(self, *_):
        self.calls += 1
        copy(self.to, self.source)
        return self


@pytest.fixture
def method():
    """``Model.step``, as a fresh process has it."""
    yield Model.step
    Model.step.clear()
    Model.step.captures = Model.step.hits = 0


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_an_instance_goes_with_its_last_reference(array, method, calls):
    """Whether its method was called, captured or launched; its result is the instance itself."""
    model, other = Model(array, 1), Model(array, 2)
    for one in (model, other):
        for _ in range(calls):
            assert one.step() is one
    assert method.graphs == (2 if calls > 1 else 0)
    assert (read(model.to), read(other.to)) == (1, 2)
    gc.disable()
    seen = weakref.ref(model)
    del model, one
    assert seen() is None
    assert method.graphs == (1 if calls > 1 else 0), "its graph has gone at once"
    assert len(method._seen) == (0 if calls > 1 else 1)
    other.to.copy_to_device(np.zeros(4, np.float32))
    other.step()
    assert read(other.to) == 2
    gc.enable()


def test_an_instance_that_goes_while_its_graph_runs_is_no_harm(array, method):
    gate, s = Gate(), sk.new_stream(nonblocking=True)
    model = Model(array, 1)
    to = model.to
    try:
        with sk.use(s):
            for _ in range(3):
                model.step()
            s.sync()
            to.copy_to_device(np.zeros(4, np.float32))
            source = model.source
            gate.hold(s.handle)
            model.step()
        del model
        assert method.graphs == 0
        gate.open()
        assert read(to) == read(source)
    finally:
        gate.free()


def test_one_object_after_another_has_its_own_graph(array):
    """Python gives the address of the one to the other."""
    to, found, addresses = array(), [], set()
    function = sk.graphed(lambda to, model: copy(to, model.source))
    for number in range(20):
        model = Model(array, number)
        addresses.add(id(model))
        for _ in range(3):
            function(to, model)
        found.append(read(to))
        del model
    assert found == list(range(20))
    assert len(addresses) < 20, "else this shows nothing"
    assert function.graphs == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda model: model,
        lambda model: [model],
        lambda model: {"a": (model,)},
        lambda model: model.__init__,  # a bound method, made anew for each call
        lambda model: lambda: model,
    ],
    ids=["itself", "a list", "a dict", "a method", "a function"],
)
def test_objects_among_the_arguments_are_not_kept(array, make):
    function, to, source = copies(), array(), array(1)
    model = Model(array, 1)
    seen = weakref.ref(model)
    given = make(model)
    for _ in range(3):
        function(to, source, given)
        function(to, source, key=given)
    assert (function.graphs, function.hits) == (2, 2)
    del model, given
    assert seen() is None
    assert function.graphs == 0


@pytest.mark.parametrize(
    "make", [lambda: uuid.UUID(int=5), lambda: pathlib.Path("a") / "b", lambda: ("a", 5)]
)
def test_equal_values_share_a_graph_also_when_the_first_one_has_gone(array, make):
    function, to, source = copies(), array(), array(1)
    for _ in range(4):
        function(to, source, make())
        gc.collect()
    assert (function.graphs, function.hits) == (1, 2)


def test_an_object_that_dies_while_the_lock_is_held_is_forgotten_by_the_next_call(array, method):
    model, other = Model(array, 1), Model(array, 2)
    for _ in range(2):
        model.step()
        other.step()
    with method._lock:
        del model
        assert method.graphs == 2
    other.step()
    assert method.graphs == 1


def test_a_function_that_goes_while_objects_live_is_no_harm(array):
    model, function = Model(array, 1), copies()
    to, source = array(), array(1)
    for _ in range(3):
        function(to, source, model)
    seen = weakref.ref(function)
    gc.disable()
    del function
    assert seen() is None, "nothing that it holds holds it"
    gc.enable()
    del model


def test_objects_that_come_and_go_in_threads_leave_no_graph(array):
    function = copies(max_graphs=64)

    def work(_):
        to, source, s = array(), array(1), sk.new_stream(nonblocking=True)
        with sk.use(s, libraries=()):
            for _ in range(10):
                model = Model(array, 1)
                for _ in range(3):
                    function(to, source, model)
                del model
        s.sync()

    together(4, work)
    function(array(), array(1))
    assert function.graphs == 0


# -- copies of arguments ----------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """Weak references to the copies of arguments, which are noted as they are made."""
    found, new = [], graphed_module._new

    def noting(arrays):
        made = new(arrays)
        found.extend(map(weakref.ref, made))
        return made

    monkeypatch.setattr(graphed_module, "_new", noting)
    return found


def has_gone(references):
    sk.new_stream()
    gc.collect()
    return {reference() is None for reference in references}


def holding_after(launch, gate):
    launch = weakref.WeakMethod(launch)  # the graph goes without the garbage collector

    def held(stream):
        launch()(stream)
        gate.hold(stream.handle)

    return held


@pytest.mark.parametrize("end", ["evicted", "cleared", "dropped"])
def test_the_copies_of_a_graph_live_until_they_are_copied_back(array, made, end):
    """Its last run has ended by then."""
    gate, to, source = Gate(), array(), array(1)
    with contextlib.ExitStack() as undo:
        undo.callback(gate.free)
        function, s = copies(copy=True, max_graphs=1), sk.wrap(foreign(undo))
        with sk.use(s):
            for _ in range(2):
                function(to, source)
            s.sync()
            (captured,) = function._captured.values()
            own = made[:]  # later calls make more
            assert len(own) == 2
            captured.graph.launch = holding_after(captured.graph.launch, gate)
            function(to, source)
            del captured
        if end == "evicted":
            for _ in range(2):
                function(to, source, "other")
        elif end == "cleared":
            function.clear()
        else:
            del function
        gc.collect()
        assert has_gone(own) == {False}
        gate.open()
        s.sync()
        check(driver.cuCtxSynchronize())
        assert has_gone(own) == {True}
