"""``graphed`` without a GPU: what it refuses, and what it is on host streams."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import weakref

import pytest

import streamkit as sk
from streamkit._graphs.signatures import Signature, find, replaced  # what tells calls apart
from streamkit.types import GraphedFunction


def test_on_a_host_stream_it_calls_the_function():
    calls = []

    @sk.graphed
    def add(a, *, b=1):
        """Add two."""
        calls.append((a, b))
        return a + b

    with sk.new_stream(device="cpu"):
        assert [add(1, b=2), add(1, b=2), add(1)] == [3, 3, 2]
    assert calls == [(1, 2), (1, 2), (1, 1)]
    assert (add.graphs, add.captures, add.hits) == (0, 0, 0)
    assert (add.__name__, add.__doc__) == ("add", "Add two.")
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert repr(add).endswith("add, 0 graphs>")


def test_it_runs_on_the_host_stream_that_it_is_given():
    s = sk.new_stream(device="cpu")
    where = sk.graphed(sk.current_stream, stream=s)
    assert where() is s


def test_it_can_be_a_method():
    class Model:
        factor = 3

        @sk.graphed(max_graphs=2)
        def scale(self, x):
            return self.factor * x

    with sk.new_stream(device="cpu"):
        assert Model().scale(2) == 6
    assert isinstance(Model.scale, GraphedFunction)


def test_an_error_of_the_function_passes():
    @sk.graphed
    def fail():
        raise LookupError("its own")

    with sk.new_stream(device="cpu"), pytest.raises(LookupError, match="its own"):
        fail()


@sk.graphed
def at_the_top(x):
    return x


def test_it_is_pickled_by_name_as_a_function_is():
    again = pickle.loads(pickle.dumps(at_the_top))  # noqa: S301 - made here
    assert again is at_the_top


def generator():
    yield


async def coroutine():
    """Do nothing."""


async def asynchronous_generator():
    yield


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (generator, "is a generator, because its work comes after the call"),
        (coroutine, "is an async function, because its work"),
        (asynchronous_generator, "is an async generator, because its work"),
        (5, "needs a function, and was given 5"),
    ],
)
def test_what_is_no_plain_function_is_refused(fn, told):
    with pytest.raises(TypeError, match=told):
        sk.graphed(fn)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="max_graphs is 0: use 1 or more"):
        sk.graphed(max_graphs=0)
    with pytest.raises(ValueError, match="max_graphs is 'many': use 1 or more"):
        sk.graphed(max_graphs="many")
    with pytest.raises(sk.errors.UnsupportedStreamError, match="cannot wrap 5"):
        sk.graphed(stream=5)


# -- what tells calls apart -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pair:
    first: object
    second: object


def key(*args, **kwargs):
    return Signature((args, kwargs), by_address=True).key


SAME = [
    ((1, "a", None, 2.5), {}),
    (([1, (2, 3)], {"a": [4]}), {"k": {"b": 5}}),
    ((Pair(1, [2]), slice(1, 2)), {}),
    (({1, 2}, bytearray(b"a")), {}),
]
OTHERS = [
    (((1,), {}), ((1.0,), {})),
    (((1,), {}), ((True,), {})),
    ((((1,),), {}), (([1],), {})),
    (((1,), {}), ((), {"a": 1})),
    (((Pair(1, 2),), {}), ((Pair(1, 3),), {})),
    (((Pair(1, 2),), {}), (((1, 2),), {})),
    ((({1},), {}), (({2},), {})),
    ((({"a": 1},), {}), (({"b": 1},), {})),
    (((), {"a": 1, "b": 2}), ((), {"a": 2, "b": 1})),
]


@pytest.mark.parametrize(("args", "kwargs"), SAME)
def test_equal_arguments_have_one_key(args, kwargs):
    assert key(*args, **kwargs) == key(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    assert hash(key(*args, **kwargs)) == hash(key(*copy.deepcopy(args), **copy.deepcopy(kwargs)))


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_other_arguments_have_another_key(one, other):
    assert key(*one[0], **one[1]) != key(*other[0], **other[1])


@pytest.mark.parametrize(
    ("values", "change"),
    [
        ({1}, lambda values: values.add(2)),
        (bytearray(b"a"), lambda values: values.append(1)),
        ([1], lambda values: values.append(2)),
        ({1: 2}, lambda values: values.clear()),
    ],
)
def test_what_changes_after_the_call_has_another_key(values, change):
    call = Signature(((values,), {}), by_address=True)
    assert key(values) == call.key
    call.freeze()
    change(values)
    assert key(values) != call.key


def test_a_value_that_cannot_be_hashed_is_copied_only_for_a_key_that_is_held(monkeypatch):
    copied = []
    monkeypatch.setattr(copy, "deepcopy", lambda value: copied.append(value) or value)
    call = Signature((([bytearray(b"a")],), {}), by_address=True)
    assert call.key == key([bytearray(b"a")])
    assert copied == []
    call.freeze()
    call.freeze()
    assert copied == [bytearray(b"a")]


class Thing:
    __slots__ = ("__weakref__",)

    def method(self):
        """Do nothing."""


def test_the_key_does_not_hold_an_object_that_is_equal_to_no_other():
    one, other = Thing(), Thing()
    call = Signature(((one, [one.method]), {"other": other}), by_address=True)
    assert call.objects == [one, one, other]
    assert call.key == key(one, [one.method], other=other)
    assert call.key != key(one, [one.method], other=one)
    found, seen = call.key, weakref.ref(one)
    hash(found)
    del call, one
    assert seen() is None
    assert found == found  # noqa: PLR0124 - it can be looked for, and taken out
    assert hash(found)


def test_what_cannot_be_held_weakly_is_held():
    class Slots:
        __slots__ = ()

    one = Slots()
    assert key(one) == key(one)
    assert key(one) != key(Slots())


@pytest.mark.parametrize("number", [0.0, -0.0, float("nan"), 0j, complex(0, -0.0), 1.5, 1j, True])
def test_a_number_is_known_by_all_of_its_sign(number):
    others = [0, 0.0, -0.0, float("nan"), 0j, complex(0, -0.0), 1.5, 1j, True, 1]
    equal = [other for other in others if key(number) == key(other)]
    assert [repr(other) for other in equal] == [repr(number)]


def test_of_keywords_the_order_does_not_count_but_of_items_it_does():
    """Python's own calls are equal so; a function can look at the order of a dict's items."""
    assert key(a=1, b=2) == key(b=2, a=1)
    assert key({"a": 1, "b": 2}) != key({"b": 2, "a": 1})


def test_settings_count():
    one, other = (Signature(((), {}), by_address=True, settings=n).key for n in (1, 2))
    assert one != other


def test_leaves_are_replaced_in_containers_of_their_own():
    given = [Pair(object, (int, [float])), {"a": str}]
    new = replaced(given, lambda leaf: leaf.__name__)
    assert new == [Pair("object", ("int", ["float"])), {"a": "str"}]
    assert given == [Pair(object, (int, [float])), {"a": str}]


class Output(dict):
    """As the results of models of the library transformers."""

    def __setitem__(self, name, item):
        super().__setitem__(name, item)
        setattr(self, name, item)

    def update(self, *args, **kwargs):
        raise TypeError("you cannot use update")


def test_leaves_are_replaced_in_a_mapping_that_has_them_as_attributes_too():
    given = Output()
    given["loss"] = int
    new = replaced(given, lambda leaf: leaf.__name__)
    assert (type(new), new["loss"], new.loss) == (Output, "int", "int")
    assert (given["loss"], given.loss) == (int, int)


def test_an_array_of_the_host_is_found():
    numpy = pytest.importorskip("numpy")
    (found,) = Signature((({"x": [numpy.ones(2)]},), {}), by_address=True).arrays
    assert found.device is None
    assert not Signature(((numpy.float32(1),), {}), by_address=True).arrays


class Strided:
    """Memory of the GPU that is told by the interface alone."""

    def __init__(self, address, shape, strides=None):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": "<f4",
            "version": 3,
        }


def test_an_array_of_any_library_is_known_by_its_memory():
    one, again = Strided(4096, (2, 3)), Strided(4096, (2, 3), (12, 4))
    assert key(one) == key(again)
    for other in (Strided(8192, (2, 3)), Strided(4096, (3, 2)), Strided(4096, (2, 3), (4, 8))):
        assert key(one) != key(other)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((4096, (2, 3)), (4116, ()), True),
        ((4096, (2, 3)), (4120, ()), False),
        ((4096, (3,), (-4,)), (4088, ()), True),
        ((4096, (3,), (-4,)), (4084, ()), False),
        ((4096, (2, 0)), (4096, ()), False),
        ((4096, (5, 2), (24, 4)), (4104, (5, 2), (24, 4)), False),  # as chunks of the last axis
        ((4096, (5, 3), (24, 4)), (4104, (5, 2), (24, 4)), True),
    ],
)
def test_arrays_overlap_if_an_element_of_both_has_the_same_memory(one, other, shared):
    first, second = map(find, (Strided(*one), Strided(*other)))
    assert first.overlaps(second) is second.overlaps(first) is shared


def test_an_expanded_array_has_elements_that_share_memory():
    def repeats(*args):
        return find(Strided(*args)).repeats

    assert repeats(4096, (3, 2), (0, 4))
    assert not repeats(4096, (1, 2), (0, 4))
    assert not repeats(4096, (3, 2))


def test_arrays_that_overlap_cannot_both_be_copied():
    whole, half = Strided(4096, (4,)), Strided(4104, (2,))
    apart = Strided(4112, (2,))
    Signature(((whole, half), {}), by_address=True)
    Signature(((whole, apart, whole), {}), by_address=False)
    with pytest.raises(
        ValueError, match="overlap in memory, so a graph cannot have a copy of each"
    ):
        Signature(((whole, half), {}), by_address=False)


def test_with_copies_the_address_does_not_count_but_which_arrays_are_one_does():
    def copied(*args):
        return Signature((args, {}), by_address=False).key

    a, b = Strided(4096, (2,)), Strided(8192, (2,))
    assert copied(a) == copied(b)
    assert copied(a, b) == copied(b, a)
    assert copied(a, a) != copied(a, b)
    assert copied(a, b, a) != copied(a, b, b)
    assert copied(a) != copied(Strided(4096, (3,)))


class Named(list):
    """A list that its items alone do not make again."""

    def __init__(self, name, items):
        super().__init__(items)
        self.name = name


def test_on_a_host_stream_the_result_is_the_very_object():
    result = Named("losses", [1, {"more": (2, 3)}])
    with sk.new_stream(device="cpu"):
        assert sk.graphed(lambda: result)() is result
