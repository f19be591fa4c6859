"""What makes a call of a graphed function another one, and what ``explain`` says of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import streamkit as sk
from support.emulated.captures import nothing_left  # noqa: F401 - a fixture
from support.emulated.graphed import address, copies, copy, read
from support.emulated.toys import program  # noqa: F401 - a fixture
from support.gpu.raw import check, driver
from support.libraries import need

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")
FIRST = "it calls the function, because it is the first call of its kind; "


@pytest.fixture(autouse=True, scope="module")
def _both_devices():
    """numba leaves a context current at the first use of a device."""
    cuda = need("numba")
    for device in (1, 0):
        with cuda.gpus[device]:
            pass


# -- what counts beside the arguments ---------------------------------------------------------


def test_a_graph_of_one_device_is_not_launched_for_another(array, cuda):
    """The function takes what it writes into from the current device."""
    cells = []
    for device in (0, 1):
        with cuda.gpus[device]:
            cells.append(array())

    @sk.graphed
    def fill():
        cell = cells[cuda.current_context().device.id]
        handle = sk.current_stream().handle
        check(driver.cuMemsetD32Async(address(cell), 0x40A00000, 4, handle))

    for _ in range(3):
        with cuda.gpus[0]:
            fill()
    assert fill.graphs == 1
    for count in (1, 2, 2):
        with cuda.gpus[1]:
            told = fill.explain()
            cells[1].copy_to_device(np.zeros(4, np.float32))
            fill()
            assert (read(cells[1]), fill.graphs) == (5, count)
    assert told == "it launches the graph that is held"
    assert fill.hits == 2


def test_with_copies_arrays_of_another_device_have_a_graph_of_their_own(array, cuda):
    """Their addresses do not count, as they do without copies."""
    function, pairs = copies(copy=True), []
    for device in (0, 1):
        with cuda.gpus[device]:
            pairs.append((array(), array(1)))
    assert len(pairs) == 2
    for count, (to, source) in enumerate(pairs, 1):
        for _ in range(2):
            function(to, source)
        assert function.graphs == count


def test_of_a_call_on_a_stream_the_device_is_that_of_the_stream(array, cuda):
    """Around the call another device is current, which its scope changes."""
    calls = []
    function, to, source = copies(calls, stream=sk.new_stream()), array(), array(1)
    for device in (0, 1, 0, 1):
        with cuda.gpus[device]:
            function(to, source)
    assert (len(calls), function.graphs, function.hits) == (2, 1, 2)


def test_a_graph_of_one_default_device_of_warp_is_not_launched_for_another(array, warp):
    calls = []
    function, to, source = copies(calls), array(), array(1)
    for _ in range(3):
        function(to, source)
    with warp.ScopedDevice("cpu"):
        told = "default device of warp: cpu instead of cuda:0"
        assert function.explain(to, source) == FIRST + told
        function(to, source)
    assert (len(calls), function.hits) == (3, 1)


def test_a_tape_of_warp_sees_each_call(array, warp):
    calls = []
    function, to, source = copies(calls), array(), array(1)
    for _ in range(3):
        function(to, source)
    tape = warp.Tape()
    for _ in range(3):
        with tape:
            function(to, source)
    assert (len(calls), function.graphs) == (2 + 3, 1)
    with tape:
        assert "tape of warp: on, which needs the function itself instead of off" in (
            function.explain(to, source)
        )
    function(to, source)
    assert (len(calls), function.hits) == (2 + 3, 2)


SETS = """
from streamkit.protocols import Settings

mode = [False]

def settings():
    return Settings(("fast mode",), lambda: tuple(mode))
"""


def test_the_settings_of_any_library_count(program):  # noqa: F811 - the fixture
    out = program(
        """
        import numpy as np
        import toya, toyb, streamkit_toyb
        from cuda.bindings import driver
        from numba import cuda

        to, calls = cuda.to_device(np.zeros(4, np.float32)), []

        @sk.graphed
        def fill(to):
            calls.append(streamkit_toyb.mode[0])
            driver.cuMemsetD32Async(to.device_ctypes_pointer.value, 1, 4,
                                    sk.current_stream().handle)

        for fast in (False, False, True, False, True, True, False):
            streamkit_toyb.mode[0] = fast
            fill(to)
        print(calls, fill.graphs, fill.hits)
        fill.clear()
        fill(to)
        streamkit_toyb.mode[0] = True
        print(fill.explain(to))
        """.replace("\n        ", "\n"),
        toya="",
        toyb=SETS,
    )
    assert out.splitlines() == [
        "[False, False, True, True] 2 3",
        f"{FIRST}fast mode of toyb: on instead of off",
    ]


HAS_MODELS = """
from streamkit.protocols import Settings

