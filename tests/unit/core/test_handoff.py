"""``handoff`` of arrays on the host, and what it refuses everywhere."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import streamkit as sk
from support.keepalive import stays_until
from support.queues import within

pytestmark = pytest.mark.quick


class OnDevice:
    """An array of a library that StreamKit does not know, on cuda:0."""

    def __dlpack_device__(self):
        return 2, 0


class Pinned:
    """The same in pinned host memory."""

    def __dlpack_device__(self):
        return 3, 0


@pytest.mark.parametrize("handed", [True, False])
def test_the_stream_waits_for_what_came_before(stream, other, hold, handed):
    gate, array = hold(other), np.zeros(3)
    other.submit(np.copyto, array, 7)
    if handed:
        assert sk.handoff(array, stream, after=other) is array
    seen = []
    stream.submit(lambda: seen.append(array[0]))
    if not handed:
        within(stream.sync)
    gate.open()
    stream.sync()
    assert seen == ([7] if handed else [0])


@pytest.mark.parametrize("make", [lambda: np.ones(3).view(), Pinned])
def test_the_array_is_kept_until_the_edge_has_passed(stream, other, hold, make):
    gate, array = hold(other), make()
    seen = weakref.ref(array)
    sk.handoff(array, stream, after=other)
    del array
    stays_until(gate, stream.sync, lambda: seen() is None)


def test_between_equal_queues_nothing_is_done(stream, hold):
    hold(stream)
    array = np.ones(3).view()
    seen = weakref.ref(array)
    assert sk.handoff(array, stream, after=stream) is array
    del array
    assert seen() is None


@pytest.mark.parametrize("after", [None, sk.default_stream("cpu")])
def test_in_a_scope_an_array_of_the_host_comes_from_its_stream(stream, other, hold, after):
    """Not from the default stream, for which the control waits."""
    hold(sk.default_stream("cpu"))
    with sk.use(other):
        array = np.ones(3)
        assert sk.handoff(array, stream, after=after) is array
    if after is None:
        within(stream.sync)
    else:
        with pytest.raises(TimeoutError):
            stream.sync(timeout=0.05)


def test_of_numpy_nobody_knows_where_it_was_used(stream):
    with pytest.raises(TypeError, match=r"numpy\.ndarray object.*after=\.\.\."):
        sk.handoff(np.ones(3), stream)


@pytest.mark.parametrize(
    "thing", [None, 5, "x", [1.0], b"bytes", np.float32(1), np.ndarray, object(), OnDevice()]
)
def test_what_is_no_array_is_named(stream, other, thing):
    with pytest.raises(TypeError, match="is not an array that can be handed over") as caught:
        sk.handoff(thing, stream, after=other)
    name = thing.__name__ if isinstance(thing, type) else type(thing).__name__
    assert name in str(caught.value) or repr(thing) in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 5, object()])
def test_what_is_no_stream_is_refused(stream, wrong):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.handoff(np.ones(3), wrong, after=stream)
    if wrong is not None:
        with pytest.raises(sk.errors.UnsupportedStreamError):
            sk.handoff(np.ones(3), stream, after=wrong)


def test_a_closed_stream_is_refused(stream, other):
    other.close()
    for first, second in [(stream, other), (other, stream)]:
        with pytest.raises(sk.errors.StreamClosedError):
            sk.handoff(np.ones(3), first, after=second)


def test_the_integer_of_dlpack_is_none_on_the_host(stream):
    assert stream.dlpack_stream is None
    assert sk.default_stream("cpu").dlpack_stream is None
    np.from_dlpack(np.ones(3))  # whose producer is asked with this
    assert np.ones(3).__dlpack__(stream=stream.dlpack_stream) is not None
