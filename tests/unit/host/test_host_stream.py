"""What a host stream says of itself, and what it refuses."""

from __future__ import annotations

import threading

import pytest

import streamkit as sk
from streamkit.types import HostEvent, HostStream
from support.queues import within

pytestmark = [pytest.mark.portable, pytest.mark.quick]


class Cuda:
    """A stream of the protocol."""

    def __cuda_stream__(self):
        return 0, 64


class CudaByAttribute:
    def __init__(self):
        self.__cuda_stream__ = lambda: (0, 64)


def test_its_properties(stream):
    assert (stream.device, stream.device_id) == ("cpu", None)
    assert stream.native is None
    assert stream.owned is True
    assert stream.is_default is False
    assert stream.is_capturing is False
    assert stream.closed is False
    assert stream.priority == 0


@pytest.mark.parametrize("priority", [None, 0, -1, -5, 100, "high", "low"])
def test_it_is_what_was_asked_for_and_every_priority_is_zero(priority):
    for name, nonblocking in ((None, True), ("worker", False), ("", False)):
        made = sk.new_stream("cpu", name=name, nonblocking=nonblocking, priority=priority)
        assert (made.name, made.is_nonblocking, made.priority) == (name, nonblocking, 0)


def test_its_repr_names_it_and_tells_that_it_is_closed(stream):
    assert repr(stream) == f"<streamkit.HostStream 's' cpu id={stream.id}>"
    stream.close()
    assert "closed" in repr(stream)


def test_ids_are_never_used_twice():
    ids = [sk.new_stream("cpu").id for _ in range(100)]
    assert len(set(ids)) == 100


def test_it_equals_itself_only(stream, other):
    assert stream == stream  # noqa: PLR0124 - that is the test
    assert stream != other
    assert stream != stream.id
    assert hash(stream) != hash(other)
    assert {stream: 1, other: 2}[stream] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: s.handle,
        int,
        lambda s: s.context,
        lambda s: s.to("torch"),
        lambda s: s.to("cupy"),
        lambda s: s.record().handle,
        lambda s: s.record().to("warp"),
    ],
)
def test_it_has_nothing_of_cuda(stream, ask):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="host"):
        ask(stream)


def test_it_is_no_stream_of_the_protocol(stream):
    assert not hasattr(stream, "__cuda_stream__")
    assert not hasattr(HostStream, "__cuda_stream__")


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Cuda, CudaByAttribute])
def test_it_does_not_wait_for_cuda_nor_record_an_event_of_it(stream, kind):
    with pytest.raises(sk.errors.DeviceMismatchError, match="'s'"):
        stream.wait(kind())
    with pytest.raises(sk.errors.DeviceMismatchError):
        stream.record(Cuda())


@pytest.mark.parametrize(
    "obj", [None, 5, True, "x", object(), Cuda, HostStream, HostEvent, (0, 64)]
)
def test_it_does_not_wait_for_what_is_no_stream(stream, obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        stream.wait(obj)
    assert stream.done, "a refused wait queues nothing"


@pytest.mark.parametrize("obj", [5, True, "x", object(), HostEvent, sk.new_stream("cpu")])
def test_it_does_not_record_what_is_no_event(stream, obj):
    with pytest.raises((sk.errors.UnsupportedStreamError, sk.errors.DeviceMismatchError)):
        stream.record(obj)


@pytest.mark.parametrize("method", ["record", "wait"])
def test_it_has_no_graphs(stream, other, method):
    argument = {"record": None, "wait": other}[method]
    with pytest.raises(sk.errors.UnsupportedStreamError, match="external"):
        getattr(stream, method)(argument, external=True)


# -- close ------------------------------------------------------------------------------------


def test_close_makes_it_unusable(stream, other):
    event = stream.record()
    before = stream.id, stream.name, hash(stream), stream.device
    for _ in range(2):  # the second is nothing
        stream.close()
    assert stream.closed
    assert (stream.id, stream.name, hash(stream), stream.device) == before
    for use in (
        stream.record,
        stream.sync,
        stream.__enter__,
        lambda: stream.done,
        lambda: stream.submit(int),
        lambda: stream.wait(other),
        lambda: stream.wait(event),
        lambda: other.wait(stream),
        lambda: sk.wrap(stream),
        lambda: sk.use(stream),
    ):
        with pytest.raises(sk.errors.StreamClosedError, match="'s'"):
            use()


# -- the default queues -----------------------------------------------------------------------


def test_the_default_stream_is_one_for_the_process():
    assert sk.default_stream("cpu") is sk.default_stream("cpu")
    assert within(lambda: sk.default_stream("cpu")) is sk.default_stream("cpu")


def test_the_per_thread_stream_is_one_for_each_thread():
    mine = sk.default_stream("cpu", per_thread=True)
    assert sk.default_stream("cpu", per_thread=True) is mine
    theirs = [within(lambda: sk.default_stream("cpu", per_thread=True)) for _ in range(3)]
    assert len({mine, *theirs}) == 4


@pytest.mark.parametrize("per_thread", [False, True])
def test_a_default_stream_is_not_owned_nor_closed_and_is_a_queue(per_thread, other, hold):
    stream, seen = sk.default_stream("cpu", per_thread=per_thread), []
    assert stream.is_default
    assert not stream.owned
    assert "default" in repr(stream) or "per-thread" in repr(stream)
    stream.close()
    assert not stream.closed
    gate = hold(other)
    stream.wait(other)
    stream.submit(seen.append, 1)
    assert seen == []
    gate.open()
    stream.sync()
    assert seen == [1]


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.record(),
        lambda s: s.sync(),
        lambda s: s.submit(int),
        lambda s: s.done,
        lambda s: s.__enter__(),
        lambda s: sk.new_stream("cpu").wait(s),
    ],
    ids=["record", "sync", "submit", "done", "with", "wait"],
)
def test_a_per_thread_stream_belongs_to_its_thread(use):
    mine, here = sk.default_stream("cpu", per_thread=True), threading.get_ident()
    with pytest.raises(sk.errors.ScopeError, match=str(here)):
        within(lambda: use(mine))