class Model:
    def __init__(self):
        self.weights = [64, 128]

    def forward(self, to):
        driver = __import__("cuda.bindings.driver", fromlist=["x"])
        sk = __import__("streamkit")
        stream = sk.current_stream().handle
        driver.cuMemsetD32Async(to.device_ctypes_pointer.value, self.weights[1], 4, stream)

def settings():
    return Settings((), tuple, lambda model: model.weights if type(model) is Model else None)
"""
WAYS = {
    "a method": "f, more = sk.graphed(model.forward, weights=True), ()",
    "a variable of its own": "f, more = sk.graphed(lambda to: model.forward(to), weights=True), ()",
    "a variable around it": "f, more = around(model), ()",
    "an argument": "f, more = sk.graphed(lambda to, m: m.forward(to), weights=True), (model,)",
    "not looked at": "f, more = sk.graphed(model.forward), ()",
}


@pytest.mark.parametrize("way", WAYS)
def test_other_weights_need_another_graph(program, way):  # noqa: F811 - the fixture
    """Without the option the old ones stay in the graph: the last way is the control."""
    out = program(
        f"""
        import numpy as np
        import toya, toyb
        from numba import cuda
        from streamkit_toyb import Model

        def around(inner):
            return sk.graphed(lambda to: inner.forward(to) and never, weights=True)
            never = None

        model, to = Model(), cuda.to_device(np.zeros(4, np.int32))
        {WAYS[way]}
        for value in (128, 128, 128, 256, 256, 256, 128):
            model.weights[1] = value
            print(f.explain(to, *more) if value == 256 else "")
            f(to, *more)
            driver.cuCtxSynchronize()
            assert (to.copy_to_host() == value).all() or f.captures == 1
        print(f.graphs, f.hits)
        """.replace("\n        ", "\n"),
        toya="",
        toyb=HAS_MODELS,
    )
    told = f"{FIRST}address of weight 1: 0x100 instead of 0x80"
    lines = [line for line in out.splitlines() if line]
    if way == "not looked at":
        assert lines == ["it launches the graph that is held"] * 3 + ["1 5"]
    else:
        assert (lines[0], lines[-1]) == (told, "2 3")


# -- what counts of the arguments -------------------------------------------------------------


def noting(seen, **options):
    """A graphed function of an array and whatever else, which notes that when it is called."""

    @sk.graphed(**options)
    def function(to, source, *args, **kwargs):
        seen.append((args, kwargs))
        copy(to, source)

    return function


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (complex(1, 0.0), complex(1, -0.0)),
        (np.float32(0), np.float32(-0.0)),
        (float("nan"), 0.0),
    ],
)
def test_numbers_that_compare_equal_are_not_one_if_they_compute_otherwise(array, one, other):
    function, to, source = noting(seen := []), array(), array(1)
    for number in (one, one, one, other, other, other):
        function(to, source, number)
    assert [str(args[0]) for args, _ in seen] == [str(one)] * 2 + [str(other)] * 2


@pytest.mark.parametrize("nan", [float, np.float32, np.float64])
def test_nan_is_one_argument(array, nan):
    function, to, source = noting(seen := []), array(), array(1)
    for _ in range(5):
        function(to, source, nan("nan"))
    assert (len(seen), function.graphs, function.hits) == (2, 1, 3)


def test_keywords_in_another_order_are_the_same_call(array):
    function, to, source = noting(seen := []), array(), array(1)
    for _ in range(3):
        function(to, source, a=1, b=source)
        function(to, source, b=source, a=1)
    assert (len(seen), function.graphs, function.hits) == (2, 1, 4)


# -- what it says -----------------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    first: object
    second: object


class Model:
    pass


def test_it_says_what_the_next_call_does(array):
    function, to, source = copies(), array(), array(1)
    said = []
    for _ in range(3):
        said.append(function.explain(to, source))
        function(to, source)
    assert said == [
        "it calls the function, because it is the first call",
        "it captures the function, because it is the second call of its kind",
        "it launches the graph that is held",
    ]
    assert (function.captures, function.hits) == (1, 1), "what explains is no call"


MODELS = Model(), Model()


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (3, 4, "argument 2: 4 instead of 3"),
        (3, 3.0, "argument 2: float instead of int"),
        ("a", "b" * 500, f"argument 2: '{'b' * 116}... instead of 'a'"),
        ((1, 2), (1, 2, 3), "argument 2: 3 items instead of 2"),
        ([1, [2]], [1, [3]], "argument 2[1][0]: 3 instead of 2"),
        ({"a": 1}, {"a": 2}, "argument 2['a']: 2 instead of 1"),
        ({"{}": {"b": 1}}, {"{}": {"b": 2}}, "argument 2['{}']['b']: 2 instead of 1"),
        ({"a": 1}, {"b": 1}, "argument 2: keys 'b' instead of 'a'"),
        (Pair(1, 2), Pair(1, 3), "argument 2.second: 3 instead of 2"),
        (*MODELS, "argument 2: another Model"),
        ({1}, {2}, "argument 2: another set"),
        (bytearray(b"a"), bytearray(b"b"), "argument 2: another bytearray"),
    ],
)
def test_it_says_which_argument_differs(array, one, other, told):
    function, to, source = noting([]), array(), array(1)
    for _ in range(2):
        function(to, source, one)
    assert function.explain(to, source, other) == FIRST + told


def test_it_says_how_an_array_differs(array, cuda):
    function, to, source = copies(), array(), array(1)
    for _ in range(2):
        function(to, source)
    new = array()
    half = cuda.as_cuda_array(source)[:2]
    with cuda.gpus[1]:
        there = array()
    for args, told in (
        ((new, source), f"argument 0: address {address(new):#x} instead of {address(to):#x}"),
        ((to, half), "argument 1: shape (2,) instead of (4,)"),
        ((to, source[::2]), "argument 1: shape (2,) instead of (4,)"),
        ((to, source.view(np.int32)), "argument 1: dtype int32 instead of float32"),
        ((there, source), "argument 0: on cuda:1 instead of cuda:0"),
        ((to,), "1 arguments instead of 2"),
    ):
        assert function.explain(*args) == FIRST + told


def test_with_copies_it_says_which_arrays_are_one(array):
    function, to, source = copies(copy=True), array(), array(1)
    for _ in range(2):
        function(to, source)
    told = "argument 1: that of an array before it instead of memory of its own"
    assert function.explain(to, to) == FIRST + told
    function.clear()
    for _ in range(2):
        function(to, to)
    told = "argument 1: memory of its own instead of that of an array before it"
    assert function.explain(to, source) == FIRST + told


def test_it_names_the_nearest_and_some_of_the_differences(array):
    function, to, source = noting([]), array(), array(1)
    for args in ((1, 2, 3, 4, 5), (1, 2, 30, 40, 50)):
        for _ in range(2):
            function(to, source, *args)
    assert function.explain(to, source, 1, 2, 3, 4, 6) == FIRST + "argument 6: 6 instead of 5"
    assert function.explain(to, source, 9, 9, 9, 9, 9) == FIRST + (
        "argument 2: 9 instead of 1; argument 3: 9 instead of 2; argument 4: 9 instead of 3; "
        "and 2 more"
    )
    assert function.explain(to, source, a=1) == FIRST + (
        "2 arguments instead of 7; keywords 'a' instead of none"
    )


def test_it_says_when_another_graph_has_to_go(array):
    function, to, source = noting([], max_graphs=1), array(), array(1)
    for _ in range(2):
        function(to, source, 1)
    full = "; all 1 graphs are held, so the least recently used one goes"
    told = "argument 2: 2 instead of 1"
    assert function.explain(to, source, 2) == FIRST + told + full
    function(to, source, 2)
    assert function.explain(to, source, 2) == (
        f"it captures the function, because it is the second call of its kind; {told}{full}"
    )


def test_where_nothing_is_held_it_compares_with_calls_that_came_once(array):
    """So it says why a function is never captured."""
    function, to = copies(), array()
    for number in range(3):
        function(to, array(number))
    last = array(3)
    assert function.explain(to, last).startswith(
        f"{FIRST}argument 1: address {address(last):#x} instead of "
    )


def test_it_says_what_cannot_be_captured(array):
    @sk.graphed(fallback=True)
    def function(to, source):
        copy(to, source)
        sk.current_stream().sync()

    to, source = array(), array(1)
    function(to, source)
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        function(to, source)
    assert function.explain(to, source) == (
        "it calls the function, which could not be captured at a call of its kind"
    )


def test_on_the_host_it_says_that_there_are_no_graphs():
    function = sk.graphed(lambda: None)
    with sk.new_stream("cpu"):
        assert function.explain() == "it calls the function: on the host there are no graphs"


def test_it_raises_what_the_call_would():
    with pytest.raises(TypeError, match="is on the host: a graph would keep the values"):
        copies().explain(np.zeros(4))
